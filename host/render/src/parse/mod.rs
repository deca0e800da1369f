//! Reads an assistant turn, whole or as it arrives: reasoning, text, tool calls. Owns which words mark structure and what a
//! turn is made of; where reasoning and calls begin and end is read in `turn`, what is in a call in `calls`.

mod calls;
mod harmony;
mod held;
mod turn;
mod unquoted;

pub use calls::Calls;
use calls::{CLOSE_CALL, OPEN_CALL, PYTHON_TAG};
use harmony::{CHANNEL, CONSTRAIN, END, MESSAGE, START};
pub(crate) use harmony::{FUNCTIONS, recipients};
use prl_types::{Message, Role, ToolCall, ToolDef};
pub use turn::TurnStream;
pub(crate) use unquoted::is_name;

pub(crate) const OPEN_THINK: &str = "<think>";
pub(crate) const CLOSE_THINK: &str = "</think>";

/// Whether a token marks structure; such tokens are read even where the tokenizer calls them special.
pub(crate) fn is_marker(token: &str, calls: Calls) -> bool {
    let think = [OPEN_THINK, CLOSE_THINK].contains(&token);
    think
        || match calls {
            Calls::Llama3 => token == PYTHON_TAG,
            Calls::Glm => [&[OPEN_CALL, CLOSE_CALL][..], &calls::KEYED].concat().contains(&token),
            Calls::Harmony => [CHANNEL, CONSTRAIN, END, MESSAGE, START].contains(&token),
            Calls::Hermes | Calls::Xml | Calls::None => [OPEN_CALL, CLOSE_CALL].contains(&token),
        }
}

/// What a model's template says about reasoning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Thinking {
    /// The template knows no `<think>`: such text is content.
    Unknown,
    /// The model opens `<think>` itself, or does not think.
    Free,
    /// The generation prompt ends inside `<think>`.
    Opened,
}

/// Splits the text of one turn, stop token already removed. `tools` are those that were offered.
pub(crate) fn parse(text: &str, thinking: Thinking, calls: Calls, tools: &[ToolDef]) -> Message {
    let mut stream = TurnStream::new(thinking, calls, tools.into());
    let first = stream.push(text);
    let last = stream.finish();
    let mut message = Message::text(Role::Assistant, first.content + &last.content);
    message.reasoning = Some(first.reasoning + &last.reasoning).filter(|r| !r.is_empty());
    message.tool_calls = first.tool_calls.into_iter().chain(last.tool_calls).collect();
    message
}

