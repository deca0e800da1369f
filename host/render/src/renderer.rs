//! The renderer of a model folder: conversations to ids, the next turn as a verbatim extension, SFT samples with their
//! loss mask, sampled turns to messages. Owns the choice between a hand-written format and the folder's own template; what
//! each of them does is theirs. Knows nothing of sampling and losses.

use crate::formats::{self, Format, FormatName, Settings};
use crate::parse::{self, Calls, Thinking};
use crate::sources;
use crate::template::ChatTemplate;
use crate::templated::{Templated, With};
use crate::{RenderError, Tokenizer, formatted};
use chrono::Local;
use prl_types::{FinishReason, Message, Role, RoleSpan, Sampled, TokenId, ToolDef};
use serde_json::{Map, Value};
use std::path::Path;

/// What turns conversations into ids.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// The format that is the model's own template but for what later turns do to earlier ones; the template itself where
    /// there is none, or where it marks by itself what the model writes.
    #[default]
    Auto,
    /// The model's own template.
    Template,
    /// This format.
    Format(FormatName),
}

/// How to load a renderer.
#[derive(Clone, Debug, Default)]
pub struct RendererOptions {
    /// A template file, or a template; the model folder's own when absent.
    pub chat_template: Option<String>,
    /// Extra variables for the template.
    pub variables: Map<String, Value>,
    /// What renders.
    pub choice: Choice,
    /// Whether the model may think, where that can be chosen; the template's variable `enable_thinking`.
    pub thinking: Option<bool>,
    /// Whether `<think>` is read and written as reasoning; found out when absent.
    pub think_blocks: Option<bool>,
    /// How the model writes calls; found out when absent.
    pub calls: Option<Calls>,
}

/// Token ids with the message each came from.
#[derive(Clone, Debug, PartialEq)]
pub struct Rendered {
    /// The ids.
    pub ids: Vec<TokenId>,
    /// Spans counted from the first of `ids`. Tokens whose message cannot be proved have no span.
    pub spans: Vec<RoleSpan>,
    /// For each of `ids` whether the model is the one who writes it; `false` also where that cannot be proved.
    pub sampled: Vec<bool>,
}

/// How a prompt ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Open {
    /// With what invites the assistant to speak.
    NextTurn,
    /// After the last message.
    Nothing,
    /// Within the last message, behind its text.
    LastMessage,
}

/// What a model is to continue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompt {
    /// The ids.
    pub ids: Vec<TokenId>,
    /// How the answer's reasoning is told from its text.
    pub thinking: Thinking,
}

/// Which messages are trained in SFT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LossMask {
    /// Bodies of system messages.
    pub system: bool,
    /// Bodies of user messages.
    pub user: bool,
    /// What the model would have sampled: reasoning, text, tool calls and the stop token.
    pub assistant: bool,
    /// Bodies of tool messages.
    pub tool: bool,
}

impl Default for LossMask {
    fn default() -> Self {
        LossMask { system: false, user: false, assistant: true, tool: false }
    }
}

impl LossMask {
    /// Whether bodies of messages of a role are trained.
    pub(crate) fn trains_body(self, role: Role) -> bool {
        match role {
            Role::System => self.system,
            Role::User => self.user,
            Role::Tool => self.tool,
            Role::Assistant => false,
        }
    }
}

/// One tokenised SFT conversation; both lists have one entry per token.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainingSample {
    /// The ids.
    pub ids: Vec<TokenId>,
    /// Whether the token is a target.
    pub mask: Vec<bool>,
}

/// Tokenizer, format and chat template of one model.
pub struct Renderer {
    tokenizer: Tokenizer,
    format: Option<Format>,
    /// Absent only where a format was asked for by name and the folder has no template.
    template: Option<Templated>,
    dir: std::path::PathBuf,
    stops: Vec<TokenId>,
    thinking: Thinking,
    /// Whether prompts rule out that the model thinks.
    quiet: bool,
    calls: Calls,
}

