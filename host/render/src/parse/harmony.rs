//! Reads the messages of one turn of gpt-oss: a header, `<|message|>`, a text, `<|end|>`, again and again. Owns what the
//! channels mean; knows nothing of other models.

use super::held::Held;
use super::{TurnDelta, is_name};
use prl_types::ToolCall;

pub(super) const CHANNEL: &str = "<|channel|>";
pub(super) const MESSAGE: &str = "<|message|>";
pub(super) const END: &str = "<|end|>";
pub(super) const START: &str = "<|start|>";
pub(super) const CONSTRAIN: &str = "<|constrain|>";
/// Begins the names of the tools that a conversation offers.
pub(crate) const FUNCTIONS: &str = "functions.";

/// Whom the messages of a turn are to that go to a tool, in order, by the turn's text: `functions.name`, or a tool of the model's
/// own such as `python`. These are the turn's calls.
pub(crate) fn recipients(turn: &str) -> Vec<String> {
    let mut to = Vec::new();
    let mut rest = turn;
    while let Some((header, body)) = rest.split_once(MESSAGE) {
        to.extend(recipient(header).map(str::to_owned));
        rest = body.split_once(END).map_or("", |(_, next)| next);
    }
    to
}

/// The tool that a message is to, by its header: `to=` stands in front of the channel or behind it. What goes to everybody or
/// stays with the model calls nothing.
fn recipient(header: &str) -> Option<&str> {
    let mut words = header.split(|c: char| c.is_whitespace() || c == '<');
    words.find_map(|word| word.strip_prefix("to=")).filter(|to| !["", "all", "assistant"].contains(to))
}

/// Splits a turn as it arrives.
#[derive(Clone, Debug, Default)]
pub(super) struct Harmony {
    held: Held,
    /// The message under way; none while its header is.
    body: Option<Body>,
    /// What was given so far: another text of the same kind begins on a line of its own.
    reasoned: bool,
    spoke: bool,
    count: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Body {
    Reasoning,
    Content,
    /// To a function of this name, which is empty where what was written is no name.
    Call(String),
}

impl Harmony {
    /// At the start of a turn, or within a `text` that was begun.
    pub fn new(text: bool) -> Self {
        Harmony { body: text.then_some(Body::Content), ..Default::default() }
    }

    pub fn push(&mut self, text: &str) -> TurnDelta {
        self.held.push(text);
        let mut delta = TurnDelta::default();
        while self.step(&mut delta) {}
        delta
    }

    /// The rest. What is no message is text.
    pub fn finish(mut self) -> TurnDelta {
        let mut delta = TurnDelta::default();
        let held = self.held.take_all().to_owned();
        if self.body.is_none() && !held.contains(CHANNEL) && !held.contains(START) {
            self.give(&Body::Content, &held, &mut delta);
        } else if let Some(body) = self.body.take() {
            self.give(&body, &held, &mut delta);
            self.close(&body, &held, &mut delta);
        }
        delta
    }

    fn step(&mut self, delta: &mut TurnDelta) -> bool {
        let Some(body) = self.body.clone() else {
            let Some(header) = self.held.take_until(MESSAGE) else { return false };
            let body = kind(header);
            let again = match body {
                Body::Reasoning => self.reasoned.then_some(&mut delta.reasoning),
                Body::Content => self.spoke.then_some(&mut delta.content),
                Body::Call(_) => None,
            };
            if let Some(text) = again {
                text.push('\n');
            }
            self.body = Some(body);
            return true;
        };
        if let Some(text) = self.held.take_until(END) {
            let text = text.to_owned();
            self.give(&body, &text, delta);
            self.close(&body, &text, delta);
            self.body = None;
            return true;
        }
        if !matches!(body, Body::Call(_)) {
            let text = self.held.take_before(END).to_owned();
            self.give(&body, &text, delta);
        }
        false
    }

