//! gpt-oss: messages of `<|start|>`, who, `<|channel|>`, `<|message|>` and `<|end|>`; reasoning, calls and answers of a turn are
//! messages of their own. Knows nothing of tokens; how tools are shown is in `typescript`.

use super::pieces::Writer;
use super::{Format, Own, typescript};
use crate::RenderError;
use crate::arguments::arguments;
use crate::parse::{FUNCTIONS, is_name};
use crate::pyjson;
use prl_types::{Message, Role, ToolDef};

pub(super) const TOKENS: [&str; 6] = [START, "<|channel|>", "<|message|>", "<|end|>", RETURN, CALL];
/// What ends a turn that answers, and one that calls.
pub(super) const ENDS: [&str; 2] = [RETURN, CALL];
/// Begins every message.
pub(super) const START: &str = "<|start|>";

const RETURN: &str = "<|return|>";
const CALL: &str = "<|call|>";

/// The system message where there is no template to say it; without a date.
const SYSTEM: &str = "You are ChatGPT, a large language model trained by OpenAI.\nKnowledge cutoff: 2024-06\n\nReasoning: \
                      medium\n\n# Valid channels: analysis, commentary, final. Channel must be included for every message.";
/// What it says where tools are offered.
const TOOLS: &str = "\nCalls to these tools must go to the commentary channel: 'functions'.";

/// The family's only member.
#[derive(Clone, Debug)]
pub(super) struct Harmony {
    system: String,
}

impl Harmony {
    /// The system message, with date and effort, is that of the model's template.
    pub fn new(own: Option<Own>) -> Self {
        let said = own.and_then(|own| own(&[Message::text(Role::User, "Wkvbz")], &[], false));
        let system = said.as_deref().and_then(|text| {
            let (system, _) = text.strip_prefix("<|start|>system<|message|>")?.split_once("<|end|>")?;
            Some(system.to_owned())
        });
        Harmony { system: system.unwrap_or_else(|| SYSTEM.to_owned()) }
    }

    /// Writes a conversation from its beginning.
    pub fn write(
        &self,
        format: &Format,
        out: &mut Writer,
        messages: &[Message],
        tools: &[ToolDef],
    ) -> Result<(), RenderError> {
        let said = messages.first().filter(|m| m.role == Role::System);
        let by = said.map(|_| 0);
        let more = if tools.is_empty() { "" } else { TOOLS };
        out.scaffold(Role::System, None, &format!("<|start|>system<|message|>{}{more}<|end|>", self.system));
        let said = said.filter(|message| !message.content.is_empty());
        if said.is_some() || !tools.is_empty() {
            out.scaffold(Role::System, by, "<|start|>developer<|message|>");
            if let Some(message) = said {
                instruct(out, message, 0);
            }
            if !tools.is_empty() {
                out.scaffold(Role::System, by, &format!("# Tools\n\n{}", typescript::namespace(tools)));
            }
            out.scaffold(Role::System, by, "<|end|>");
        }
        let start = usize::from(by.is_some());
        self.write_messages(format, out, messages, start, &[])
    }

    /// Writes messages from `start` on, behind a turn whose calls were to the tools `called`.
    pub fn write_messages(
        &self,
        format: &Format,
        out: &mut Writer,
        messages: &[Message],
        start: usize,
        called: &[String],
    ) -> Result<(), RenderError> {
        let mut called = called.to_vec();
        let mut told = 0;
        for (n, message) in messages.iter().enumerate().skip(start) {
            let (role, by) = (message.role, Some(n));
            match role {
                Role::System => {
                    out.scaffold(role, by, "<|start|>developer<|message|>");
                    instruct(out, message, n);
                    out.scaffold(role, by, "<|end|>");
                }
                Role::User => {
                    out.scaffold(role, by, "<|start|>user<|message|>");
                    out.given(role, n, &message.content);
                    out.scaffold(role, by, "<|end|>");
                }
                Role::Tool => {
                    // Results are in the order of the calls; what is more is the last one's.
                    let Some(tool) = called.get(told).or(called.last()) else {
                        return Err(format.no_place(n, "a result without a call in the turn before it"));
                    };
                    told += 1;
                    result(out, tool, message, n);
                }
                Role::Assistant => {
                    self.invite(out, by);
                    answer(format, out, message, n)?;
                    called = message.tool_calls.iter().map(|call| format!("{FUNCTIONS}{}", call.name)).collect();
                    told = 0;
                }
            }
        }
        Ok(())
    }

