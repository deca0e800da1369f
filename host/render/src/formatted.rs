//! Rendering by a hand-written format: ids, the next turn, what a model samples. Nothing needs a proof here: a format writes
//! every turn as the model saw it, and ids are cut where the model takes over.

use crate::RenderError;
use crate::formats::Format;
use crate::formats::pieces::Writer;
use crate::parse::{self, Thinking};
use crate::renderer::{LossMask, Open, Prompt, Rendered, TrainingSample};
use crate::templated::With;
use prl_types::{Message, Role, RoleSpan, TokenId, ToolDef};

/// The ids of a conversation.
pub(crate) fn render_ids(
    format: &Format,
    with: With,
    messages: &[Message],
    tools: &[ToolDef],
    generate: bool,
) -> Result<Rendered, RenderError> {
    Ok(format.write(messages, tools, generate)?.encode(with.tokenizer)?.into())
}

/// The ids a model is to continue.
pub(crate) fn prompt(
    format: &Format,
    with: With,
    messages: &[Message],
    tools: &[ToolDef],
    open: Open,
) -> Result<Prompt, RenderError> {
    let mut written = format.write(messages, tools, open == Open::NextTurn)?;
    if open == Open::LastMessage && (messages.is_empty() || !written.open_at(messages.len() - 1)) {
        return Err(RenderError::NotContinuable { origin: format!("the format {}", format.name().as_str()) });
    }
    let thinking = if open == Open::NextTurn { format.thinking() } else { Thinking::Unknown };
    Ok(Prompt { ids: written.encode(with.tokenizer)?.ids, thinking })
}

/// What follows the sampled turn at the end of `previous`.
pub(crate) fn bridge_to_next_turn(
    format: &Format,
    with: With,
    previous: &[TokenId],
    new: &[Message],
) -> Result<Option<Rendered>, RenderError> {
    if new.is_empty() || new.iter().any(|m| m.role == Role::Assistant) {
        return Ok(None);
    }
    let Some(last) = previous.last() else { return Ok(None) };
    let id_of = |text: &str| with.tokenizer.token_to_id(text);
    let closed = format.ends().iter().copied().find(|end| id_of(end) == Some(*last));
    if closed.is_none() && with.stops.contains(last) {
        return Ok(None);
    }
    let called = parse::recipients(&last_turn(format, with, previous)?);
    let end = if closed.is_some() { None } else { format.end_of_cut(&called) };
    let mut rendered: Rendered = format.write_next(new, closed.or(end), &called)?.encode(with.tokenizer)?.into();
    if let Some(id) = end.and_then(id_of) {
        rendered.ids.insert(0, id);
        rendered.sampled.insert(0, false);
        rendered.spans.iter_mut().for_each(|span| span.start += 1);
        rendered.spans.insert(0, RoleSpan { start: 0, len: 1, role: Role::Assistant, is_content: false });
    }
    Ok(Some(rendered))
}

/// The text of the turn at the end of `previous`, as it is read; empty where the format has no token that begins a message.
fn last_turn(format: &Format, with: With, previous: &[TokenId]) -> Result<String, RenderError> {
    let id_of = |text: &&str| with.tokenizer.token_to_id(text);
    let Some(begins) = format.begins().as_ref().and_then(id_of) else { return Ok(String::new()) };
    let ends: Vec<TokenId> = format.ends().iter().filter_map(id_of).collect();
    let mut messages = Vec::new();
    let mut rest = previous;
    while let Some(at) = rest.iter().rposition(|id| *id == begins) {
        // What ended before is another turn.
        if !messages.is_empty() && rest.last().is_some_and(|last| ends.contains(last)) {
            break;
        }
        let read = rest[at..].iter().copied().filter(|id| with.is_text(*id, format.calls()));
        let message = with.tokenizer.decode(&read.collect::<Vec<_>>(), false)?;
        if !format.is_assistants(&message) {
            break;
        }
        messages.push(message);
        rest = &rest[..at];
    }
    messages.reverse();
    Ok(messages.concat())
}

/// The ids of an answer, without its end token where it was `cut` off.
pub(crate) fn answer_ids(
    format: &Format,
    with: With,
    messages: &[Message],
    tools: &[ToolDef],
    answer: &Message,
    cut: bool,
) -> Result<Vec<TokenId>, RenderError> {
    let whole = [messages, std::slice::from_ref(answer)].concat();
    let written = format.write(&whole, tools, false)?;
    let encoded = written.encode(with.tokenizer)?;
    let of_answer = |owner: &usize| {
        let piece = &written.pieces()[*owner];
        piece.sampled && piece.message == Some(messages.len())
    };
    let ids = encoded.ids.iter().zip(&encoded.owners).filter(|(_, owner)| of_answer(owner));
    let mut ids: Vec<TokenId> = ids.map(|(id, _)| *id).collect();
    if cut {
        ids.pop();
    }
    Ok(ids)
}

/// A conversation to learn from.
pub(crate) fn training_sample(
    format: &Format,
    with: With,
    messages: &[Message],
    tools: &[ToolDef],
    loss: LossMask,
) -> Result<TrainingSample, RenderError> {
    let written = format.write(messages, tools, false)?;
    if format.forbids_thinking() && loss.assistant {
        refuse_thoughts(format, &written)?;
    }
    let encoded = written.encode(with.tokenizer)?;
    let target = |(owner, sampled): (&usize, &bool)| {
        let piece = &written.pieces()[*owner];
        (loss.assistant && *sampled) || (piece.is_content && loss.trains_body(piece.role))
    };
    let mask = encoded.owners.iter().zip(&encoded.sampled).map(target).collect();
    Ok(TrainingSample { ids: encoded.ids, mask })
}

/// A model that is trained to answer without thinking must not learn to think all the same.
fn refuse_thoughts(format: &Format, written: &Writer) -> Result<(), RenderError> {
    let thought = written.pieces().iter().find(|piece| piece.sampled && piece.text.trim_start().starts_with("<think>"));
    match thought.and_then(|piece| piece.message) {
        Some(message) => {
            let what = "reasoning while `enable_thinking` is false";
            let remedy = "leave `renderer.enable_thinking` unset";
            Err(RenderError::NoPlace { format: format.name().as_str(), message, what, remedy })
        }
        None => Ok(()),
    }
}
