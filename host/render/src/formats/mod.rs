//! Hand-written formats: what a family of models puts around messages, written so that a turn's ids never depend on what
//! follows it. Owns the list of formats, what one must be able to do, and how one is made for a model folder; the ids of
//! what it writes are made in `pieces`.

mod glm;
mod harmony;
mod im;
mod llama3;
pub(crate) mod pieces;
pub(crate) mod probes;
mod typescript;
mod xml;

use crate::parse::{Calls, Thinking};
use crate::{RenderError, Tokenizer};
use glm::Glm;
use harmony::Harmony;
use im::Im;
use llama3::Llama3;
use pieces::Writer;
use prl_types::{Message, Role, ToolDef};

pub(crate) use probes::choose;

/// The families that have a format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FormatName {
    /// Qwen3: a think block in every turn, which the prompt opens where the model's template does; tools as Qwen2.5.
    Qwen3,
    /// Qwen3.5 and 3.6: a think block in every turn as Qwen3, which the prompt opens or closes; calls as XML.
    Qwen35,
    /// Qwen2.5: ChatML, tools in `<tools>` and `<tool_call>`.
    Qwen25,
    /// Llama 3, 3.1, 3.2, 3.3: headers, calls as bare JSON.
    Llama3,
    /// GLM-4.5: a think block in every turn, calls as keys and values; a turn ends with the token that begins the next one.
    Glm45,
    /// gpt-oss: reasoning, text and a call are messages of their own in a turn.
    GptOss,
    /// ChatML as SmolLM2 and many others have it; tools as Qwen2.5.
    ChatMl,
}

impl FormatName {
    /// All of them, in the order in which they are tried.
    pub const ALL: [FormatName; 7] = [
        FormatName::Qwen3,
        FormatName::Qwen35,
        FormatName::ChatMl,
        FormatName::Qwen25,
        FormatName::Llama3,
        FormatName::Glm45,
        FormatName::GptOss,
    ];

    /// The name in a configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            FormatName::Qwen3 => "qwen3",
            FormatName::Qwen35 => "qwen3.5",
            FormatName::Qwen25 => "qwen2.5",
            FormatName::Llama3 => "llama3",
            FormatName::Glm45 => "glm-4.5",
            FormatName::GptOss => "gpt-oss",
            FormatName::ChatMl => "chatml",
        }
    }

    /// Whether its models can be told whether to think.
    pub fn thinks(self) -> bool {
        matches!(self, FormatName::Qwen3 | FormatName::Qwen35 | FormatName::Glm45)
    }
}

/// What shapes a format beside its name.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Settings {
    /// Whether the model may think; `false` closes the think block in its prompt. For formats that can be told.
    pub thinking: Option<bool>,
    /// Whether turns have think blocks where the family itself has none.
    pub think_blocks: bool,
}

/// How an assistant's turn shows reasoning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Think {
    /// Not at all.
    Never,
    /// Where there is any.
    Some,
    /// In a block that every turn has.
    Always,
    /// The prompt has an empty block already.
    Closed,
    /// The prompt opens the block.
    Opened,
}

#[derive(Clone, Debug)]
enum Family {
    Im(Im),
    Llama3(Llama3),
    Glm(Glm),
    Harmony(Harmony),
}

/// One format, made for one model folder.
#[derive(Clone, Debug)]
pub(crate) struct Format {
    name: FormatName,
    think: Think,
    family: Family,
}

/// Renders a conversation with the model's own template, with or without the generation prompt; `None` where it refuses.
pub(crate) type Own<'a> = &'a dyn Fn(&[Message], &[ToolDef], bool) -> Option<String>;