/// What a piece of a turn's text added to its message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TurnDelta {
    /// Reasoning.
    pub reasoning: String,
    /// Text.
    pub content: String,
    /// Calls that are complete; their ids are `call_<n>`, counted from 0 within the turn.
    pub tool_calls: Vec<ToolCall>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(text: &str, thinking: Thinking) -> Message {
        super::parse(text, thinking, Calls::Hermes, &[])
    }

    #[test]
    fn reasoning_is_split_only_where_the_template_knows_it() {
        let text = "<think>\nwhy\n</think>\n\nbecause";
        assert_eq!(parse(text, Thinking::Unknown).content, text);
        let m = parse(text, Thinking::Free);
        assert_eq!((m.reasoning.as_deref(), m.content.as_str()), (Some("why"), "because"));
        let m = parse("why\n</think>\nbecause", Thinking::Opened);
        assert_eq!((m.reasoning.as_deref(), m.content.as_str()), (Some("why"), "because"));
        let m = parse("<think>\ncut off", Thinking::Free);
        assert_eq!((m.reasoning.as_deref(), m.content.as_str()), (Some("cut off"), ""));
        let m = parse("cut off", Thinking::Opened);
        assert_eq!((m.reasoning.as_deref(), m.content.as_str()), (Some("cut off"), ""));
        let m = parse("<think>\n\n</think>\n\nplain", Thinking::Free);
        assert_eq!((m.reasoning, m.content.as_str()), (None, "plain"));
        assert_eq!(parse("1 </think> 2", Thinking::Free).content, "1 </think> 2");
    }

    #[test]
    fn tool_calls_keep_what_was_written() {
        let text = "I look.\n<tool_call>\n{\"name\": \"get\", \"arguments\": {\"a\":  1, \"a\": 2}}\n</tool_call>\n\
                    <tool_call>{\"arguments\": \"{\\\"x\\\": 1}\", \"name\": \"put\"}</tool_call>";
        let m = parse(text, Thinking::Unknown);
        assert_eq!(m.content, "I look.");
        assert_eq!(m.tool_calls.len(), 2);
        assert_eq!(m.tool_calls[0].arguments, "{\"a\":  1, \"a\": 2}");
        assert_eq!((m.tool_calls[1].name.as_str(), m.tool_calls[1].arguments.as_str()), ("put", "{\"x\": 1}"));
        assert_eq!(m.tool_calls[1].id, "call_1");
        let m = parse("<tool_call>{\"name\": \"noargs\", \"x\": 12}</tool_call>", Thinking::Unknown);
        assert_eq!((m.tool_calls[0].name.as_str(), m.tool_calls[0].arguments.as_str()), ("noargs", "{}"));
    }

    #[test]
    fn malformed_calls_stay_calls() {
        for (block, name, arguments) in [
            ("{\"name\": \"get\", \"arguments\": {\"a\": 1", "get", "{\"name\": \"get\", \"arguments\": {\"a\": 1"),
            ("[1]", "", "[1]"),
            ("\"x\"", "", "\"x\""),
            ("", "", ""),
            ("{\"name\": 3}", "", "{\"name\": 3}"),
            ("{\"name\": \"f\", \"arguments\": [1]}", "f", "[1]"),
            ("{\"name\": \"f\", \"arguments\": 1} x", "f", "{\"name\": \"f\", \"arguments\": 1} x"),
        ] {
            for close in ["</tool_call>", ""] {
                let m = parse(&format!("<tool_call>\n{block}\n{close}"), Thinking::Unknown);
                assert_eq!(m.tool_calls.len(), 1, "{block}");
                assert_eq!((m.tool_calls[0].name.as_str(), m.tool_calls[0].arguments.as_str()), (name, arguments));
            }
        }
    }

    /// Pieces of what matters, put together at random.
    fn turns() -> impl Strategy<Value = String> {
        let piece = prop::sample::select(vec![
            "<think>",
            "</think>",
            "<tool_call>",
            "</tool_call>",
            "{\"name\": \"f\"}",
            "{\"name\": \"f\", \"parameters\": {}}",
            "<function=f>\n<parameter=a>\n1\n</parameter>\n</function>",
            "f\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>",
            "<function=",
            "<function=f g>",
            "<parameter=",
            "</function>",
            "<|python_tag|>",
            "<|py",
            "<|channel|>analysis<|message|>",
            " to=functions.f<|channel|>commentary<|message|>",
            "<|message|>",
            "<|end|>",
            "<|start|>assistant",
            "{",
            "; ",
            "\n",
            " ",
            "a",
            "é",
            "<",
            "</t",
            "<tool_",
            "hello",
        ]);
        let piece = prop_oneof![12 => piece.prop_map(str::to_owned), 1 => ".{0,3}"];
        prop::collection::vec(piece, 0..14).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        /// Wherever a turn is cut, the pieces add up to the message of the whole, and text never holds a call.
        #[test]
        fn pieces_add_up_to_the_whole(text in turns(), cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6)) {
            let mut ends: Vec<usize> = cuts.iter().map(|cut| cut.index(text.len() + 1)).collect();
            ends.retain(|at| text.is_char_boundary(*at));
            ends.extend([0, text.len()]);
            ends.sort_unstable();
            for (thinking, calls) in THINKINGS.into_iter().flat_map(|t| KINDS.map(|c| (t, c))) {
                let whole = super::parse(&text, thinking, calls, &[]);
                let mut stream = TurnStream::new(thinking, calls, [].into());
                let mut deltas: Vec<TurnDelta> = ends.windows(2).map(|w| stream.push(&text[w[0]..w[1]])).collect();
                deltas.push(stream.finish());
                let sum = |part: &dyn Fn(&TurnDelta) -> &str| deltas.iter().map(part).collect::<String>();
                prop_assert_eq!(sum(&|d| &d.content), whole.content.as_str());
                prop_assert_eq!(sum(&|d| &d.reasoning), whole.reasoning.clone().unwrap_or_default());
                prop_assert!(!calls.tagged() || !whole.content.contains(OPEN_CALL));
                prop_assert!(calls != Calls::None || whole.tool_calls.is_empty());
                prop_assert!(whole.tool_calls.iter().all(|call| call.name.is_empty() || is_name(&call.name)));
                let calls: Vec<ToolCall> = deltas.into_iter().flat_map(|d| d.tool_calls).collect();
                prop_assert_eq!(calls, whole.tool_calls);
            }
        }
    }

    const KINDS: [Calls; 6] = [Calls::Hermes, Calls::Llama3, Calls::Xml, Calls::Glm, Calls::Harmony, Calls::None];
    const THINKINGS: [Thinking; 3] = [Thinking::Unknown, Thinking::Free, Thinking::Opened];

    /// A quarter of a megabyte of one kind of structure, in pieces as small as tokens: moments where reading is linear, minutes where
    /// it is not.
    #[test]
    fn long_turns_of_nothing_but_structure_are_read() {
        let size = 1 << 18;
        for part in [
            "<tool_call>",
            "<tool_call></tool_call>",
            "<tool_call></tool_call> ",
            "<tool_call><function=",
            "<function=",
            "<parameter=a>",
            "<arg_key>",
            "<tool_call>f<arg_key>a</arg_key><arg_value>1</arg_value></tool_call>",
            "</tool_call>",
            "<think>",
            "</think>",
            "<|channel|>",
            "<|message|>",
            "<|message|><|end|>",
            "<|channel|>analysis<|message|>a<|end|><|start|>assistant",
            " to=functions.f<|message|>{}<|end|>",
            "<|start|>assistant to=",
            "<|python_tag|>",
            "{\"name\": \"f\", \"parameters\": {}};",
            "{\"name\": ",
            "f.call(a=1, ",
            "[",
            " ",
            "\n",
            "<",
        ] {
            let text = part.repeat(size / part.len());
            for (thinking, calls) in THINKINGS.into_iter().flat_map(|t| KINDS.map(|c| (t, c))) {
                let whole = super::parse(&text, thinking, calls, &[]);
                let mut stream = TurnStream::new(thinking, calls, [].into());
                let mut read = TurnDelta::default();
                let mut rest = text.as_str();
                while !rest.is_empty() {
                    let (piece, next) = rest.split_at(rest.len().min(5));
                    let delta = stream.push(piece);
                    read.content += &delta.content;
                    read.reasoning += &delta.reasoning;
                    read.tool_calls.extend(delta.tool_calls);
                    rest = next;
                }
                let last = stream.finish();
                assert!(read.content + &last.content == whole.content, "{part}");
                assert!(read.reasoning + &last.reasoning == whole.reasoning.unwrap_or_default(), "{part}");
                assert!(read.tool_calls.len() + last.tool_calls.len() == whole.tool_calls.len(), "{part}");
            }
        }
    }
}
