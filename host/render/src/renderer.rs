//! The renderer of a model folder: conversations to ids, the next turn as a verbatim extension, SFT samples with their
//! loss mask, sampled turns to messages. Owns the proofs that an id sequence is what the model sees; where there is no
//! proof it says so. Knows nothing of sampling and losses.

use crate::parse::{self, Thinking};
use crate::sources;
use crate::spans::{self, Segment, segments, token_spans};
use crate::template::ChatTemplate;
use crate::{RenderError, Tokenizer};
use chrono::Local;
use prl_types::{FinishReason, Message, Role, RoleSpan, Sampled, TokenId, ToolCall, ToolDef};
use serde_json::{Map, Value, json};
use std::path::Path;

/// How to load a renderer.
#[derive(Clone, Debug, Default)]
pub struct RendererOptions {
    /// A template file, or a template; the model folder's own when absent.
    pub chat_template: Option<String>,
    /// Extra variables for the template, for example `enable_thinking`.
    pub variables: Map<String, Value>,
}

/// Token ids with the message each came from.
#[derive(Clone, Debug, PartialEq)]
pub struct Rendered {
    /// The ids.
    pub ids: Vec<TokenId>,
    /// Spans counted from the first of `ids`. Tokens whose message cannot be proved have no span.
    pub spans: Vec<RoleSpan>,
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

/// One tokenised SFT conversation; both lists have one entry per token.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainingSample {
    /// The ids.
    pub ids: Vec<TokenId>,
    /// Whether the token is a target.
    pub mask: Vec<bool>,
}

/// What a template puts right after an assistant's text.
struct TurnEnd {
    id: TokenId,
    text: String,
}

/// Tokenizer and chat template of one model.
pub struct Renderer {
    tokenizer: Tokenizer,
    template: ChatTemplate,
    tool_template: Option<ChatTemplate>,
    stops: Vec<TokenId>,
    turn_end: Option<TurnEnd>,
    thinking: Thinking,
}