    fn give(&mut self, body: &Body, text: &str, delta: &mut TurnDelta) {
        match body {
            Body::Reasoning => {
                self.reasoned |= !text.is_empty();
                delta.reasoning.push_str(text);
            }
            Body::Content => {
                self.spoke |= !text.is_empty();
                delta.content.push_str(text);
            }
            Body::Call(_) => {}
        }
    }

    /// A call is complete with its message. Arguments are as written; some models write the object as a JSON string.
    fn close(&mut self, body: &Body, text: &str, delta: &mut TurnDelta) {
        if let Body::Call(name) = body {
            let arguments = serde_json::from_str::<String>(text).unwrap_or_else(|_| text.trim().to_owned());
            delta.tool_calls.push(ToolCall { id: format!("call_{}", self.count), name: name.clone(), arguments });
            self.count += 1;
        }
    }
}

/// What a message is, by its header.
fn kind(header: &str) -> Body {
    if let Some(to) = recipient(header) {
        let name = Some(to.strip_prefix(FUNCTIONS).unwrap_or(to)).filter(|name| is_name(name));
        return Body::Call(name.unwrap_or_default().to_owned());
    }
    let channel = header.rsplit_once(CHANNEL).map_or("", |(_, rest)| rest.trim_start());
    if channel.starts_with("analysis") { Body::Reasoning } else { Body::Content }
}

#[cfg(test)]
mod tests {
    use super::super::{Calls, Thinking, parse};
    use super::recipients;

    #[test]
    fn messages_of_a_turn_are_told_apart() {
        let read = |text: &str| {
            let m = parse(text, Thinking::Free, Calls::Harmony, &[]);
            let calls: Vec<_> = m.tool_calls.into_iter().map(|c| (c.id, c.name, c.arguments)).collect();
            (m.reasoning.unwrap_or_default(), m.content, calls)
        };
        let call = |n: usize, name: &str, arguments: &str| (format!("call_{n}"), name.to_owned(), arguments.to_owned());
        for (text, reasoning, content, calls) in [
            ("<|channel|>final<|message|>yes\n", "", "yes\n", vec![]),
            (
                "<|channel|>analysis<|message|>why<|end|><|start|>assistant<|channel|>final<|message|>yes<|end|>",
                "why",
                "yes",
                vec![],
            ),
            (
                "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>analysis<|message|>b<|end|>\
                 <|start|>assistant to=functions.f<|channel|>commentary json<|message|>{\"a\": 1}",
                "a\nb",
                "",
                vec![call(0, "f", "{\"a\": 1}")],
            ),
            (
                "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>commentary to=functions.f \
                 <|constrain|>json<|message|>{\"a\": <|end|><|start|>assistant to=python<|channel|>analysis<|message|>1 + 1",
                "",
                "I look.",
                vec![call(0, "f", "{\"a\":"), call(1, "python", "1 + 1")],
            ),
            (
                " to=functions.f<|channel|>commentary json<|message|>\"{\\\"a\\\"\"",
                "",
                "",
                vec![call(0, "f", "{\"a\"")],
            ),
            (
                " to=functions.<|message|>1<|end|><|start|>assistant to=f(x)<|message|>2<|end|>\
                 <|start|>assistant to=all<|channel|>final<|message|>3",
                "",
                "3",
                vec![call(0, "", "1"), call(1, "", "2")],
            ),
            ("plain", "", "plain", vec![]),
            ("<|channel|>ana", "", "", vec![]),
            ("<|channel|>analysis<|message|>cut", "cut", "", vec![]),
        ] {
            // One rule says what is a call, here and where its result is written.
            assert_eq!(recipients(text).len(), calls.len(), "{text}");
            assert_eq!(read(text), (reasoning.to_owned(), content.to_owned(), calls), "{text}");
        }
        // A text that was begun goes on.
        assert_eq!(parse(" and on", Thinking::Unknown, Calls::Harmony, &[]).content, " and on");
    }
}