impl Format {
    /// The format for a tokenizer. What the model's own template says without being asked (a system message, a date) is
    /// taken over from it; `bos` is the folder's BOS token.
    ///
    /// # Errors
    /// The vocabulary lacks the format's tokens, or the tokenizer cannot encode a conversation piece by piece.
    pub fn new(
        name: FormatName,
        settings: Settings,
        tokenizer: &Tokenizer,
        bos: Option<&str>,
        own: Option<Own>,
    ) -> Result<Self, RenderError> {
        let think = match (name, settings.thinking, settings.think_blocks) {
            (name, Some(false), _) if name.thinks() => Think::Closed,
            (FormatName::Qwen3, _, _) if own.is_some_and(|own| invites(own, "<think>\n")) => Think::Opened,
            (FormatName::Qwen35, _, _) if own.is_some_and(|own| invites(own, "<think>\n\n</think>\n\n")) => {
                Think::Closed
            }
            (FormatName::Qwen35, _, _) => Think::Opened,
            (FormatName::Qwen3 | FormatName::Glm45, _, _) => Think::Always,
            (FormatName::GptOss, _, _) => Think::Some,
            (_, _, true) => Think::Some,
            (_, _, false) => Think::Never,
        };
        let family = match name {
            FormatName::Llama3 => Family::Llama3(Llama3::new(bos, own)),
            FormatName::Glm45 => Family::Glm(Glm),
            FormatName::GptOss => Family::Harmony(Harmony::new(own)),
            FormatName::Qwen3 | FormatName::Qwen35 | FormatName::Qwen25 | FormatName::ChatMl => {
                Family::Im(Im::new(name, own))
            }
        };
        let format = Format { name, think, family };
        let unfit = |reason: String| RenderError::UnfitFormat { format: name.as_str(), reason };
        for token in format.tokens() {
            if tokenizer.token_to_id(token).is_none_or(|id| !tokenizer.is_special(id)) {
                return Err(unfit(format!("the tokenizer has no special token {token}")));
            }
        }
        format.check_pieces(tokenizer)?.then_some(format).ok_or_else(|| {
            unfit("the tokenizer writes a text differently in pieces, so that turns cannot be put together".into())
        })
    }

    /// Its name.
    pub fn name(&self) -> FormatName {
        self.name
    }

    /// How the model writes calls.
    pub fn calls(&self) -> Calls {
        match &self.family {
            Family::Im(im) => im.calls(),
            Family::Llama3(_) => Calls::Llama3,
            Family::Glm(_) => Calls::Glm,
            Family::Harmony(_) => Calls::Harmony,
        }
    }

    /// How a sampled turn shows reasoning.
    pub fn thinking(&self) -> Thinking {
        match self.think {
            Think::Never => Thinking::Unknown,
            Think::Opened => Thinking::Opened,
            Think::Some | Think::Always | Think::Closed => Thinking::Free,
        }
    }

    /// Whether reasoning in training data would be trained behind a prompt that rules it out.
    pub fn forbids_thinking(&self) -> bool {
        self.think == Think::Closed
    }

