//! Reads an assistant turn, whole or as it arrives: reasoning, text, tool calls. Owns the `<think>` convention and where a
//! turn's calls begin and end; what is in a call is read in `calls`.

mod calls;
mod harmony;

pub use calls::Calls;
use calls::{CLOSE_CALL, OPEN_CALL, PYTHON_TAG};
use harmony::{CHANNEL, CONSTRAIN, END, Harmony, MESSAGE, START};
use prl_types::{Message, Role, ToolCall};

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

/// Splits the text of one turn, stop token already removed.
pub(crate) fn parse(text: &str, thinking: Thinking, calls: Calls) -> Message {
    let mut stream = TurnStream::new(thinking, calls);
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

/// Splits the text of a turn as it arrives, wherever it is cut: what it gives adds up to the message of the whole text.
/// Structure is never given as text, and neither is the white space around it.
#[derive(Clone, Debug)]
pub struct TurnStream {
    thinking: Thinking,
    /// Which calls are looked for.
    calls: Calls,
    at: At,
    /// Text that may still turn out to be structure, or white space at an edge.
    held: String,
    /// White space in front of the call under way.
    space: String,
    /// Whether anything of the part under way was given.
    given: bool,
    /// Calls so far.
    count: usize,
    /// Reads a turn that consists of messages.
    harmony: Option<Harmony>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Start,
    Reasoning,
    Reasoned,
    Content,
    Call,
    /// Within a turn that may be calls as a whole.
    Whole,
    /// In text that cannot turn into a call any more.
    Text,
}

impl TurnStream {
    /// At the start of a turn. What would be a call of another kind than `calls` is text.
    pub fn new(thinking: Thinking, calls: Calls) -> Self {
        let at = if thinking == Thinking::Unknown { At::Content } else { At::Start };
        let harmony = (calls == Calls::Harmony).then(|| Harmony::new(thinking == Thinking::Unknown));
        TurnStream { thinking, calls, at, held: String::new(), space: String::new(), given: false, count: 0, harmony }
    }

    /// Adds text and returns what is now certain.
    pub fn push(&mut self, text: &str) -> TurnDelta {
        if let Some(harmony) = &mut self.harmony {
            return harmony.push(text);
        }
        self.held.push_str(text);
        let mut delta = TurnDelta::default();
        while self.step(&mut delta) {}
        delta
    }

    /// The rest.
    pub fn finish(mut self) -> TurnDelta {
        if let Some(harmony) = self.harmony {
            return harmony.finish();
        }
        let mut delta = TurnDelta::default();
        let held = std::mem::take(&mut self.held);
        match (self.at, self.thinking) {
            (At::Start, Thinking::Opened) => delta.reasoning.push_str(held.trim_matches('\n')),
            (At::Start, _) => delta.content.push_str(&held),
            (At::Reasoning, _) => delta.reasoning.push_str(held.trim_end_matches('\n')),
            (At::Reasoned, _) => {}
            (At::Whole, _) => {
                let (calls, text) = calls::bare(&held);
                delta.tool_calls.extend(calls);
                delta.content.push_str(text);
            }
            (At::Text, _) => delta.content.push_str(&held),
            (At::Content, _) if self.count == 0 => delta.content.push_str(&held),
            (At::Content, _) => delta.content.push_str(self.edge(held.trim_end())),
            (At::Call, _) => delta.tool_calls.push(calls::block(held.trim(), self.count, self.calls)),
        }
        delta
    }

    /// Takes what is certain off the held text; whether there may be more.
    fn step(&mut self, delta: &mut TurnDelta) -> bool {
        match self.at {
            At::Start => {
                let begin = self.held.trim_start();
                if let Some(rest) = begin.strip_prefix(OPEN_THINK) {
                    (self.held, self.at) = (rest.to_string(), At::Reasoning);
                    true
                } else if OPEN_THINK.starts_with(begin) {
                    false
                } else {
                    self.at = if self.thinking == Thinking::Opened { At::Reasoning } else { At::Content };
                    // The text stands on a line of its own, whether reasoning is in front of it or not.
                    if self.calls == Calls::Glm {
                        self.held = self.held.trim_start_matches('\n').to_owned();
                    }
                    true
                }
            }
            At::Reasoning => {
                if !self.given {
                    self.held.drain(..self.held.len() - self.held.trim_start_matches('\n').len());
                }
                if let Some((inside, rest)) = self.held.split_once(CLOSE_THINK) {
                    delta.reasoning.push_str(inside.trim_end_matches('\n'));
                    (self.held, self.at, self.given) = (rest.to_string(), At::Reasoned, false);
                    return true;
                }
                let certain =
                    self.held[..self.held.len() - begun(&self.held, CLOSE_THINK)].trim_end_matches('\n').len();
                self.given |= certain > 0;
                delta.reasoning.extend(self.held.drain(..certain));
                false
            }
            At::Reasoned => {
                let rest = self.held.trim_start_matches('\n');
                let more = !rest.is_empty();
                self.held = rest.to_string();
                if more {
                    self.at = At::Content;
                }
                more
            }
            At::Content if self.calls == Calls::Llama3 => {
                let begin = self.held.trim_start();
                if begin.is_empty() || (begin.len() < PYTHON_TAG.len() && PYTHON_TAG.starts_with(begin)) {
                    return false;
                }
                let call = begin.starts_with('{') || begin.starts_with(PYTHON_TAG);
                self.at = if call { At::Whole } else { At::Text };
                true
            }
            At::Whole => false,
            At::Content | At::Text if !self.calls.tagged() => {
                delta.content.push_str(&self.held);
                self.held.clear();
                false
            }
            At::Text => false,
            At::Content => {
                if let Some((before, rest)) = self.held.split_once(OPEN_CALL) {
                    // White space stays held: whether it is an edge shows later.
                    let text = before.trim_end();
                    let space = before[text.len()..].to_string();
                    delta.content.push_str(self.edge(text));
                    self.given |= !text.is_empty();
                    self.held = rest.to_string();
                    self.at = At::Call;
                    self.space = space;
                    return true;
                }
                let certain = self.held[..self.held.len() - begun(&self.held, OPEN_CALL)].trim_end().len();
                let text: String = self.held.drain(..certain).collect();
                delta.content.push_str(self.edge(&text));
                self.given |= certain > 0;
                false
            }
            At::Call => match self.held.split_once(CLOSE_CALL) {
                Some((block, rest)) => {
                    delta.tool_calls.push(calls::block(block.trim(), self.count, self.calls));
                    self.count += 1;
                    self.held = std::mem::take(&mut self.space) + rest;
                    self.at = At::Content;
                    true
                }
                None => false,
            },
        }
    }

    /// Text at the beginning of what follows a call loses the white space in front of it.
    fn edge<'a>(&self, text: &'a str) -> &'a str {
        if self.count > 0 && !self.given { text.trim_start() } else { text }
    }
}

