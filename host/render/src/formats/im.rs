//! ChatML and what Qwen made of it: `<|im_start|>role`, text, `<|im_end|>`; tools in `<tools>`, calls in `<tool_call>`,
//! results in `<tool_response>` within a user's turn. Knows nothing of tokens; how Qwen3.5 writes tools is in `xml`.

use super::pieces::Writer;
use super::xml::{self, Literals};
use super::{Format, FormatName, Own, Think};
use crate::RenderError;
use crate::arguments::arguments;
use crate::parse::Calls;
use crate::pyjson;
use crate::template::tool_json;
use prl_types::{Message, Role, ToolDef};

pub(super) const TOKENS: [&str; 2] = ["<|im_start|>", "<|im_end|>"];
pub(super) const ENDS: [&str; 1] = ["<|im_end|>"];

/// What Qwen2.5 says where no system message is given.
const QWEN25_SYSTEM: &str = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.";

/// How tools are offered, around their definitions.
const TOOLS: (&str, &str) = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided with function \
     signatures within <tools></tools> XML tags:\n<tools>",
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments within \
     <tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": <function-name>, \"arguments\": \
     <args-json-object>}\n</tool_call>",
);

/// How a member of the family writes tools, and texts.
#[derive(Clone, Debug)]
enum Style {
    /// Tools behind the system message, calls as JSON, texts as they are.
    Json {
        /// Whether arguments that are no JSON object are written as a JSON string.
        quoted: bool,
    },
    /// Tools in front of the system message, calls as XML, texts without white space around them.
    Xml(Literals),
}

/// One member of the family.
#[derive(Clone, Debug)]
pub(super) struct Im {
    /// The system message of conversations that have none.
    system: Option<String>,
    style: Style,
}

impl Im {
    /// The system message of conversations without one is that of the model's template.
    pub fn new(name: FormatName, own: Option<Own>) -> Self {
        let system = match (own, name) {
            (Some(own), _) => default_system(own),
            (None, FormatName::Qwen25) => Some(QWEN25_SYSTEM.to_owned()),
            (None, _) => None,
        };
        let style = match name {
            FormatName::Qwen35 => Style::Xml(own.map_or(Literals::Python, xml::literals)),
            _ => Style::Json { quoted: name == FormatName::Qwen25 },
        };
        Im { system, style }
    }

    /// How the model writes calls.
    pub fn calls(&self) -> Calls {
        match self.style {
            Style::Json { .. } => Calls::Hermes,
            Style::Xml(_) => Calls::Xml,
        }
    }