    /// What invites the assistant to speak.
    pub fn invite(&self, out: &mut Writer, by: Option<usize>) {
        out.scaffold(Role::Assistant, by, "<|start|>assistant");
    }
}

/// Whether a message is of an assistant's turn, by its text.
pub(super) fn is_assistants(message: &str) -> bool {
    message.strip_prefix(START).is_some_and(|rest| rest.starts_with("assistant"))
}

/// What ends a turn that was cut off and whose calls were to the tools `called`.
pub(super) fn end_of_cut(called: &[String]) -> &'static str {
    if called.is_empty() { RETURN } else { CALL }
}

/// Writes a result of `tool`. That of a function is a JSON string; the model's own tools answer with text, in the channel of its
/// thoughts.
fn result(out: &mut Writer, tool: &str, message: &Message, n: usize) {
    let (role, by) = (Role::Tool, Some(n));
    if !tool.starts_with(FUNCTIONS) {
        out.scaffold(role, by, &format!("<|start|>{tool} to=assistant<|channel|>analysis<|message|>"));
        out.given(role, n, &message.content);
        return out.scaffold(role, by, "<|end|>");
    }
    let quoted = pyjson::dumps(&message.content.as_str().into());
    out.scaffold(role, by, &format!("<|start|>{tool} to=assistant<|channel|>commentary<|message|>\""));
    out.given(role, n, &quoted[1..quoted.len() - 1]);
    out.scaffold(role, by, "\"<|end|>");
}

fn instruct(out: &mut Writer, message: &Message, n: usize) {
    out.scaffold(Role::System, Some(n), "# Instructions\n\n");
    out.given(Role::System, n, &message.content);
    out.scaffold(Role::System, Some(n), "\n\n");
}

/// Writes an answer behind `<|start|>assistant`: reasoning in the analysis channel; text in the final one, or in front of a call
/// in the commentary.
fn answer(format: &Format, out: &mut Writer, message: &Message, n: usize) -> Result<(), RenderError> {
    let again = |out: &mut Writer| out.sampled(n, false, "<|end|><|start|>assistant");
    if let Some(reasoning) = message.reasoning.as_deref().filter(|reasoning| !reasoning.is_empty()) {
        out.sampled(n, false, &format!("<|channel|>analysis<|message|>{reasoning}"));
        again(out);
    }
    let call = match message.tool_calls.as_slice() {
        [] => {
            out.sampled(n, false, "<|channel|>final<|message|>");
            out.sampled(n, true, &message.content);
            out.sampled(n, false, RETURN);
            return Ok(());
        }
        [call] => call,
        _ => return Err(format.no_place(n, "several tool calls in one turn")),
    };
    // A malformed call has no name; any other must be read as it is written.
    if !call.name.is_empty() && !is_name(&call.name) {
        return Err(format.no_place(n, "a tool call whose name is more than letters, digits and any of _-.:/"));
    }
    if !message.content.is_empty() {
        out.sampled(n, false, "<|channel|>commentary<|message|>");
        out.sampled(n, true, &message.content);
        again(out);
    }
    let arguments = pyjson::dump(&arguments(call));
    let call = format!(" to={FUNCTIONS}{}<|channel|>commentary json<|message|>{arguments}{CALL}", call.name);
    out.sampled(n, false, &call);
    Ok(())
}