/// Length of the longest end of `text` that `mark` may begin with.
fn begun(text: &str, mark: &str) -> usize {
    (1..mark.len()).rev().find(|n| text.ends_with(&mark[..*n])).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(text: &str, thinking: Thinking) -> Message {
        super::parse(text, thinking, Calls::Hermes)
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
            let kinds = [Calls::Hermes, Calls::Llama3, Calls::Xml, Calls::Glm, Calls::Harmony, Calls::None];
            let thinkings = [Thinking::Unknown, Thinking::Free, Thinking::Opened];
            for (thinking, calls) in thinkings.into_iter().flat_map(|t| kinds.map(|c| (t, c))) {
                let whole = super::parse(&text, thinking, calls);
                let mut stream = TurnStream::new(thinking, calls);
                let mut deltas: Vec<TurnDelta> = ends.windows(2).map(|w| stream.push(&text[w[0]..w[1]])).collect();
                deltas.push(stream.finish());
                let sum = |part: &dyn Fn(&TurnDelta) -> &str| deltas.iter().map(part).collect::<String>();
                prop_assert_eq!(sum(&|d| &d.content), whole.content.as_str());
                prop_assert_eq!(sum(&|d| &d.reasoning), whole.reasoning.clone().unwrap_or_default());
                prop_assert!(!calls.tagged() || !whole.content.contains(OPEN_CALL));
                prop_assert!(calls != Calls::None || whole.tool_calls.is_empty());
                let calls: Vec<ToolCall> = deltas.into_iter().flat_map(|d| d.tool_calls).collect();
                prop_assert_eq!(calls, whole.tool_calls);
            }
        }
    }
}