impl Renderer {
    /// Loads the tokenizer and the chat template of a model folder.
    ///
    /// # Errors
    /// A file that is missing or broken, a template that does not compile, no template at all.
    pub fn load(dir: &Path, options: RendererOptions) -> Result<Self, RenderError> {
        let tokenizer = Tokenizer::load(dir)?;
        let config = sources::tokenizer_config(dir)?;
        let templates = sources::templates(dir, &config, options.chat_template.as_deref())?;
        let special = sources::special_tokens(&config);
        let eos = special.get("eos_token").and_then(Value::as_str).and_then(|text| tokenizer.token_to_id(text));
        let mut globals = special;
        globals.extend(options.variables);
        let now = Local::now();
        let template = ChatTemplate::compile(templates.default, globals.clone(), now)?;
        let tool_template = templates.tool_use.map(|t| ChatTemplate::compile(t, globals, now)).transpose()?;

        let turn_end = turn_end(&template, &tokenizer);
        let mut stops: Vec<TokenId> = Vec::new();
        for id in turn_end.iter().map(|t| t.id).chain(sources::eos_ids(dir)?).chain(eos) {
            if !stops.contains(&id) {
                stops.push(id);
            }
        }
        let thinking = thinking(&template, &Map::new());
        Ok(Renderer { tokenizer, template, tool_template, stops, turn_end, thinking })
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Tokens that end a turn: the template's own, then the ones the folder's configuration lists. A stop token is part
    /// of the sampled ids.
    pub fn stop_token_ids(&self) -> &[TokenId] {
        &self.stops
    }

    /// The conversation as text. `generate` adds what invites the assistant to speak.
    ///
    /// # Errors
    /// The template refuses the conversation.
    pub fn render_text(&self, messages: &[Message], tools: &[ToolDef], generate: bool) -> Result<String, RenderError> {
        self.template_for(tools).render(messages, tools, generate)
    }

    /// The conversation as ids with their messages.
    ///
    /// # Errors
    /// The template refuses the conversation, or the tokenizer its text.
    pub fn render_ids(&self, messages: &[Message], tools: &[ToolDef], generate: bool) -> Result<Rendered, RenderError> {
        let text = self.render_text(messages, tools, generate)?;
        let (ids, offsets) = self.tokenizer.encode_with_offsets(&text)?;
        let segments = self.segments(&text, messages, tools, generate);
        Ok(Rendered { ids, spans: token_spans(&segments, &offsets) })
    }

    /// The conversation as the ids a model is to continue. `variables` are further ones for the template, for this
    /// rendering only; `open` says how the text ends.
    ///
    /// # Errors
    /// The template refuses the conversation, or the tokenizer its text; [`RenderError::NotContinuable`] where the last
    /// message cannot be left open.
    pub fn prompt(
        &self,
        messages: &[Message],
        tools: &[ToolDef],
        variables: &Map<String, Value>,
        open: Open,
    ) -> Result<Prompt, RenderError> {
        let template = self.template_for(tools);
        let mut text = template.render_with(messages, tools, open == Open::NextTurn, variables)?;
        let thinking = match open {
            Open::NextTurn if variables.is_empty() => self.thinking,
            Open::NextTurn => thinking(template, variables),
            // What was begun is text; whatever goes on with it is, too.
            Open::Nothing | Open::LastMessage => Thinking::Unknown,
        };
        if open == Open::LastMessage {
            // Templates may strip the text of messages.
            let last = messages.last().map_or("", |m| m.content.trim_start());
            match text.rfind(last.trim_end()) {
                Some(at) if !last.is_empty() => {
                    let whole = text[at..].starts_with(last);
                    text.truncate(at + if whole { last.len() } else { last.trim_end().len() });
                }
                _ => return Err(RenderError::NotContinuable { origin: template.origin().to_string() }),
            }
        }
        Ok(Prompt { ids: self.tokenizer.encode(&text)?, thinking })
    }

    /// Whether a sampled token is part of a turn's text: it is no special one, or it marks structure.
    pub fn is_text(&self, id: TokenId) -> bool {
        !self.tokenizer.is_special(id)
            || self.tokenizer.id_to_token(id).is_some_and(|token| parse::MARKERS.contains(&token.as_str()))
    }

    /// The token that ends the reasoning, where one does.
    pub fn reasoning_end(&self) -> Option<TokenId> {
        self.tokenizer.token_to_id(parse::CLOSE_THINK)
    }

    /// The tokens to append to `previous` (prompt and sampled ids of the turns so far) so that the model can answer
    /// `new`: what closes its turn, the new messages, the generation prompt. `previous` itself is never touched. `None`
    /// where the template's text between turns cannot be proved to be independent of the conversation so far; render
    /// the whole conversation then, as a new sample.
    pub fn bridge_to_next_turn(&self, previous: &[TokenId], new: &[Message]) -> Option<Rendered> {
        let end = self.turn_end.as_ref()?;
        let last = *previous.last()?;
        if new.is_empty() || new.iter().any(|m| m.role == Role::Assistant) {
            return None;
        }
        let closed = last == end.id;
        if !closed && self.stops.contains(&last) {
            return None;
        }
        let suffix = self.between_turns(end, new)?;
        let (ids, offsets) = self.tokenizer.encode_with_offsets(&format!("{}{suffix}", end.text)).ok()?;
        if ids.first() != Some(&end.id) {
            return None;
        }

        let history = histories(new).swap_remove(0);
        let render = |part: &[Message], generate: bool| self.after_turn(end, &history, part, &[], generate);
        let lead = render(&[], false).filter(|text| suffix.starts_with(text.as_str())).map_or(0, |text| text.len());
        let mut segments = segments(&suffix, new, lead, true, &render);
        for segment in &mut segments {
            segment.range = segment.range.start + end.text.len()..segment.range.end + end.text.len();
        }
        let close = Segment { range: 0..end.text.len(), role: Role::Assistant, is_content: false, message: None };
        segments.insert(0, close);

        let skip = usize::from(closed);
        let spans = token_spans(&segments, &offsets[skip..]);
        Some(Rendered { ids: ids[skip..].to_vec(), spans })
    }

    /// The ids of an assistant's `answer` to `messages`: what follows their rendering with the generation prompt, up to the
    /// stop token that ends the turn. An answer that was `cut` off has no stop token.
    ///
    /// # Errors
    /// The template refuses the conversation, or the tokenizer its text; a template that renders the prompt differently once
    /// it is answered, or that ends a turn without a stop token.
    pub fn answer_ids(
        &self,
        messages: &[Message],
        tools: &[ToolDef],
        answer: &Message,
        cut: bool,
    ) -> Result<Vec<TokenId>, RenderError> {
        let template = self.template_for(tools);
        let n = messages.len();
        let before = template.render(messages, tools, true)?;
        let text = template.render(&[messages, std::slice::from_ref(answer)].concat(), tools, false)?;
        let Some(said) = text.strip_prefix(&before) else {
            let what = "the prompt before it is rendered differently once it is answered";
            return Err(self.not_prefix_stable(template, n, answer.role, what));
        };
        let mut ids = self.tokenizer.encode(said)?;
        let Some(end) = ids.iter().rposition(|id| self.stops.contains(id)) else {
            return Err(self.no_stop_token(template, n));
        };
        ids.truncate(if cut { end } else { end + 1 });
        Ok(ids)
    }

    fn not_prefix_stable(
        &self,
        template: &ChatTemplate,
        message: usize,
        role: Role,
        what: &'static str,
    ) -> RenderError {
        RenderError::NotPrefixStable { origin: template.origin().to_string(), message, role: role.as_str(), what }
    }

    fn no_stop_token(&self, template: &ChatTemplate, message: usize) -> RenderError {
        let stops = self.stops.iter().filter_map(|id| self.tokenizer.id_to_token(*id)).collect();
        RenderError::NoStopToken { origin: template.origin().to_string(), message, stops }
    }

    /// An SFT sample: the whole conversation, and which tokens are targets.
    ///
    /// # Errors
    /// Where the mask cannot be proved right: a template that changes earlier turns, one that ends a turn without a
    /// stop token, a body that cannot be located.
    pub fn training_sample(
        &self,
        messages: &[Message],
        tools: &[ToolDef],
        loss: LossMask,
    ) -> Result<TrainingSample, RenderError> {
        let text = self.render_text(messages, tools, false)?;
        let (ids, offsets) = self.tokenizer.encode_with_offsets(&text)?;
        let mut mask = vec![false; ids.len()];

        if loss.assistant {
            for (n, _) in messages.iter().enumerate().filter(|(_, m)| m.role == Role::Assistant) {
                let (start, end) = self.sampled_tokens(messages, tools, n, &text, &ids, &offsets)?;
                mask[start..end].fill(true);
            }
        }

        let wanted = |role: Role| match role {
            Role::System => loss.system,
            Role::User => loss.user,
            Role::Tool => loss.tool,
            Role::Assistant => false,
        };
        if messages.iter().any(|m| wanted(m.role)) {
            let segments = self.segments(&text, messages, tools, false);
            for (n, message) in messages.iter().enumerate().filter(|(_, m)| wanted(m.role) && !m.content.is_empty()) {
                let body = segments
                    .iter()
                    .find(|s| s.is_content && s.message == Some(n))
                    .ok_or(RenderError::ContentNotFound { message: n, role: message.role.as_str() })?;
                for (at, target) in offsets.iter().zip(&mut mask) {
                    *target |= body.range.contains(&at.start);
                }
            }
        }
        Ok(TrainingSample { ids, mask })
    }

    /// The assistant message in sampled ids. Ids are read, never rebuilt: training keeps the ids themselves.
    ///
    /// # Errors
    /// The tokenizer refuses the ids.
    pub fn parse_response(&self, ids: &[TokenId]) -> Result<Message, RenderError> {
        Ok(self.parse_text(&self.response_text(ids)?))
    }

    /// As [`Renderer::parse_response`], and a stop string that ended the turn is left out of the message.
    ///
    /// # Errors
    /// The tokenizer refuses the ids.
    pub fn parse_sampled(&self, sampled: &Sampled) -> Result<Message, RenderError> {
        let mut text = self.response_text(sampled.ids())?;
        if let FinishReason::StopString(stop) = sampled.finish()
            && let Some(at) = text.rfind(stop.as_str())
        {
            text.truncate(at);
        }
        Ok(self.parse_text(&text))
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

    fn parse_text(&self, text: &str) -> Message {
        parse::parse(text, self.thinking)
    }

    fn template_for(&self, tools: &[ToolDef]) -> &ChatTemplate {
        match &self.tool_template {
            Some(template) if !tools.is_empty() => template,
            _ => &self.template,
        }
    }

    fn segments(&self, text: &str, messages: &[Message], tools: &[ToolDef], generate: bool) -> Vec<Segment> {
        let render = |part: &[Message], generate: bool| self.render_text(part, tools, generate).ok();
        segments(text, messages, 0, generate, &render)
    }

    /// Tokens of assistant message `n` that the model would have sampled, stop token included: what follows the
    /// rendering of the messages before it with the generation prompt.
    fn sampled_tokens(
        &self,
        messages: &[Message],
        tools: &[ToolDef],
        n: usize,
        text: &str,
        ids: &[TokenId],
        offsets: &[std::ops::Range<usize>],
    ) -> Result<(usize, usize), RenderError> {
        let template = self.template_for(tools);
        let unstable = |what| self.not_prefix_stable(template, n, messages[n].role, what);
        let before = template.render(&messages[..n], tools, true)?;
        if !text.starts_with(&before) {
            return Err(unstable("the prompt before it is rendered differently in the whole conversation"));
        }
        let through = template.render(&messages[..=n], tools, false)?;
        if !text.starts_with(&through) || through.len() < before.len() {
            return Err(unstable("it is rendered differently once further messages follow"));
        }
        let prompt = self.tokenizer.encode(&before)?;
        if !ids.starts_with(&prompt) {
            return Err(unstable("its first token merges with the generation prompt"));
        }
        let start = prompt.len();
        let end = offsets.partition_point(|at| at.start < through.len()).max(start);
        let stop = ids[start..end].iter().rposition(|id| self.stops.contains(id)).map(|at| start + at);
        // Some templates close a turn with the token that opens the next one.
        let stop = stop.or_else(|| ids.get(end).is_some_and(|id| self.stops.contains(id)).then_some(end));
        match stop {
            Some(at) => Ok((start, at + 1)),
            None => Err(self.no_stop_token(template, n)),
        }
    }

    /// The text after a closed turn and up to the next one: rendered behind several different conversations, with and
    /// without tools, and given only if they all agree.
    fn between_turns(&self, end: &TurnEnd, new: &[Message]) -> Option<String> {
        let tool = ToolDef {
            name: "f".into(),
            description: "d".into(),
            parameters: json!({"type": "object", "properties": {}}),
            strict: false,
        };
        let mut agreed: Option<String> = None;
        for history in histories(new) {
            for tools in [&[] as &[ToolDef], std::slice::from_ref(&tool)] {
                // What the template refuses cannot have come before.
                let Some(text) = self.after_turn(end, &history, new, tools, true) else { continue };
                match &agreed {
                    Some(known) if *known != text => return None,
                    Some(_) => {}
                    None => agreed = Some(text),
                }
            }
        }
        agreed
    }

    /// What the template writes after the stop token of the last message of `history`, when `new` follows.
    fn after_turn(
        &self,
        end: &TurnEnd,
        history: &[Message],
        new: &[Message],
        tools: &[ToolDef],
        generate: bool,
    ) -> Option<String> {
        let word = &history.last()?.content;
        let text = self.render_text(&[history, new].concat(), tools, generate).ok()?;
        let (_, after) = text.split_once(word.as_str())?;
        if after.contains(word.as_str()) {
            return None;
        }
        after.split_once(end.text.as_str()).map(|(_, rest)| rest.to_string())
    }
}

impl std::fmt::Debug for Renderer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Renderer")
            .field("template", &self.template.origin())
            .field("stops", &self.stops)
            .field("thinking", &self.thinking)
            .finish_non_exhaustive()
    }
}

