//! Rendering by a model's own chat template: ids, the next turn, what a model samples. Owns the proofs that an id sequence is
//! what the model sees, by rendering parts and variations of a conversation; where there is no proof it says so.

use crate::parse::{self, Calls, Thinking};
use crate::renderer::{LossMask, Open, Prompt, Rendered, TrainingSample};
use crate::spans::{self, Segment, segments, token_spans};
use crate::template::ChatTemplate;
use crate::{RenderError, Tokenizer};
use prl_types::{Message, Role, TokenId, ToolCall, ToolDef};
use serde_json::{Map, Value, json};
use std::ops::Range;

/// What a template puts right after an assistant's text.
struct TurnEnd {
    id: TokenId,
    text: String,
}

/// The chat templates of a model folder: some have a second one for conversations with tools.
pub(crate) struct Templated {
    template: ChatTemplate,
    tool_template: Option<ChatTemplate>,
    turn_end: Option<TurnEnd>,
    thinking: Thinking,
}

/// What all renderings need beside the template.
#[derive(Clone, Copy)]
pub(crate) struct With<'a> {
    pub tokenizer: &'a Tokenizer,
    /// Tokens that end a turn.
    pub stops: &'a [TokenId],
}

impl With<'_> {
    /// Whether a sampled token is part of a turn's text: it is no special one, or it marks structure where `calls` are read.
    pub fn is_text(&self, id: TokenId, calls: Calls) -> bool {
        !self.tokenizer.is_special(id)
            || self.tokenizer.id_to_token(id).is_some_and(|token| parse::is_marker(&token, calls))
    }
}

impl Templated {
    /// Finds out what the template does at the end of a turn and with reasoning.
    pub fn new(template: ChatTemplate, tool_template: Option<ChatTemplate>, tokenizer: &Tokenizer) -> Self {
        let turn_end = turn_end(&template, tokenizer);
        let thinking = thinking(&template, &Map::new());
        Templated { template, tool_template, turn_end, thinking }
    }

    /// The token that ends a turn.
    pub fn end(&self) -> Option<TokenId> {
        self.turn_end.as_ref().map(|end| end.id)
    }

    /// How a sampled turn shows reasoning.
    pub fn thinking(&self) -> Thinking {
        self.thinking
    }

    /// Where the template came from.
    pub fn origin(&self) -> &str {
        self.template.origin()
    }

    /// Whether the template reads a variable.
    pub fn knows(&self, variable: &str) -> bool {
        self.template.text().contains(variable)
    }

    /// Whether the template itself marks what the model writes.
    pub fn has_marks(&self) -> bool {
        self.template.has_marks()
    }

    pub fn render_text(&self, messages: &[Message], tools: &[ToolDef], generate: bool) -> Result<String, RenderError> {
        self.template_for(tools).render(messages, tools, generate)
    }

    pub fn render_ids(
        &self,
        with: With,
        messages: &[Message],
        tools: &[ToolDef],
        generate: bool,
    ) -> Result<Rendered, RenderError> {
        let text = self.render_text(messages, tools, generate)?;
        let (ids, offsets) = with.tokenizer.encode_with_offsets(&text)?;
        let segments = self.segments(&text, messages, tools, generate);
        let mut sampled = vec![false; ids.len()];
        for n in answers(messages) {
            // What cannot be proved is not claimed.
            if let Ok((start, end)) = self.sampled_tokens(with, messages, tools, n, &text, &ids, &offsets) {
                sampled[start..end].fill(true);
            }
        }
        Ok(Rendered { spans: token_spans(&segments, &offsets), sampled, ids })
    }

    pub fn prompt(
        &self,
        with: With,
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
        Ok(Prompt { ids: with.tokenizer.encode(&text)?, thinking })
    }

    pub fn bridge_to_next_turn(&self, with: With, previous: &[TokenId], new: &[Message]) -> Option<Rendered> {
        let end = self.turn_end.as_ref()?;
        let last = *previous.last()?;
        if new.is_empty() || new.iter().any(|m| m.role == Role::Assistant) {
            return None;
        }
        let closed = last == end.id;
        if !closed && with.stops.contains(&last) {
            return None;
        }
        let suffix = self.between_turns(end, new)?;
        let (ids, offsets) = with.tokenizer.encode_with_offsets(&format!("{}{suffix}", end.text)).ok()?;
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
        let ids = ids[skip..].to_vec();
        Some(Rendered { spans, sampled: vec![false; ids.len()], ids })
    }

