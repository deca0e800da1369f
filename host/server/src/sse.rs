//! Answers in pieces, as server-sent events. Owns their framing and that a caller who goes away cancels what is under
//! way; must not know what the pieces say.

use crate::error::ApiError;
use crate::sequence::{Sequence, Step};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures::stream::{BoxStream, SelectAll, select_all};
use futures::{StreamExt, stream};
use serde_json::Value;
use std::convert::Infallible;

/// Turns what happens to sequences into pieces of an answer.
pub(crate) trait Form: Send + 'static {
    /// Before anything happens.
    fn begin(&mut self) -> Vec<Value>;
    /// To the sequence of this index.
    fn step(&mut self, index: usize, step: Step) -> Vec<Value>;
    /// After everything.
    fn end(&mut self) -> Vec<Value>;
}

type Steps = SelectAll<BoxStream<'static, (usize, Result<Step, ApiError>)>>;

/// Where the answer is.
enum At<F> {
    Begin(Steps, F),
    Middle(Steps, F),
    Over,
}

/// The answer to a request with these sequences.
pub(crate) fn answer(sequences: Vec<Sequence>, form: impl Form) -> Response {
    let steps = select_all(sequences.into_iter().enumerate().map(|(i, sequence)| steps(i, sequence)));
    let pieces = stream::unfold(At::Begin(steps, form), advance).flat_map(stream::iter);
    let events = pieces.map(|data| Ok::<_, Infallible>(Event::default().data(data)));
    Sse::new(events).keep_alive(KeepAlive::default()).into_response()
}

fn steps(index: usize, sequence: Sequence) -> BoxStream<'static, (usize, Result<Step, ApiError>)> {
    let next = async |(index, sequence): (usize, Option<Sequence>)| {
        let mut sequence = sequence?;
        let step = sequence.next().await;
        let more = !matches!(step, Err(_) | Ok(Step::End(..)));
        Some(((index, step), (index, more.then_some(sequence))))
    };
    stream::unfold((index, Some(sequence)), next).boxed()
}

async fn advance<F: Form>(at: At<F>) -> Option<(Vec<String>, At<F>)> {
    let text = |pieces: Vec<Value>| pieces.iter().map(Value::to_string).collect::<Vec<_>>();
    let done = || "[DONE]".to_string();
    match at {
        At::Begin(steps, mut form) => Some((text(form.begin()), At::Middle(steps, form))),
        At::Middle(mut steps, mut form) => match steps.next().await {
            Some((index, Ok(step))) => Some((text(form.step(index, step)), At::Middle(steps, form))),
            Some((_, Err(error))) => Some((vec![error.json().to_string(), done()], At::Over)),
            None => {
                let mut last = text(form.end());
                last.push(done());
                Some((last, At::Over))
            }
        },
        At::Over => None,
    }
}
