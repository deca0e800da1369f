//! Llama 3 to 3.3: role headers, trimmed texts, `<|eot_id|>`; tools in the first user message, a call as bare JSON,
//! results under the role `ipython`. Knows nothing of tokens.

use super::pieces::Writer;
use super::{Format, Own};
use crate::RenderError;
use crate::arguments::arguments;
use crate::pyjson;
use crate::template::tool_json;
use prl_types::{Message, Role, ToolDef};

pub(super) const TOKENS: [&str; 3] = ["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"];
/// `<|eom_id|>` ends a turn whose call is to be answered.
pub(super) const ENDS: [&str; 2] = ["<|eot_id|>", "<|eom_id|>"];

const BOS: &str = "<|begin_of_text|>";

/// What Llama 3.1 says at the beginning of every conversation.
const PREAMBLE: &str = "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n";

/// How tools are offered, in front of their definitions.
const TOOLS: &str = "Given the following functions, please respond with a JSON for a function call with its proper \
                     arguments that best answers the given prompt.\n\nRespond in the format {\"name\": function name, \
                     \"parameters\": dictionary of argument name and its value}.Do not use variables.\n\n";

/// One member of the family.
#[derive(Clone, Debug)]
pub(super) struct Llama3 {
    bos: String,
    /// What the system message begins with; `None` for Llama 3, which has a system message only where one is given, and
    /// no tools.
    preamble: Option<String>,
}

impl Llama3 {
    /// Knowledge date and today's are those of the model's template.
    pub fn new(bos: Option<&str>, own: Option<Own>) -> Self {
        let preamble = match own {
            Some(own) => preamble(own),
            None => Some(PREAMBLE.to_owned()),
        };
        Llama3 { bos: bos.unwrap_or(BOS).to_owned(), preamble }
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
        let first = messages.first().map_or(Role::Assistant, |m| m.role);
        let Some(preamble) = &self.preamble else {
            if !tools.is_empty() {
                return Err(format.no_place(0, "tools"));
            }
            out.scaffold(first, messages.first().map(|_| 0), &self.bos);
            return self.write_messages(format, out, messages, 0);
        };
        out.scaffold(Role::System, by, &self.bos);
        out.scaffold(Role::System, by, &header("system"));
        if !tools.is_empty() {
            out.scaffold(Role::System, by, "Environment: ipython\n");
        }
        out.scaffold(Role::System, by, preamble);
        if let Some(message) = said {
            out.given(Role::System, 0, message.content.trim());
        }
        out.scaffold(Role::System, by, ENDS[0]);

        let mut start = usize::from(said.is_some());
        if !tools.is_empty() {
            // Definitions stand in the first user message.
            let Some(message) = messages.get(start).filter(|m| m.role == Role::User) else {
                return Err(format.no_place(start, "tools before the first user message, which is missing"));
            };
            out.scaffold(Role::User, Some(start), &header("user"));
            out.scaffold(Role::User, Some(start), TOOLS);
            for tool in tools {
                let tool = pyjson::dumps_indented(&tool_json(tool), 4);
                out.scaffold(Role::User, Some(start), &format!("{tool}\n\n"));
            }
            out.given(Role::User, start, message.content.trim());
            out.scaffold(Role::User, Some(start), ENDS[0]);
            start += 1;
        }
        self.write_messages(format, out, messages, start)
    }

    /// Writes messages from `start` on.
    pub fn write_messages(
        &self,
        format: &Format,
        out: &mut Writer,
        messages: &[Message],
        start: usize,
    ) -> Result<(), RenderError> {
        for (n, message) in messages.iter().enumerate().skip(start) {
            let (role, by) = (message.role, Some(n));
            match role {
                Role::System | Role::User => {
                    out.scaffold(role, by, &header(role.as_str()));
                    out.given(role, n, message.content.trim());
                    out.scaffold(role, by, ENDS[0]);
                }
                Role::Tool => {
                    // A result is a JSON string.
                    let quoted = pyjson::dumps(&message.content.as_str().into());
                    out.scaffold(role, by, &header("ipython"));
                    out.scaffold(role, by, "\"");
                    out.given(role, n, &quoted[1..quoted.len() - 1]);
                    out.scaffold(role, by, "\"");
                    out.scaffold(role, by, ENDS[0]);
                }
                Role::Assistant => {
                    self.invite(out, by);
                    self.answer(format, out, message, n)?;
                }
            }
        }
        Ok(())
    }

    /// What invites the assistant to speak.
    pub fn invite(&self, out: &mut Writer, by: Option<usize>) {
        out.scaffold(Role::Assistant, by, &header("assistant"));
    }

    fn answer(&self, format: &Format, out: &mut Writer, message: &Message, n: usize) -> Result<(), RenderError> {
        let (reasoning, content) = format.thoughts(message, n)?;
        if let Some(block) = format.think_block(reasoning) {
            out.sampled(n, false, &block);
        }
        let content = content.trim();
        if !content.is_empty() && !message.tool_calls.is_empty() {
            return Err(format.no_place(n, "text beside a tool call"));
        }
        out.sampled(n, true, content);
        for (i, call) in message.tool_calls.iter().enumerate() {
            let lead = if i > 0 { "; " } else { "" };
            let parameters = pyjson::dump(&arguments(call));
            out.sampled(n, false, &format!("{lead}{{\"name\": \"{}\", \"parameters\": {parameters}}}", call.name));
        }
        out.sampled(n, false, ENDS[0]);
        Ok(())
    }
}

fn header(role: &str) -> String {
    format!("<|start_header_id|>{role}<|end_header_id|>\n\n")
}

/// What the template puts into the system message of a conversation without one.
fn preamble(own: Own) -> Option<String> {
    let text = own(&[Message::text(Role::User, "Wkvbz")], &[], false)?;
    let (_, after) = text.split_once(&header("system"))?;
    let (preamble, rest) = after.split_once(ENDS[0])?;
    rest.starts_with(&header("user")).then(|| preamble.to_owned())
}