impl Renderer {
    /// Loads the tokenizer and the chat template of a model folder, and chooses what renders.
    ///
    /// # Errors
    /// A file that is missing or broken, a template that does not compile, no template at all where one is needed, a format
    /// that the tokenizer is not made for.
    pub fn load(dir: &Path, options: RendererOptions) -> Result<Self, RenderError> {
        let tokenizer = Tokenizer::load(dir)?;
        let config = sources::tokenizer_config(dir)?;
        let special = sources::special_tokens(&config);
        let text_of = |name: &str| special.get(name).and_then(Value::as_str);
        let eos = text_of("eos_token").and_then(|text| tokenizer.token_to_id(text));
        let bos = text_of("bos_token").map(str::to_owned);
        let bos = bos.as_deref();

        let mut globals = special.clone();
        globals.extend(options.thinking.map(|thinking| ("enable_thinking".to_owned(), Value::Bool(thinking))));
        globals.extend(options.variables);
        let template = match sources::templates(dir, &config, options.chat_template.as_deref()) {
            Ok(templates) => {
                let now = Local::now();
                let tool_use =
                    templates.tool_use.map(|t| ChatTemplate::compile(t, globals.clone(), now)).transpose()?;
                Some(Templated::new(ChatTemplate::compile(templates.default, globals, now)?, tool_use, &tokenizer))
            }
            Err(RenderError::NoTemplate { .. }) if matches!(options.choice, Choice::Format(_)) => None,
            Err(error) => return Err(error),
        };

        let settings = Settings { thinking: options.thinking, think_blocks: options.think_blocks.unwrap_or_default() };
        let own = template.as_ref().map(|template| {
            |messages: &[Message], tools: &[ToolDef], generate: bool| {
                template.render_text(messages, tools, generate).ok()
            }
        });
        let (found, format) = match (options.choice, &own) {
            (Choice::Format(name), own) => {
                let own = own.as_ref().map(|own| own as formats::Own);
                (None, Some(Format::new(name, settings, &tokenizer, bos, own)?))
            }
            (_, Some(own)) => {
                let found = formats::choose(settings, &tokenizer, bos, own);
                let marks = template.as_ref().is_some_and(Templated::has_marks);
                let used = options.choice == Choice::Auto && !marks;
                if used { (None, found) } else { (found, None) }
            }
            (_, None) => (None, None),
        };

        let switched = format.as_ref().is_some_and(|format| format.name().thinks())
            || template.as_ref().is_some_and(|template| template.knows("enable_thinking"));
        if options.thinking.is_some() && !switched {
            let origin = template.as_ref().map(|template| template.origin().to_owned());
            return Err(RenderError::NoThinkingSwitch { origin });
        }
        let own_end = template.as_ref().and_then(Templated::end);
        let ends = format.iter().flat_map(|f| f.written_ends()).filter_map(|text| tokenizer.token_to_id(text));
        let ends: Vec<TokenId> = if format.is_some() { ends.collect() } else { own_end.into_iter().collect() };
        let mut stops: Vec<TokenId> = Vec::new();
        for id in ends.into_iter().chain(sources::eos_ids(dir)?).chain(eos) {
            if !stops.contains(&id) {
                stops.push(id);
            }
        }
        let written = format.as_ref().or(found.as_ref()).map_or(Calls::Hermes, Format::calls);
        let calls = options.calls.unwrap_or(written);
        let by_template = match template.as_ref().map_or(Thinking::Unknown, Templated::thinking) {
            // Reasoning is a message beside the others there.
            Thinking::Unknown if calls == Calls::Harmony => Thinking::Free,
            thinking => thinking,
        };
        let thinking = match options.think_blocks {
            Some(false) => Thinking::Unknown,
            asked => match (&format, by_template) {
                (Some(format), _) => format.thinking(),
                (None, Thinking::Unknown) if asked == Some(true) => Thinking::Free,
                (None, thinking) => thinking,
            },
        };
        let quiet = options.thinking == Some(false) || format.as_ref().is_some_and(Format::forbids_thinking);
        Ok(Renderer { tokenizer, format, template, dir: dir.to_path_buf(), stops, thinking, quiet, calls })
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// The format that renders; none where the model's own template does.
    pub fn format(&self) -> Option<FormatName> {
        self.format.as_ref().map(Format::name)
    }

    /// Whether the model's own template renders because it marks by itself what the assistant writes.
    pub fn marks_answers(&self) -> bool {
        self.format.is_none() && self.template.as_ref().is_some_and(Templated::has_marks)
    }

    /// An `answer` of another model as this one is to give it: without reasoning where its turns have none, or where it is
    /// told not to think.
    pub fn adopted(&self, answer: Message) -> Message {
        if self.thinking != Thinking::Unknown && !self.quiet {
            return answer;
        }
        let told = |content: &str| formats::in_line(content).map(|(_, text)| text.to_owned());
        let content = if self.quiet { told(&answer.content) } else { None };
        Message { reasoning: None, content: content.unwrap_or_else(|| answer.content.clone()), ..answer }
    }

    /// How the model writes calls.
    pub fn calls(&self) -> Calls {
        self.calls
    }

    /// Tokens that end a turn: the format's or template's own, then the ones the folder's configuration lists. A stop token is part
    /// of the sampled ids.
    pub fn stop_token_ids(&self) -> &[TokenId] {
        &self.stops
    }

    /// The conversation as text. `generate` adds what invites the assistant to speak.
    ///
    /// # Errors
    /// The format or template refuses the conversation.
    pub fn render_text(&self, messages: &[Message], tools: &[ToolDef], generate: bool) -> Result<String, RenderError> {
        match &self.format {
            Some(format) => Ok(format.write(messages, tools, generate)?.text()),
            None => self.template()?.render_text(messages, tools, generate),
        }
    }

    /// The conversation as ids with their messages.
    ///
    /// # Errors
    /// The format or template refuses the conversation, or the tokenizer its text.
    pub fn render_ids(&self, messages: &[Message], tools: &[ToolDef], generate: bool) -> Result<Rendered, RenderError> {
        match &self.format {
            Some(format) => formatted::render_ids(format, self.with(), messages, tools, generate),
            None => self.template()?.render_ids(self.with(), messages, tools, generate),
        }
    }

    /// The conversation as the ids a model is to continue. `variables` are further ones for the template, for this
    /// rendering only, which the template then does by itself; `open` says how the text ends.
    ///
    /// # Errors
    /// The format or template refuses the conversation, or the tokenizer its text; [`RenderError::NotContinuable`] where
    /// the last message cannot be left open.
    pub fn prompt(
        &self,
        messages: &[Message],
        tools: &[ToolDef],
        variables: &Map<String, Value>,
        open: Open,
    ) -> Result<Prompt, RenderError> {
        let prompt = match &self.format {
            Some(format) if variables.is_empty() => formatted::prompt(format, self.with(), messages, tools, open)?,
            _ => self.template()?.prompt(self.with(), messages, tools, variables, open)?,
        };
        // What the options say of think blocks holds for every conversation.
        let thinking = match (open, variables.is_empty()) {
            (Open::NextTurn, true) => self.thinking,
            _ => prompt.thinking,
        };
        Ok(Prompt { thinking, ..prompt })
    }

    /// Whether a sampled token is part of a turn's text: it is no special one, or it marks structure.
    pub fn is_text(&self, id: TokenId) -> bool {
        self.with().is_text(id, self.calls)
    }

    /// The token that ends the reasoning, where one does.
    pub fn reasoning_end(&self) -> Option<TokenId> {
        self.tokenizer.token_to_id(parse::CLOSE_THINK)
    }

    /// The tokens to append to `previous` (prompt and sampled ids of the turns so far) so that the model can answer
    /// `new`: what closes its turn, the new messages, the generation prompt. `previous` itself is never touched. `None`
    /// where a template's text between turns cannot be proved to be independent of the conversation so far, or the turn
    /// ended in a way of its own; render the whole conversation then, as a new sample.
    ///
    /// # Errors
    /// The format refuses the messages, or the tokenizer their text.
    pub fn bridge_to_next_turn(&self, previous: &[TokenId], new: &[Message]) -> Result<Option<Rendered>, RenderError> {
        match &self.format {
            Some(format) => formatted::bridge_to_next_turn(format, self.with(), previous, new),
            None => Ok(self.template()?.bridge_to_next_turn(self.with(), previous, new)),
        }
    }

    /// The ids of an assistant's `answer` to `messages`: what follows their rendering with the generation prompt, up to the
    /// stop token that ends the turn. An answer that was `cut` off has no stop token.
    ///
    /// # Errors
    /// The format or template refuses the conversation, or the tokenizer its text; a template that renders the prompt
    /// differently once it is answered, or that ends a turn without a stop token.
    pub fn answer_ids(
        &self,
        messages: &[Message],
        tools: &[ToolDef],
        answer: &Message,
        cut: bool,
    ) -> Result<Vec<TokenId>, RenderError> {
        match &self.format {
            Some(format) => formatted::answer_ids(format, self.with(), messages, tools, answer, cut),
            None => self.template()?.answer_ids(self.with(), messages, tools, answer, cut),
        }
    }

    /// An SFT sample: the whole conversation, and which tokens are targets. Those of the assistant are what the format has
    /// the model write, what the template marks with `{% generation %}`, or what can be proved to be sampled.
    ///
    /// # Errors
    /// What the format has no place for. Where the mask of a template cannot be proved right: it changes earlier turns, or
    /// ends a turn without a stop token, or a body cannot be located.
    pub fn training_sample(
        &self,
        messages: &[Message],
        tools: &[ToolDef],
        loss: LossMask,
    ) -> Result<TrainingSample, RenderError> {
        match &self.format {
            Some(format) => formatted::training_sample(format, self.with(), messages, tools, loss),
            None => self.template()?.training_sample(self.with(), messages, tools, loss),
        }
    }

    /// The samples of an SFT conversation: one, or one for each of the assistant's turns where the template changes earlier
    /// turns. Each then has the conversation as the model saw it up to that turn, and targets in what is new since the turn
    /// before, so that every target is trained once.
    ///
    /// # Errors
    /// As of [`Renderer::training_sample`], but for templates that change earlier turns.
    pub fn training_samples(
        &self,
        messages: &[Message],
        tools: &[ToolDef],
        loss: LossMask,
    ) -> Result<Vec<TrainingSample>, RenderError> {
        match (self.training_sample(messages, tools, loss), &self.template) {
            (Err(RenderError::NotPrefixStable { .. }), Some(template)) => {
                template.turn_samples(self.with(), messages, tools, loss)
            }
            (sample, _) => sample.map(|sample| vec![sample]),
        }
    }

    /// The assistant message in sampled ids. Ids are read, never rebuilt: training keeps the ids themselves. `tools` are those
    /// that were offered; their schemas say which arguments that are written without quotes are text.
    ///
    /// # Errors
    /// The tokenizer refuses the ids.
    pub fn parse_response(&self, ids: &[TokenId], tools: &[ToolDef]) -> Result<Message, RenderError> {
        Ok(self.parse_text(&self.response_text(ids)?, tools))
    }

    /// As [`Renderer::parse_response`], and a stop string that ended the turn is left out of the message.
    ///
    /// # Errors
    /// The tokenizer refuses the ids.
    pub fn parse_sampled(&self, sampled: &Sampled, tools: &[ToolDef]) -> Result<Message, RenderError> {
        let mut text = self.response_text(sampled.ids())?;
        if let FinishReason::StopString(stop) = sampled.finish()
            && let Some(at) = text.rfind(stop.as_str())
        {
            text.truncate(at);
        }
        Ok(self.parse_text(&text, tools))
    }

    /// All text of some ids, special tokens included.
    ///
    /// # Errors
    /// The tokenizer refuses the ids.
    pub fn decode(&self, ids: &[TokenId]) -> Result<String, RenderError> {
        self.tokenizer.decode(ids, false)
    }

    /// Text of a sampled turn without its stop token and without stray special tokens.
    fn response_text(&self, ids: &[TokenId]) -> Result<String, RenderError> {
        let end = if ids.last().is_some_and(|id| self.stops.contains(id)) { ids.len() - 1 } else { ids.len() };
        let kept: Vec<TokenId> = ids[..end].iter().copied().filter(|id| self.is_text(*id)).collect();
        self.tokenizer.decode(&kept, false)
    }

    fn parse_text(&self, text: &str, tools: &[ToolDef]) -> Message {
        parse::parse(text, self.thinking, self.calls, tools)
    }

    fn with(&self) -> With<'_> {
        With { tokenizer: &self.tokenizer, stops: &self.stops }
    }

    fn template(&self) -> Result<&Templated, RenderError> {
        self.template.as_ref().ok_or_else(|| RenderError::NoTemplate { dir: self.dir.clone() })
    }
}

impl std::fmt::Debug for Renderer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Renderer")
            .field("format", &self.format())
            .field("template", &self.template.as_ref().map(Templated::origin))
            .field("stops", &self.stops)
            .field("thinking", &self.thinking)
            .field("calls", &self.calls)
            .finish_non_exhaustive()
    }
}
