//! What a scripted model says. Owns the answers, ordinary and bad; must not know what they are to show.

use crate::env::drive::{Asked, Said, Speaker};
use crate::env::example;
use futures::FutureExt;
use futures::future::BoxFuture;
use prl_environment::Finish;
use prl_types::{Message, Role, RolloutError, Task, ToolCall};
use std::fmt;

/// Turns after which a script's rollout is cut off.
pub const MAX_TURNS: u32 = 8;
/// Bytes of the longest answer.
const LONG: usize = 1 << 20;

/// A model by its manner.
#[derive(Clone, Debug)]
pub enum Script {
    /// Always says this.
    Says(String),
    /// Repeats the last message.
    Echoes,
    /// Calls every tool it is offered, with made-up arguments.
    Calls,
    /// Always says this, in every form that the conversation speaks of: in its tags, in a box.
    Knows(String),
    /// A fixed turn, with a name for it.
    Bad(&'static str, Message, Finish),
}

impl fmt::Display for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Script::Says(text) => write!(f, "says {:?}", crate::table::short(text, 40)),
            Script::Echoes => f.write_str("repeats the last message"),
            Script::Calls => f.write_str("calls every tool"),
            Script::Knows(text) => write!(f, "says {:?} in the forms it is asked for", crate::table::short(text, 40)),
            Script::Bad(name, ..) => f.write_str(name),
        }
    }
}

impl Script {
    /// Always says this.
    pub fn says(text: &str) -> Self {
        Script::Says(text.into())
    }

    /// Models that make sense: one that knows nothing, one that repeats, one that uses tools, and, where the task has a
    /// reference answer, one that knows it.
    pub fn ordinary(task: &Task) -> Vec<Script> {
        let mut scripts = vec![Script::says("I do not know."), Script::Echoes];
        if !task.tools.is_empty() {
            scripts.push(Script::Calls);
        }
        let answer = task.answer.as_ref().map(|answer| answer.as_str().map_or(answer.to_string(), str::to_owned));
        scripts.extend(answer.map(Script::Knows));
        scripts
    }

    /// Whether it makes no sense.
    pub fn is_bad(&self) -> bool {
        matches!(self, Script::Bad(..))
    }

    /// Whether it says the reference answer.
    pub fn knows(&self) -> bool {
        matches!(self, Script::Knows(_))
    }

    /// Models that make none. A policy in training says all of these.
    pub fn bad() -> Vec<Script> {
        let text = |name, text: &str| Script::Bad(name, Message::text(Role::Assistant, text), Finish::Stop);
        let calls = |name, calls: &[(&str, &str, &str)]| {
            let call = |(id, name, arguments): &(&str, &str, &str)| ToolCall {
                id: (*id).into(),
                name: (*name).into(),
                arguments: (*arguments).into(),
            };
            let tool_calls = calls.iter().map(call).collect();
            Script::Bad(name, Message { tool_calls, ..Message::text(Role::Assistant, "") }, Finish::ToolCalls)
        };
        let reasoning = Message { reasoning: Some("hm".into()), ..Message::text(Role::Assistant, "") };
        vec![
            text("says nothing", ""),
            text("says white space", " \n\t\r\n "),
            text("says control characters", "\0\u{1}\u{7f}\u{1b}[31m\u{feff}"),
            text("says many scripts", "Ünïcødé \u{202e}עברית\u{202c} 数学 नमस्ते 👩‍👩‍👧‍👦 e\u{301} \u{1f3f4}\u{e0067}"),
            text("says tags that do not end", "<answer><think><reversed_text>\\boxed{<<<{{{[[["),
            text("says numbers that are none", "NaN inf -inf 1e999 0x10 ٣ 1/0 99999999999999999999999999999999 --1"),
            text("says a megabyte", &"a ".repeat(LONG / 2)),
            Script::Bad("is cut off", Message::text(Role::Assistant, "The answer is <ans"), Finish::Length),
            Script::Bad("only thinks", reasoning, Finish::Stop),
            Script::Bad("is withheld", Message::text(Role::Assistant, ""), Finish::ContentFilter),
            calls("calls a tool that is not there", &[("c1", "no_such_tool", "{}")]),
            calls("calls a tool without a name", &[("", "", "")]),
            calls("calls two tools by one id", &[("c1", "x", "{}"), ("c1", "y", "{}")]),
        ]
    }
}

/// Arguments that are none, for a tool that is there.
pub const BAD_ARGUMENTS: [(&str, &str); 7] = [
    ("with truncated arguments", "{\"a\": [1, 2"),
    ("with no arguments", ""),
    ("with arguments that are no object", "[1, 2]"),
    ("with unknown arguments", "{\"no_such_argument\": 1}"),
    ("with arguments of wrong types", "{\"a\": null, \"expression\": [], \"query\": {}, \"x\": \"NaN\"}"),
    ("with arguments that are text", "please"),
    ("with arguments beyond any number", "{\"a\": 1e999, \"x\": -99999999999999999999999}"),
];

/// The answer in the tags and the box that `messages` speak of; as it is, where they speak of none.
fn dressed(answer: &str, messages: &[Message]) -> String {
    let mut tags: Vec<&str> = Vec::new();
    let texts = || messages.iter().map(|message| message.content.as_str());
    for name in texts().flat_map(|text| text.split('<').skip(1)).filter_map(|rest| rest.split_once('>')) {
        let is_name = name.0.starts_with(|c: char| c.is_ascii_alphabetic())
            && name.0.chars().all(|c| c.is_ascii_alphanumeric() || "_-".contains(c));
        if is_name && !tags.contains(&name.0) {
            tags.push(name.0);
        }
    }
    let mut forms: Vec<String> = tags.iter().map(|tag| format!("<{tag}>{answer}</{tag}>")).collect();
    forms.extend(texts().any(|text| text.contains("\\boxed{")).then(|| format!("\\boxed{{{answer}}}")));
    if forms.is_empty() { answer.to_owned() } else { forms.join("\n") }
}

impl Speaker for Script {
    fn say<'a>(&'a mut self, asked: Asked<'a>) -> BoxFuture<'a, Result<Said, RolloutError>> {
        let said = match self {
            Script::Says(text) => Said::new(Message::text(Role::Assistant, text.as_str())),
            Script::Echoes => {
                let last = asked.messages.last().map_or("", |message| message.content.as_str());
                Said::new(Message::text(Role::Assistant, last))
            }
            Script::Calls => {
                let call = |(at, tool): (usize, &prl_types::ToolDef)| ToolCall {
                    id: format!("call_{}_{at}", asked.turn),
                    name: tool.name.clone(),
                    arguments: example::value(&tool.parameters).to_string(),
                };
                let tool_calls = asked.tools.iter().enumerate().map(call).collect();
                Said::new(Message { tool_calls, ..Message::text(Role::Assistant, "") })
            }
            Script::Knows(answer) => Said::new(Message::text(Role::Assistant, dressed(answer, asked.messages))),
            Script::Bad(_, message, finish) => Said { finish: *finish, ..Said::new(message.clone()) },
        };
        async { Ok(said) }.boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_take_the_forms_that_are_asked_for() {
        let ask = |text: &str| dressed("42", &[Message::text(Role::User, text)]);
        assert_eq!(ask("What is 6 · 7? If 1 < 2 and 3 > 2."), "42");
        assert_eq!(ask("Think in <think> tags, then <answer>…</answer>."), "<think>42</think>\n<answer>42</answer>");
        assert_eq!(ask("Put it in \\boxed{}."), "\\boxed{42}");
    }
}
