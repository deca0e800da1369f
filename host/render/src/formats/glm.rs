//! GLM-4.5: role tokens, a think block in every turn, tools in `<tools>`, a call as its name with `<arg_key>` and
//! `<arg_value>`, results in `<tool_response>`. A turn has no end of its own: the model ends it with the token that begins the
//! next one. Knows nothing of tokens.

use super::pieces::Writer;
use super::{Format, Think};
use crate::RenderError;
use crate::arguments::each_argument;
use crate::pyjson;
use crate::template::tool_json;
use prl_types::{Message, Role, ToolCall, ToolDef};

pub(super) const TOKENS: [&str; 6] = ["[gMASK]", "<sop>", "<|system|>", USER, "<|assistant|>", OBSERVATION];
/// What ends a turn that speaks to the user, one that calls, and all else.
pub(super) const ENDS: [&str; 3] = [USER, OBSERVATION, "<|endoftext|>"];

const USER: &str = "<|user|>";
const OBSERVATION: &str = "<|observation|>";
/// Behind what the user says, where the model shall not think.
const NO_THINK: &str = "/nothink";

/// How tools are offered, around their definitions.
const TOOLS: (&str, &str) = (
    "<|system|>\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided with \
     function signatures within <tools></tools> XML tags:\n<tools>\n",
    "</tools>\n\nFor each function call, output the function name and arguments within the following XML format:\n\
     <tool_call>{function-name}\n<arg_key>{arg-key-1}</arg_key>\n<arg_value>{arg-value-1}</arg_value>\n\
     <arg_key>{arg-key-2}</arg_key>\n<arg_value>{arg-value-2}</arg_value>\n...\n</tool_call>",
);

/// The family's only member.
#[derive(Clone, Debug)]
pub(super) struct Glm;

impl Glm {
    /// Writes a conversation from its beginning.
    pub fn write(
        &self,
        format: &Format,
        out: &mut Writer,
        messages: &[Message],
        tools: &[ToolDef],
    ) -> Result<(), RenderError> {
        out.scaffold(Role::System, None, "[gMASK]<sop>");
        if !tools.is_empty() {
            let one = |tool: &ToolDef| format!("{}\n", pyjson::dumps(&tool_json(tool)));
            let tools: String = tools.iter().map(one).collect();
            out.scaffold(Role::System, None, &format!("{}{tools}{}", TOOLS.0, TOOLS.1));
        }
        self.write_messages(format, out, messages, None)
    }

    /// Writes messages, behind an assistant's turn where there is its `end`.
    pub fn write_messages(
        &self,
        format: &Format,
        out: &mut Writer,
        messages: &[Message],
        end: Option<&str>,
    ) -> Result<(), RenderError> {
        let mut end = end;
        for (n, message) in messages.iter().enumerate() {
            let (role, by) = (message.role, Some(n));
            let (opening, told) = match role {
                Role::System => ("<|system|>", false),
                Role::User => (USER, false),
                Role::Assistant => ("", false),
                Role::Tool => (OBSERVATION, n > 0 && messages[n - 1].role == Role::Tool),
            };
            // The end of the turn before may be it, and results share one.
            if end.take() != Some(opening) && !told {
                out.scaffold(role, by, opening);
            }
            match role {
                Role::System | Role::User => {
                    out.scaffold(role, by, "\n");
                    out.given(role, n, &message.content);
                    if role == Role::User && format.think == Think::Closed && !message.content.ends_with(NO_THINK) {
                        out.scaffold(role, by, NO_THINK);
                    }
                }
                Role::Tool => {
                    out.scaffold(role, by, "\n<tool_response>\n");
                    out.given(role, n, &message.content);
                    out.scaffold(role, by, "\n</tool_response>");
                }
                Role::Assistant => {
                    self.invite(format, out, by);
                    end = Some(self.answer(format, out, message, n)?);
                }
            }
        }
        Ok(())
    }

    /// What invites the assistant to speak.
    pub fn invite(&self, format: &Format, out: &mut Writer, by: Option<usize>) {
        let closed = if format.think == Think::Closed { "\n<think></think>" } else { "" };
        out.scaffold(Role::Assistant, by, &format!("<|assistant|>{closed}"));
    }

    /// Writes an answer; gives the token that ends it.
    fn answer(
        &self,
        format: &Format,
        out: &mut Writer,
        message: &Message,
        n: usize,
    ) -> Result<&'static str, RenderError> {
        let (reasoning, content) = format.thoughts(message, n)?;
        let (reasoning, content) = (reasoning.trim(), content.trim());
        // The prompt has the empty block already.
        if format.think != Think::Closed || !reasoning.is_empty() {
            out.sampled(n, false, &format!("\n<think>{reasoning}</think>"));
        }
        if !content.is_empty() {
            out.sampled(n, false, "\n");
            out.sampled(n, true, content);
        }
        for call in &message.tool_calls {
            out.sampled(n, false, &written(call));
        }
        let end = if message.tool_calls.is_empty() { USER } else { OBSERVATION };
        out.sampled(n, false, end);
        Ok(end)
    }
}

/// Whether `next` begins with the token that ends `message`, where that is an answer.
pub(super) fn leads_on(message: &Message, next: &Message) -> bool {
    let role = if message.tool_calls.is_empty() { Role::User } else { Role::Tool };
    message.role != Role::Assistant || next.role == role
}

/// A call. Arguments that are no JSON object stand behind the name as they are.
fn written(call: &ToolCall) -> String {
    let body = each_argument(call, |key, value| {
        let value = value.as_str().map_or_else(|| pyjson::dump(value), str::to_owned);
        format!("<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n")
    });
    format!("\n<tool_call>{}\n{body}</tool_call>", call.name)
}
