//! What is drawn where the logits are changed: the exact distributions of bias, penalties, least length and grammars.

use super::*;
use crate::chi2::assert_follows;
use crate::forward::{Cached, Work};
use crate::{Grammar, Grammars, SamplingParams, Word};
use prl_kernels::Meter;
use std::sync::Arc;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

const ROW: [f32; 6] = [1.0, 3.0, -2.0, 3.0, 0.5, 2.0];
const DRAWS: u64 = 20_000;

/// A model that is only asked for log-probabilities.
struct Rows;

impl Cached for Rows {
    fn truncate(&mut self, _: usize) {}

    fn growth(&self, _: usize) -> usize {
        0
    }
}

impl Clone for Rows {
    fn clone(&self) -> Self {
        Rows
    }
}

impl Forward for Rows {
    type Cache = Rows;

    fn vocab_size(&self) -> usize {
        ROW.len()
    }

    fn new_cache(&self, _: &Meter) -> Rows {
        Rows
    }

    fn extend(&self, _: &mut [Work<'_, Rows>]) -> Result<Vec<Answer>, String> {
        Err("never called".into())
    }

    fn logprob(&self, logits: &[f32], token: TokenId, temperature: f32) -> f32 {
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let scaled = |x: f32| f64::from(x - max) / f64::from(temperature);
        let total: f64 = logits.iter().map(|x| scaled(*x).exp()).sum();
        (scaled(logits[token as usize]) - total.ln()) as f32
    }
}

fn softmax(logits: &[f32], temperature: f32) -> Vec<f64> {
    let w: Vec<f64> = logits.iter().map(|x| (f64::from(*x) / f64::from(temperature)).exp()).collect();
    let total: f64 = w.iter().sum();
    w.into_iter().map(|x| x / total).collect()
}

fn live(request: &Request) -> (Live, UnboundedReceiver<Event>) {
    let (events, inbox) = unbounded_channel();
    (Live::new(Job { request: request.clone(), events }, 0), inbox)
}

fn request(sampling: SamplingParams) -> Request {
    Request::new(vec![0, 4, 4], sampling, 0)
}

fn step(live: &mut Live, row: &[f32]) -> u64 {
    live.next(&Rows, PolicyVersion(0), 100, &Answer::Logits(row.to_vec()))
}

/// A row of which `id` is drawn whatever the penalties.
fn certain(id: TokenId) -> Vec<f32> {
    (0..ROW.len() as TokenId).map(|other| if other == id { 1000.0 } else { 0.0 }).collect()
}

/// How often each token is drawn from `ROW` after `said`, over as many seeds. Log-probabilities are the model's own.
fn counts(request: &Request, said: &[TokenId]) -> Vec<usize> {
    let mut seen = vec![0; ROW.len()];
    for seed in 0..DRAWS {
        let (mut live, mut events) = live(&Request { seed, ..request.clone() });
        assert_eq!(live.want(0), if live.changes_logits(0) { Want::Logits } else { live.want(0) });
        said.iter().for_each(|id| assert_eq!(step(&mut live, &certain(*id)), 1));
        assert_eq!((step(&mut live, &ROW), &live.ids[..said.len()]), (1, said));
        let drawn = live.ids[said.len()];
        seen[drawn as usize] += 1;
        let told = std::iter::from_fn(|| events.try_recv().ok()).last();
        let Some(Event::Token(told)) = told else { panic!("{told:?}") };
        assert_eq!(told.scored.logprob, Rows.logprob(&ROW, drawn, request.sampling.logprob_temperature()));
    }
    seen
}

fn plain() -> SamplingParams {
    SamplingParams { temperature: 1.3, ..SamplingParams::default() }
}

/// `ROW` with these logits instead.
fn with(changes: &[(usize, f32)]) -> [f32; 6] {
    let mut row = ROW;
    changes.iter().for_each(|(id, logit)| row[*id] = *logit);
    row
}

#[test]
fn bias_penalties_and_the_least_length_give_exact_distributions() {
    const NEVER: f32 = f32::NEG_INFINITY;
    // Of the prompt 0 and 4, of what was said 1 twice, 2 and 4: by the definitions, written out.
    let said = [1, 2, 1, 4];
    let cases = [
        (plain(), ROW),
        (
            SamplingParams { logit_bias: vec![(2, 4.5), (1, -1.5), (5, -100.0)], ..plain() },
            with(&[(2, 2.5), (1, 1.5), (5, -98.0)]),
        ),
        (SamplingParams { frequency_penalty: 0.75, ..plain() }, with(&[(1, 1.5), (2, -2.75), (4, -0.25)])),
        (SamplingParams { frequency_penalty: -0.75, ..plain() }, with(&[(1, 4.5), (2, -1.25), (4, 1.25)])),
        (SamplingParams { presence_penalty: 1.5, ..plain() }, with(&[(1, 1.5), (2, -3.5), (4, -1.0)])),
        (SamplingParams { presence_penalty: -2.0, ..plain() }, with(&[(1, 5.0), (2, 0.0), (4, 2.5)])),
        (SamplingParams { repetition_penalty: 2.0, ..plain() }, with(&[(0, 0.5), (1, 1.5), (2, -4.0), (4, 0.25)])),
        (SamplingParams { repetition_penalty: 0.5, ..plain() }, with(&[(0, 2.0), (1, 6.0), (2, -1.0), (4, 1.0)])),
        (
            SamplingParams {
                repetition_penalty: 2.0,
                frequency_penalty: 0.5,
                presence_penalty: 0.25,
                logit_bias: vec![(1, 1.0), (3, -1.0)],
                ..plain()
            },
            with(&[(0, 0.5), (1, 0.75), (2, -4.75), (3, 2.0), (4, -0.5)]),
        ),
        (SamplingParams { min_tokens: 5, stop_token_ids: vec![0, 5], ..plain() }, with(&[(0, NEVER), (5, NEVER)])),
        (SamplingParams { min_tokens: 4, stop_token_ids: vec![3], ..plain() }, ROW),
    ];
    for (sampling, row) in cases {
        let what = format!("{sampling:?}");
        assert_follows(&counts(&request(sampling), &said), &softmax(&row, 1.3), &what);
    }
}

#[test]
fn filters_see_what_bias_and_penalties_leave() {
    let biased = SamplingParams { logit_bias: vec![(2, 5.0)], presence_penalty: 2.0, top_k: Some(2), ..plain() };
    // 1 was said: 3 − 2; 2 has −2 + 5, as much as 3.
    let kept = softmax(&[3.0, 3.0], 1.3);
    assert_follows(&counts(&request(biased), &[1]), &[0.0, 0.0, kept[0], kept[1], 0.0, 0.0], "top-k");
    let greedy = SamplingParams { temperature: 0.0, frequency_penalty: 1.0, ..plain() };
    let (mut live, _events) = live(&request(greedy));
    (0..6).for_each(|_| assert_eq!(step(&mut live, &ROW), 1));
    // From 3, 3 and 2, each drawn as often as it stays ahead; equals by id.
    assert_eq!(live.ids, [1, 3, 1, 3, 5, 0]);
}

fn guided(grammar: &Grammar, sampling: SamplingParams) -> Request {
    let text = |s: &str| Word::Text(s.as_bytes().to_vec());
    let words = [text("a"), text("b"), text("ab"), text("c"), Word::Special("<|end|>".into()), Word::Nothing];
    let guide = Grammars::new(&words).unwrap().compile(grammar).unwrap();
    Request { guide: Some(guide), ..request(SamplingParams { stop_token_ids: vec![4], ..sampling }) }
}

#[test]
fn a_grammar_leaves_the_models_distribution_over_what_may_come() {
    let regex = |text: &str| Grammar::Regex(text.into());
    let of = |ids: &[usize], row: [f32; 6]| {
        let kept: Vec<f32> = (0..6).map(|id| if ids.contains(&id) { row[id] } else { f32::NEG_INFINITY }).collect();
        softmax(&kept, 1.3)
    };
    for (grammar, said, may) in [
        (regex("(a|b)+"), vec![], vec![0, 1, 2]),
        // Now it may end, too.
        (regex("(a|b)+"), vec![0, 2], vec![0, 1, 2, 4]),
        (regex("[ac]*"), vec![], vec![0, 3, 4]),
        (Grammar::Choice(vec!["abc".into(), "ac".into()]), vec![], vec![0, 2]),
        (Grammar::Choice(vec!["abc".into(), "ac".into()]), vec![0], vec![1, 3]),
        (Grammar::Lark("start: \"a\" start \"c\" | \"b\"".into()), vec![0, 2], vec![3]),
    ] {
        let what = format!("{grammar:?} after {said:?}");
        assert_follows(&counts(&guided(&grammar, plain()), &said), &of(&may, ROW), &what);
    }
    let biased = SamplingParams { logit_bias: vec![(0, 2.0)], frequency_penalty: 0.5, ..plain() };
    let row = with(&[(0, 2.5), (1, 2.5)]);
    assert_follows(&counts(&guided(&regex("(a|b)+"), biased), &[0, 1]), &of(&[0, 1, 2, 4], row), "with bias");
    let few = SamplingParams { top_k: Some(1), ..plain() };
    assert_follows(&counts(&guided(&regex("[ac]*"), few), &[]), &of(&[3], ROW), "with top-k");
    let long = SamplingParams { min_tokens: 9, ..plain() };
    assert_follows(&counts(&guided(&regex("[ac]*"), long), &[]), &of(&[0, 3], ROW), "with a least length");
}

#[test]
fn a_guided_request_ends_where_its_grammar_does() {
    let run = |request: &Request, said: &[TokenId]| {
        let (mut live, _events) = live(request);
        for id in said {
            step(&mut live, &certain(*id));
        }
        (live.outcome, live.ids)
    };
    let regex = |text: &str, sampling| guided(&Grammar::Regex(text.into()), sampling);
    let limit = |n| SamplingParams { max_tokens: Some(n), ..plain() };
    let ended = |end| Some(Ok(end));
    assert_eq!(run(&regex("abc", plain()), &[0, 1]).0, None);
    // Complete at the last token that there is room for, which is no cut.
    assert_eq!(run(&regex("abc", limit(3)), &[0, 1, 3]).0, ended(FinishReason::Complete));
    assert_eq!(run(&regex("abc", limit(2)), &[0, 1]).0, ended(FinishReason::Length));
    assert_eq!(run(&regex("a+", plain()), &[0, 0, 4]).0, ended(FinishReason::StopToken(4)));
    // The end of the turn is not there to be drawn before the text may end.
    assert_eq!(run(&regex("aa?", limit(2)), &[4, 4]), (ended(FinishReason::StopToken(4)), vec![0, 4]));
    // A least length bans the end, but not that of the grammar.
    let long = SamplingParams { min_tokens: 9, ..plain() };
    assert_eq!(run(&regex("ab", long.clone()), &[0, 1]).0, ended(FinishReason::Complete));
    // Where no token ends a request, it ends once nothing else is left; here at once.
    let mut nothing = regex("", long);
    assert_eq!(run(&nothing, &[0]), (ended(FinishReason::Complete), vec![]));
    nothing.sampling.stop_token_ids.clear();
    nothing.sampling.min_tokens = 0;
    assert_eq!(run(&nothing, &[0]), (ended(FinishReason::Complete), vec![]));
    let mut stopped = regex("abcabc", plain());
    stopped.sampling.stop = vec!["bc".into()];
    stopped.decode = Some(Arc::new(|ids| ids.iter().map(|id| ["a", "b", "ab", "c", "", ""][*id as usize]).collect()));
    assert_eq!(run(&stopped, &[0, 1, 3]).0, ended(FinishReason::StopString("bc".into())));
}

#[test]
fn a_grammar_may_begin_behind_a_token() {
    let mut request = guided(&Grammar::Regex("ab".into()), plain());
    request.guide = request.guide.map(|guide| guide.after(3));
    let (mut live, _events) = live(&request);
    // Free, but it cannot end; padding has no text, but may be drawn where nothing binds.
    for (wish, id) in [(2, 2), (5, 5), (4, 0), (3, 3), (5, 0), (1, 1)] {
        let mut row = certain(wish);
        row[0] = 500.0;
        assert_eq!((step(&mut live, &row), live.ids.last()), (1, Some(&id)), "{wish}");
    }
    assert_eq!(live.outcome, Some(Ok(FinishReason::Complete)));
}

#[test]
fn what_leads_nowhere_and_broken_logits_are_errors() {
    // No token is a `z`.
    let (mut lost, _events) = live(&guided(&Grammar::Regex("az".into()), plain()));
    assert_eq!(step(&mut lost, &ROW), 1);
    assert_eq!(step(&mut lost, &ROW), 0);
    assert!(matches!(lost.outcome, Some(Err(InferenceError::Astray { tokens: 1, .. }))), "{:?}", lost.outcome);
    let (mut broken, _events) = live(&guided(&Grammar::Regex("a".into()), plain()));
    step(&mut broken, &[f32::NAN; 6]);
    assert!(matches!(broken.outcome, Some(Err(InferenceError::NonFiniteLogits { .. }))), "{:?}", broken.outcome);
}
