//! One sequence on its way: the engine's events with the text they make. Owns their order and what is counted of them;
//! must not know in which form they are told.

use crate::app::App;
use crate::error::ApiError;
use crate::metrics::Watch;
use crate::sampling::Sampling;
use crate::text::{Text, TextRules};
use axum::http::StatusCode;
use futures::future::join_all;
use prl_inference::{Drawn, Event, Events, Guide, PromptDone, Request};
use prl_model::Adapter;
use prl_render::RenderError;
use prl_types::{FinishReason, TokenId};
use std::sync::Arc;
use std::time::Duration;

/// How long a streamed answer waits for the engine to take the request, before it begins all the same.
const ADMISSION: Duration = Duration::from_secs(1);

/// What happens to a sequence, in this order.
#[derive(Debug)]
pub(crate) enum Step {
    /// Its prompt is through the model.
    Prompt(PromptDone),
    /// A token, and the text that is certain with it.
    Token(Drawn, String),
    /// The rest of the text. Nothing follows.
    End(FinishReason, String),
}

/// A sequence on its way. Dropping it cancels it.
pub(crate) struct Sequence {
    events: Events,
    peeked: Option<Event>,
    text: Option<Text>,
    watch: Watch,
    prompt_tokens: usize,
}

/// A sequence that is over.
#[derive(Debug, Default)]
pub(crate) struct Finished {
    pub prompt: PromptDone,
    pub drawn: Vec<Drawn>,
    /// One piece for each token, and the rest.
    pub text: Vec<String>,
    pub end: Option<FinishReason>,
}

/// What keys and values of a request depend on besides its tokens.
pub(crate) struct Cached {
    /// They are shared with requests of the same salt only.
    pub salt: Option<Arc<str>>,
    pub adapter: Option<Arc<Adapter>>,
}

/// Queues a prompt's sequences. Log-probabilities of the prompt are computed for the first one, or for each.
pub(crate) fn submit(
    app: &App,
    prompt: &Arc<[TokenId]>,
    sampling: &Sampling,
    guide: Option<&Guide>,
    cached: &Cached,
    each_scores: bool,
) -> Vec<Sequence> {
    let rules = Arc::new(TextRules {
        renderer: app.renderer.clone(),
        skip_special: sampling.skip_special,
        stop: sampling.params.stop.clone(),
        stop_ids: sampling.params.stop_token_ids.clone(),
        include_stop: sampling.include_stop,
    });
    let one = |i: usize| {
        let seed = sampling.seed.map_or_else(|| app.next_seed(), |seed| seed.wrapping_add(i as u64));
        let decoding = rules.clone();
        let mut request = Request::new(prompt.clone(), sampling.params.clone(), seed);
        request.shared = sampling.n > 1;
        request.cache_salt.clone_from(&cached.salt);
        request.adapter.clone_from(&cached.adapter);
        request.guide = guide.cloned();
        request.decode = Some(Arc::new(move |ids: &[TokenId]| decoding.decode(ids)));
        if i > 0 && !each_scores {
            request.sampling.prompt_logprobs = None;
        }
        Sequence {
            events: app.engine.submit(request),
            peeked: None,
            text: Some(Text::new(rules.clone())),
            watch: Watch::new(app.metrics.clone()),
            prompt_tokens: prompt.len(),
        }
    };
    (0..sampling.n).map(one).collect()
}

/// Waits a moment until the engine has begun with all of them, so that what it refuses is refused before an answer begins.
pub(crate) async fn admitted(sequences: &mut [Sequence]) -> Result<(), ApiError> {
    // Those that wait longer are in the queue, which they only leave to be served.
    let _ = tokio::time::timeout(ADMISSION, join_all(sequences.iter_mut().map(Sequence::peek))).await;
    match sequences.iter_mut().find_map(Sequence::refused) {
        Some(error) => Err(error),
        None => Ok(()),
    }
}

impl Sequence {
    async fn peek(&mut self) {
        if self.peeked.is_none() {
            self.peeked = Some(self.events.next().await);
        }
    }

    fn refused(&mut self) -> Option<ApiError> {
        match &self.peeked {
            Some(Event::End(Err(error))) => {
                self.watch.fail();
                Some(error.clone().into())
            }
            _ => None,
        }
    }

    /// What happens next.
    pub async fn next(&mut self) -> Result<Step, ApiError> {
        let event = match self.peeked.take() {
            Some(event) => event,
            None => self.events.next().await,
        };
        match event {
            Event::Prompt(done) => {
                self.watch.prompt(self.prompt_tokens);
                Ok(Step::Prompt(done))
            }
            Event::Token(drawn) => {
                self.watch.token();
                let text = self.text.as_mut().map(|text| text.push(drawn.scored.id)).transpose();
                Ok(Step::Token(drawn, text.map_err(broken)?.unwrap_or_default()))
            }
            Event::End(Ok(end)) => {
                self.watch.end(&end);
                let text = self.text.take().map(|text| text.finish(&end)).transpose();
                Ok(Step::End(end, text.map_err(broken)?.unwrap_or_default()))
            }
            Event::End(Err(error)) => {
                self.watch.fail();
                Err(error.into())
            }
        }
    }

    /// Everything.
    pub async fn finish(mut self) -> Result<Finished, ApiError> {
        let mut finished = Finished::default();
        loop {
            match self.next().await? {
                Step::Prompt(prompt) => finished.prompt = prompt,
                Step::Token(drawn, text) => {
                    finished.drawn.push(drawn);
                    finished.text.push(text);
                }
                Step::End(end, text) => {
                    finished.end = Some(end);
                    finished.text.push(text);
                    return Ok(finished);
                }
            }
        }
    }
}

/// Everything of all of them; the first error ends the others.
pub(crate) async fn finish_all(sequences: Vec<Sequence>) -> Result<Vec<Finished>, ApiError> {
    futures::future::try_join_all(sequences.into_iter().map(Sequence::finish)).await
}

fn broken(error: RenderError) -> ApiError {
    ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string())
}
