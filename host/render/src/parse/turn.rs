//! Splits a turn as it arrives. Owns the `<think>` convention and where calls begin and end; what is in a call is read in
//! `calls`, and turns that consist of messages in `harmony`.

use super::calls::{self, CLOSE_CALL, Calls, OPEN_CALL, PYTHON_TAG};
use super::harmony::Harmony;
use super::held::{Held, Space};
use super::{CLOSE_THINK, OPEN_THINK, Thinking, TurnDelta};
use prl_types::ToolDef;
use std::sync::Arc;

/// Splits the text of a turn as it arrives, wherever it is cut: what it gives adds up to the message of the whole text.
/// Structure is never given as text, and neither is the white space around it.
#[derive(Clone, Debug)]
pub struct TurnStream {
    thinking: Thinking,
    /// Which calls are looked for.
    calls: Calls,
    tools: Arc<[ToolDef]>,
    at: At,
    /// Text that may still turn out to be structure.
    held: Held,
    /// White space at what may be an edge.
    space: Space,
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
    /// At the start of a turn. What would be a call of another kind than `calls` is text. `tools` are those that were offered:
    /// they say which values that are written without quotes are text.
    pub fn new(thinking: Thinking, calls: Calls, tools: Arc<[ToolDef]>) -> Self {
        let at = if thinking == Thinking::Unknown { At::Content } else { At::Start };
        let harmony = (calls == Calls::Harmony).then(|| Harmony::new(thinking == Thinking::Unknown));
        let (held, space) = Default::default();
        TurnStream { thinking, calls, tools, at, held, space, given: false, count: 0, harmony }
    }

    /// Adds text and returns what is now certain.
    pub fn push(&mut self, text: &str) -> TurnDelta {
        if let Some(harmony) = &mut self.harmony {
            return harmony.push(text);
        }
        self.held.push(text);
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
        match self.at {
            At::Call => {
                let block = self.held.take_all().trim();
                delta.tool_calls.push(calls::block(block, self.count, self.calls, &self.tools));
            }
            At::Whole => {
                let (calls, text) = calls::bare(self.held.as_str());
                delta.tool_calls.extend(calls);
                delta.content.push_str(text);
            }
            At::Reasoned => {}
            At::Reasoning => {
                self.reason(None, &mut delta);
            }
            At::Start if self.thinking == Thinking::Opened => {
                let rest = self.space.take() + self.held.as_str();
                delta.reasoning.push_str(rest.trim_matches('\n'));
            }
            At::Content if self.count > 0 => {
                self.say(None, &mut delta);
            }
            At::Start | At::Content | At::Text => {
                delta.content.push_str(&self.space.take());
                delta.content.push_str(self.held.as_str());
            }
        }
        delta
    }

    /// Takes what is certain off the held text; whether there may be more.
    fn step(&mut self, delta: &mut TurnDelta) -> bool {
        match self.at {
            At::Start => {
                let Some(begin) = self.begin() else { return false };
                if begin.starts_with(OPEN_THINK) {
                    self.space.take();
                    self.held.take(OPEN_THINK.len());
                    self.at = At::Reasoning;
                    return true;
                }
                if OPEN_THINK.starts_with(begin) {
                    return false;
                }
                self.at = if self.thinking == Thinking::Opened { At::Reasoning } else { At::Content };
                let space = self.space.take();
                // The text stands on a line of its own, whether reasoning is in front of it or not.
                let own_line = self.calls == Calls::Glm;
                self.held.put_back(if own_line { space.trim_start_matches('\n') } else { &space });
                true
            }
            At::Reasoning => {
                let ended = self.reason(Some(CLOSE_THINK), delta);
                if ended {
                    self.space.take();
                    (self.at, self.given) = (At::Reasoned, false);
                }
                ended
            }
            At::Reasoned => {
                let rest = self.held.as_str();
                let breaks = rest.len() - rest.trim_start_matches('\n').len();
                self.held.take(breaks);
                let more = !self.held.as_str().is_empty();
                if more {
                    self.at = At::Content;
                }
                more
            }
            At::Content if self.calls == Calls::Llama3 => {
                let Some(begin) = self.begin() else { return false };
                if begin.len() < PYTHON_TAG.len() && PYTHON_TAG.starts_with(begin) {
                    return false;
                }
                let call = begin.starts_with('{') || begin.starts_with(PYTHON_TAG);
                self.at = if call { At::Whole } else { At::Text };
                self.held.put_back(&self.space.take());
                true
            }
            At::Content | At::Text if !self.calls.tagged() => {
                delta.content.push_str(self.held.take_all());
                false
            }
            At::Content => {
                let called = self.say(Some(OPEN_CALL), delta);
                if called {
                    self.at = At::Call;
                }
                called
            }
            At::Call => {
                let Some(block) = self.held.take_until(CLOSE_CALL) else { return false };
                delta.tool_calls.push(calls::block(block.trim(), self.count, self.calls, &self.tools));
                self.count += 1;
                self.at = At::Content;
                true
            }
            At::Whole | At::Text => false,
        }
    }

    /// What is held behind the white space at its beginning, which waits; `None` where there is no more.
    fn begin(&mut self) -> Option<&str> {
        let held = self.held.as_str();
        let space = held.len() - held.trim_start().len();
        self.space.push(self.held.take(space));
        Some(self.held.as_str()).filter(|rest| !rest.is_empty())
    }

    /// Gives reasoning up to `end`, or what is certain; whether the end was there. Line breaks around it are not part of it.
    fn reason(&mut self, end: Option<&str>, delta: &mut TurnDelta) -> bool {
        let (text, ended) = self.take(end);
        let text = if self.given { text.as_str() } else { text.trim_start_matches('\n') };
        self.given |= self.space.give(text, |c| c == '\n', &mut delta.reasoning);
        ended
    }

    /// Gives text up to `end`, or what is certain; whether the end was there. The white space around calls is not part of it.
    fn say(&mut self, end: Option<&str>, delta: &mut TurnDelta) -> bool {
        let (text, ended) = self.take(end);
        let mut text = text.as_str();
        if self.count > 0 && !self.given {
            self.space.take();
            text = text.trim_start();
        }
        self.given |= self.space.give(text, char::is_whitespace, &mut delta.content);
        ended
    }

    /// What stands before `mark` and whether it is there; without one, all.
    fn take(&mut self, mark: Option<&str>) -> (String, bool) {
        let Some(mark) = mark else { return (self.held.take_all().to_owned(), false) };
        match self.held.take_until(mark) {
            Some(text) => (text.to_owned(), true),
            None => (self.held.take_before(mark).to_owned(), false),
        }
    }
}