    pub fn answer_ids(
        &self,
        with: With,
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
            return Err(not_prefix_stable(template, n, answer.role, what));
        };
        let mut ids = with.tokenizer.encode(said)?;
        let Some(end) = ids.iter().rposition(|id| with.stops.contains(id)) else {
            return Err(no_stop_token(with, template, n));
        };
        ids.truncate(if cut { end } else { end + 1 });
        Ok(ids)
    }

    pub fn training_sample(
        &self,
        with: With,
        messages: &[Message],
        tools: &[ToolDef],
        loss: LossMask,
    ) -> Result<TrainingSample, RenderError> {
        self.sample_from(with, messages, tools, loss, 0)
    }

    /// A sample for each assistant's turn, and one for what follows the last where that is trained.
    pub fn turn_samples(
        &self,
        with: With,
        messages: &[Message],
        tools: &[ToolDef],
        loss: LossMask,
    ) -> Result<Vec<TrainingSample>, RenderError> {
        let mut ends: Vec<usize> = answers(messages).map(|n| n + 1).collect();
        let last = ends.last().copied().unwrap_or_default();
        if messages[last..].iter().any(|m| loss.trains_body(m.role)) {
            ends.push(messages.len());
        }
        let starts = std::iter::once(0).chain(ends.iter().copied());
        starts.zip(&ends).map(|(start, end)| self.sample_from(with, &messages[..*end], tools, loss, start)).collect()
    }

    /// A sample of a conversation with targets in the messages from `start` on.
    fn sample_from(
        &self,
        with: With,
        messages: &[Message],
        tools: &[ToolDef],
        loss: LossMask,
        start: usize,
    ) -> Result<TrainingSample, RenderError> {
        let text = self.render_text(messages, tools, false)?;
        let (ids, offsets) = with.tokenizer.encode_with_offsets(&text)?;
        let mut mask = vec![false; ids.len()];

        if loss.assistant {
            match self.template_for(tools).marked(messages, tools, &text)? {
                // As transformers does it: all tokens that have a part in what is marked.
                Some(marked) => {
                    for (at, target) in offsets.iter().zip(&mut mask) {
                        *target |= marked.iter().any(|range| at.start < range.end && range.start < at.end);
                    }
                }
                None => {
                    for n in answers(messages).filter(|n| *n >= start) {
                        let (first, end) = self.sampled_tokens(with, messages, tools, n, &text, &ids, &offsets)?;
                        mask[first..end].fill(true);
                    }
                }
            }
        }

        let trained = |m: &Message| loss.trains_body(m.role) && !m.content.is_empty();
        if messages[start..].iter().any(trained) {
            let segments = self.segments(&text, messages, tools, false);
            for (n, message) in messages.iter().enumerate().skip(start).filter(|(_, m)| trained(m)) {
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
        with: With,
        messages: &[Message],
        tools: &[ToolDef],
        n: usize,
        text: &str,
        ids: &[TokenId],
        offsets: &[Range<usize>],
    ) -> Result<(usize, usize), RenderError> {
        let template = self.template_for(tools);
        let unstable = |what| not_prefix_stable(template, n, messages[n].role, what);
        let before = template.render(&messages[..n], tools, true)?;
        if !text.starts_with(&before) {
            return Err(unstable("the prompt before it is rendered differently in the whole conversation"));
        }
        let through = template.render(&messages[..=n], tools, false)?;
        if !text.starts_with(&through) || through.len() < before.len() {
            return Err(unstable("it is rendered differently once further messages follow"));
        }
        let Some(start) = with.tokenizer.ids_before(&before, ids, offsets)? else {
            return Err(unstable("its first token merges with the generation prompt"));
        };
        let end = offsets.partition_point(|at| at.start < through.len()).max(start);
        let stop = ids[start..end].iter().rposition(|id| with.stops.contains(id)).map(|at| start + at);
        // Some templates close a turn with the token that opens the next one.
        let stop = stop.or_else(|| ids.get(end).is_some_and(|id| with.stops.contains(id)).then_some(end));
        match stop {
            Some(at) => Ok((start, at + 1)),
            None => Err(no_stop_token(with, template, n)),
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

fn not_prefix_stable(template: &ChatTemplate, message: usize, role: Role, what: &'static str) -> RenderError {
    RenderError::NotPrefixStable { origin: template.origin().to_string(), message, role: role.as_str(), what }
}

fn no_stop_token(with: With, template: &ChatTemplate, message: usize) -> RenderError {
    let stops = with.stops.iter().filter_map(|id| with.tokenizer.id_to_token(*id)).collect();
    RenderError::NoStopToken { origin: template.origin().to_string(), message, stops }
}

/// The indices of the assistant's messages.
fn answers(messages: &[Message]) -> impl Iterator<Item = usize> {
    messages.iter().enumerate().filter(|(_, m)| m.role == Role::Assistant).map(|(n, _)| n)
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