    /// A message's text as the family writes it.
    fn text<'a>(&self, content: &'a str) -> &'a str {
        match self.style {
            Style::Json { .. } => content,
            Style::Xml(_) => content.trim(),
        }
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
        if matches!(self.style, Style::Xml(_)) && !tools.is_empty() {
            out.scaffold(Role::System, by, &format!("<|im_start|>system\n{}", xml::offered(tools)));
            if let Some(text) = said.map(|message| self.text(&message.content)).filter(|text| !text.is_empty()) {
                out.scaffold(Role::System, by, "\n\n");
                out.given(Role::System, 0, text);
            }
            out.scaffold(Role::System, by, "<|im_end|>\n");
            return self.write_messages(format, out, messages, usize::from(said.is_some()), true);
        }
        if tools.is_empty() {
            if let (None, Some(system)) = (said, &self.system) {
                out.scaffold(Role::System, None, &format!("<|im_start|>system\n{system}<|im_end|>\n"));
            }
            return self.write_messages(format, out, messages, 0, true);
        }
        out.scaffold(Role::System, by, "<|im_start|>system\n");
        match (said, &self.system) {
            (Some(message), _) => out.given(Role::System, 0, &message.content),
            (None, Some(system)) => out.scaffold(Role::System, None, system),
            (None, None) => {}
        }
        if said.is_some() || self.system.is_some() {
            out.scaffold(Role::System, by, "\n\n");
        }
        out.scaffold(Role::System, by, TOOLS.0);
        for tool in tools {
            out.scaffold(Role::System, by, &format!("\n{}", pyjson::dumps(&tool_json(tool))));
        }
        out.scaffold(Role::System, by, TOOLS.1);
        out.scaffold(Role::System, by, "<|im_end|>\n");
        self.write_messages(format, out, messages, usize::from(said.is_some()), true)
    }

    /// Writes messages from `start` on; `whole` says whether the first of them begins the conversation.
    pub fn write_messages(
        &self,
        format: &Format,
        out: &mut Writer,
        messages: &[Message],
        start: usize,
        whole: bool,
    ) -> Result<(), RenderError> {
        let tool_at = |n: usize| messages.get(n).is_some_and(|m| m.role == Role::Tool);
        for (n, message) in messages.iter().enumerate().skip(start) {
            let (role, by) = (message.role, Some(n));
            match role {
                Role::System if (n > 0 || !whole) && matches!(self.style, Style::Xml(_)) => {
                    return Err(format.no_place(n, "a system message behind the first message"));
                }
                Role::System | Role::User => {
                    out.scaffold(role, by, &format!("<|im_start|>{}\n", role.as_str()));
                    out.given(role, n, self.text(&message.content));
                    out.scaffold(role, by, "<|im_end|>\n");
                }
                Role::Tool => {
                    if n == 0 || !tool_at(n - 1) {
                        out.scaffold(role, by, "<|im_start|>user");
                    }
                    out.scaffold(role, by, "\n<tool_response>\n");
                    out.given(role, n, self.text(&message.content));
                    out.scaffold(role, by, "\n</tool_response>");
                    if !tool_at(n + 1) {
                        out.scaffold(role, by, "<|im_end|>\n");
                    }
                }
                Role::Assistant => {
                    self.invite(format, out, by);
                    self.answer(format, out, message, n)?;
                    self.close(out, by);
                }
            }
        }
        Ok(())
    }

    /// What invites the assistant to speak.
    pub fn invite(&self, format: &Format, out: &mut Writer, by: Option<usize>) {
        out.scaffold(Role::Assistant, by, "<|im_start|>assistant\n");
        match format.think {
            Think::Closed => out.scaffold(Role::Assistant, by, "<think>\n\n</think>\n\n"),
            Think::Opened => out.scaffold(Role::Assistant, by, "<think>\n"),
            Think::Never | Think::Some | Think::Always => {}
        }
    }

    /// What follows the token that ends an assistant's turn.
    pub fn close(&self, out: &mut Writer, by: Option<usize>) {
        out.scaffold(Role::Assistant, by, "\n");
    }

    fn answer(&self, format: &Format, out: &mut Writer, message: &Message, n: usize) -> Result<(), RenderError> {
        let (reasoning, content) = format.thoughts(message, n)?;
        let (reasoning, content) = (self.text(reasoning), self.text(content));
        if let Some(block) = format.think_block(reasoning) {
            out.sampled(n, false, &block);
        }
        let block = matches!(format.think, Think::Always | Think::Closed | Think::Opened) || !reasoning.is_empty();
        out.sampled(n, true, if block { content.trim_start_matches('\n') } else { content });
        for (i, call) in message.tool_calls.iter().enumerate() {
            let first = i == 0;
            let call = match self.style {
                Style::Json { quoted } => {
                    let lead = if first && content.is_empty() { "" } else { "\n" };
                    let arguments = arguments(call);
                    let arguments = match arguments.as_str() {
                        Some(text) if !quoted => text.to_owned(),
                        _ => pyjson::dump(&arguments),
                    };
                    format!(
                        "{lead}<tool_call>\n{{\"name\": \"{}\", \"arguments\": {arguments}}}\n</tool_call>",
                        call.name
                    )
                }
                Style::Xml(literals) => {
                    let lead = match (first, content.is_empty()) {
                        (true, true) => "",
                        (true, false) => "\n\n",
                        (false, _) => "\n",
                    };
                    format!("{lead}{}", xml::call(call, literals))
                }
            };
            out.sampled(n, false, &call);
        }
        out.sampled(n, false, ENDS[0]);
        Ok(())
    }
}

/// What the template writes as the system message of a conversation without one.
fn default_system(own: Own) -> Option<String> {
    let user = "Wkvbz";
    let text = own(&[Message::text(Role::User, user)], &[], false)?;
    let before = text.split_once(&format!("<|im_start|>user\n{user}"))?.0;
    let system = before.strip_prefix("<|im_start|>system\n")?.strip_suffix("<|im_end|>\n")?;
    (!system.contains("<|im_start|>")).then(|| system.to_owned())
}