    /// The tokens that an assistant's turn can end with, by text.
    pub fn ends(&self) -> &'static [&'static str] {
        match self.family {
            Family::Im(_) => &im::ENDS,
            Family::Llama3(_) => &llama3::ENDS,
            Family::Glm(_) => &glm::ENDS,
            Family::Harmony(_) => &harmony::ENDS,
        }
    }

    /// The one for a turn that was cut off, whose calls were to the tools `called`. None where the next message has it.
    pub fn end_of_cut(&self, called: &[String]) -> Option<&'static str> {
        match self.family {
            Family::Im(_) | Family::Llama3(_) => self.ends().first().copied(),
            Family::Glm(_) => None,
            Family::Harmony(_) => Some(harmony::end_of_cut(called)),
        }
    }

    /// Those of them that the format writes.
    pub fn written_ends(&self) -> &'static [&'static str] {
        match self.family {
            Family::Im(_) | Family::Llama3(_) => &self.ends()[..1],
            Family::Glm(_) => &glm::ENDS[..2],
            Family::Harmony(_) => &harmony::ENDS,
        }
    }

    /// Whether the token that ends a turn is the one that begins the next. A template then shows none behind the last turn.
    pub fn ends_with_next(&self) -> bool {
        matches!(self.family, Family::Glm(_))
    }

    /// Whether all that this format writes in `messages` is in a template of the family, the end of the last turn apart.
    pub fn is_shown(&self, messages: &[Message]) -> bool {
        !self.ends_with_next() || messages.windows(2).all(|pair| glm::leads_on(&pair[0], &pair[1]))
    }

    /// The token that begins every message, where what follows a turn depends on the messages in it.
    pub fn begins(&self) -> Option<&'static str> {
        matches!(self.family, Family::Harmony(_)).then_some(harmony::START)
    }

    /// Whether a message, by its text from that token on, is of an assistant's turn.
    pub fn is_assistants(&self, message: &str) -> bool {
        matches!(self.family, Family::Harmony(_)) && harmony::is_assistants(message)
    }

    fn tokens(&self) -> &'static [&'static str] {
        match self.family {
            Family::Im(_) => &im::TOKENS,
            Family::Llama3(_) => &llama3::TOKENS,
            Family::Glm(_) => &glm::TOKENS,
            Family::Harmony(_) => &harmony::TOKENS,
        }
    }

    /// Writes a conversation from its beginning.
    ///
    /// # Errors
    /// The format has no place for something.
    pub fn write(&self, messages: &[Message], tools: &[ToolDef], generate: bool) -> Result<Writer, RenderError> {
        let mut out = Writer::default();
        match &self.family {
            Family::Im(im) => im.write(self, &mut out, messages, tools)?,
            Family::Llama3(llama3) => llama3.write(self, &mut out, messages, tools)?,
            Family::Glm(glm) => glm.write(self, &mut out, messages, tools)?,
            Family::Harmony(harmony) => harmony.write(self, &mut out, messages, tools)?,
        }
        if generate {
            self.invite(&mut out);
        }
        Ok(out)
    }

    /// Writes what follows an assistant's turn: what closes it, `messages`, the invitation to the next turn. The turn ended with
    /// `end`, where it had an end, and its calls were to the tools `called`, where the format must know them.
    ///
    /// # Errors
    /// The format has no place for something.
    pub fn write_next(
        &self,
        messages: &[Message],
        end: Option<&str>,
        called: &[String],
    ) -> Result<Writer, RenderError> {
        let mut out = Writer::default();
        match &self.family {
            Family::Im(im) => {
                im.close(&mut out, None);
                im.write_messages(self, &mut out, messages, 0, false)?;
            }
            Family::Llama3(llama3) => llama3.write_messages(self, &mut out, messages, 0)?,
            Family::Glm(glm) => glm.write_messages(self, &mut out, messages, end)?,
            Family::Harmony(harmony) => harmony.write_messages(self, &mut out, messages, 0, called)?,
        }
        self.invite(&mut out);
        Ok(out)
    }

    fn invite(&self, out: &mut Writer) {
        match &self.family {
            Family::Im(im) => im.invite(self, out, None),
            Family::Llama3(llama3) => llama3.invite(out, None),
            Family::Glm(glm) => glm.invite(self, out, None),
            Family::Harmony(harmony) => harmony.invite(out, None),
        }
    }

    /// What stands in front of an assistant's text where there is reasoning, or must be a block for it.
    fn think_block(&self, reasoning: &str) -> Option<String> {
        let reasoning = reasoning.trim_matches('\n');
        match self.think {
            Think::Never => None,
            Think::Some | Think::Closed if reasoning.is_empty() => None,
            Think::Opened => Some(format!("{reasoning}\n</think>\n\n")),
            Think::Some | Think::Closed | Think::Always => Some(format!("<think>\n{reasoning}\n</think>\n\n")),
        }
    }

    /// Reasoning and text of an assistant's message. Reasoning that stands in the text is taken out of it, as the model
    /// would have written it.
    fn thoughts<'a>(&self, message: &'a Message, at: usize) -> Result<(&'a str, &'a str), RenderError> {
        match (&message.reasoning, self.think) {
            (Some(reasoning), Think::Never) if !reasoning.trim().is_empty() => {
                // No other renderer: templates without think blocks leave reasoning out without a word.
                let remedy = "set `renderer.reasoning_parser` to \"think\", which writes it in `<think>` blocks";
                Err(RenderError::NoPlace { format: self.name.as_str(), message: at, what: "reasoning", remedy })
            }
            (_, Think::Never) => Ok(("", &message.content)),
            (Some(reasoning), _) => Ok((reasoning, &message.content)),
            (None, _) => Ok(in_line(&message.content).unwrap_or(("", &message.content))),
        }
    }

    fn no_place(&self, message: usize, what: &'static str) -> RenderError {
        let remedy = "choose another `renderer.name`; \"default\" leaves it to the model's own template";
        RenderError::NoPlace { format: self.name.as_str(), message, what, remedy }
    }

    /// Whether ids of pieces put together are the ids of the whole, where no text merges across the border.
    fn check_pieces(&self, tokenizer: &Tokenizer) -> Result<bool, RenderError> {
        let mut out = Writer::default();
        self.invite(&mut out);
        let (before, after) = (out.text(), format!("Yes{}", self.ends()[0]));
        let parts = [tokenizer.encode(&before)?, tokenizer.encode(&after)?].concat();
        Ok(parts == tokenizer.encode(&(before + &after))?)
    }
}

/// Whether the template's prompts end so.
fn invites(own: Own, end: &str) -> bool {
    own(&[Message::text(Role::User, "x")], &[], true).is_some_and(|text| text.ends_with(end))
}

/// `<think>` reasoning `</think>` text, or the same without the first tag; other uses of the tags are text.
pub(crate) fn in_line(content: &str) -> Option<(&str, &str)> {
    let (before, text) = content.split_once("</think>")?;
    let reasoning = match before.split_once("<think>") {
        Some((lead, reasoning)) if lead.trim().is_empty() => reasoning,
        Some(_) => return None,
        None => before,
    };
    let again = |part: &str| part.contains("<think>") || part.contains("</think>");
    (!again(reasoning) && !again(text)).then(|| (reasoning.trim_matches('\n'), text.trim_start_matches('\n')))
}
