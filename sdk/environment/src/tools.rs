//! Answers the tool calls of an assistant turn. Owns the replies to calls that cannot be run: whatever a model writes
//! becomes a message to it, the same each time, and never a failure of the environment.

use crate::{Message, ToolCall};
use serde_json::{Map, Value};

/// What a tool gives: its result, or what to tell the model about why there is none.
pub type ToolResult = std::result::Result<String, String>;

/// Runs `calls` in order and answers each with one message. `run` is handed a known tool's name and its arguments; a
/// call of an unknown tool, or with arguments that are no JSON object (cut off ones included), is answered here.
pub fn dispatch(
    calls: &[ToolCall],
    tools: &[&str],
    mut run: impl FnMut(&str, Map<String, Value>) -> ToolResult,
) -> Vec<Message> {
    let answer = |call: &ToolCall| {
        let result = known(call, tools).and_then(|()| arguments(call)).and_then(|given| run(&call.name, given));
        Message::tool_result(call, result.unwrap_or_else(|reason| format!("error: {reason}")))
    };
    calls.iter().map(answer).collect()
}

fn known(call: &ToolCall, tools: &[&str]) -> std::result::Result<(), String> {
    if tools.contains(&call.name.as_str()) {
        return Ok(());
    }
    let names: Vec<String> = tools.iter().map(|name| format!("`{name}`")).collect();
    let names = if names.is_empty() { "there are none".into() } else { format!("there are {}", names.join(", ")) };
    Err(format!("no tool `{}`; {names}", call.name))
}

fn arguments(call: &ToolCall) -> std::result::Result<Map<String, Value>, String> {
    // A call without arguments is most often written as nothing at all.
    let text = if call.arguments.trim().is_empty() { "{}" } else { &call.arguments };
    match serde_json::from_str(text) {
        Ok(Value::Object(given)) => Ok(given),
        Ok(_) => Err(format!("the arguments of `{}` are not a JSON object", call.name)),
        Err(error) => Err(format!("the arguments of `{}` are not valid JSON: {error}", call.name)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// https://github.com/NVIDIA-NeMo/Gym/issues/605
    /// https://github.com/PrimeIntellect-ai/verifiers/pull/1763
    /// https://github.com/radixark/miles/issues/2689
    #[test]
    fn whatever_the_model_writes_is_answered() {
        let call = |id: &str, name: &str, arguments: &str| ToolCall {
            id: id.into(),
            name: name.into(),
            arguments: arguments.into(),
        };
        let calls = [
            call("a", "double", r#"{"x": 2}"#),
            call("b", "triple", "{}"),
            call("c", "double", r#"{"x": 2"#),
            call("d", "double", "[1]"),
            call("e", "double", " "),
            call("f", "double", "\u{0}{\"x\": \u{fffd}"),
        ];
        let run = |name: &str, given: Map<String, Value>| {
            assert_eq!(name, "double");
            given.get("x").and_then(Value::as_i64).map(|x| (2 * x).to_string()).ok_or("`x` is missing".to_owned())
        };
        let answers = dispatch(&calls, &["double", "half"], run);
        let texts: Vec<String> = answers.iter().map(Message::text).collect();
        assert_eq!(texts[0], "4");
        assert_eq!(texts[1], "error: no tool `triple`; there are `double`, `half`");
        assert_eq!(
            texts[2],
            "error: the arguments of `double` are not valid JSON: EOF while parsing an object at line 1 column 7"
        );
        assert_eq!(texts[3], "error: the arguments of `double` are not a JSON object");
        assert_eq!(texts[4], "error: `x` is missing");
        assert!(texts[5].starts_with("error: the arguments of `double` are not valid JSON"));
        let ids: Vec<_> = answers.iter().map(|answer| answer.tool_call_id.as_deref().unwrap()).collect();
        assert_eq!(ids, ["a", "b", "c", "d", "e", "f"]);
    }

    /// https://github.com/NVIDIA-NeMo/Gym/issues/605
    /// https://github.com/radixark/miles/issues/2689
    #[test]
    fn odd_arguments_get_the_same_answer_each_time_and_other_calls_still_run() {
        let long = "x".repeat(1 << 20);
        let odd = [r#""x""#.to_owned(), format!("\"{long}\""), format!("\"{long}"), "null".into(), "3".into()];
        let good = [(r#"{"x": 1, "x": 2}"#, "2"), (r#"{"x": 7, "y": {"x": 9, "x": 8}}"#, "7")];
        let arguments: Vec<&str> =
            good.iter().map(|(text, _)| *text).chain(odd.iter().map(String::as_str)).chain([r#"{"x": 5}"#]).collect();
        let call = |text: &&str| ToolCall { id: "i".into(), name: "tell".into(), arguments: (*text).to_owned() };
        let calls: Vec<ToolCall> = arguments.iter().map(call).collect();
        let run = |_: &str, given: Map<String, Value>| given["x"].as_i64().map(|x| x.to_string()).ok_or("?".to_owned());
        let told = || -> Vec<String> { dispatch(&calls, &["tell"], run).iter().map(Message::text).collect() };
        let texts = told();
        assert_eq!(texts, told());
        // Of a key that comes twice the last one counts.
        assert_eq!(texts[..2], good.map(|(_, want)| want));
        assert_eq!(texts.last().unwrap(), "5");
        for (text, arguments) in texts[2..7].iter().zip(&odd) {
            let whole = serde_json::from_str::<Value>(arguments).is_ok();
            let want = if whole { "are not a JSON object" } else { "are not valid JSON: EOF while parsing a string" };
            assert!(text.starts_with("error: the arguments of `tell` ") && text.contains(want), "{text}");
            assert!(text.len() < 200, "the answer repeats what was written: {} bytes", text.len());
        }
    }
}