/// Conversations that `new` could follow. Each ends with an assistant's turn whose content is a unique word.
fn histories(new: &[Message]) -> Vec<Vec<Message>> {
    let word = spans::stand_in("Zqxjv", &new.iter().map(|m| m.content.as_str()).collect::<Vec<_>>().join(" "));
    let answer = |name: &str| {
        let mut message = Message::text(Role::Assistant, word.clone());
        if let Some(reply) = new.iter().find(|m| m.role == Role::Tool) {
            let id = reply.tool_call_id.clone().unwrap_or_else(|| "call_0".into());
            message.tool_calls.push(ToolCall { id, name: name.into(), arguments: "{}".into() });
        }
        message
    };
    let text = Message::text;
    vec![
        vec![text(Role::User, "one"), answer("f")],
        vec![text(Role::User, "1"), text(Role::Assistant, "two"), text(Role::User, "three"), answer("g")],
        vec![text(Role::System, "zero"), text(Role::User, "x y\nz"), answer("h")],
    ]
}

/// The special token that directly follows an assistant's text, if the template writes one.
fn turn_end(template: &ChatTemplate, tokenizer: &Tokenizer) -> Option<TurnEnd> {
    let history = histories(&[]).swap_remove(0);
    let text = template.render(&history, &[], false).ok()?;
    let (_, tail) = text.split_once(history.last()?.content.as_str())?;
    let (ids, offsets) = tokenizer.encode_with_offsets(tail).ok()?;
    let (id, range) = (*ids.first()?, offsets.first()?);
    let text = tokenizer.id_to_token(id)?;
    (tokenizer.is_special(id) && range.start == 0 && tail.starts_with(&text)).then_some(TurnEnd { id, text })
}

/// Whether and how the template shows reasoning.
fn thinking(template: &ChatTemplate, variables: &Map<String, Value>) -> Thinking {
    if !template.text().contains(parse::CLOSE_THINK) {
        return Thinking::Unknown;
    }
    let prompt = template.render_with(&[Message::text(Role::User, "x")], &[], true, variables).unwrap_or_default();
    match (prompt.rfind(parse::OPEN_THINK), prompt.rfind(parse::CLOSE_THINK)) {
        (Some(_), None) => Thinking::Opened,
        (Some(open), Some(close)) if open > close => Thinking::Opened,
        _ => Thinking::Free,
    }
}
