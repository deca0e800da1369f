//! `prl algo loss`: a loss and its gradient on recorded tokens, of a plug-in or of one of the trainer's components. Owns how
//! the numbers reach either and the form of the result; the formulas are theirs.

use super::input::{self, exact};
use super::tokens::{self, Columns};
use super::{Loss, open};
use crate::failure::{Failure, input as bad_input, run as running};
use prl_algorithm::Hook;
use prl_trainer::{Counts, Tokens, sample_loss};
use prl_types::{LossBatch, LossGradient, Streams, Summary};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// A component of the trainer's own.
#[derive(Clone, Debug)]
enum Component {
    /// Policy gradient, with its formula.
    Rl(prl_config::Loss),
    Ce,
    RefKl,
}

/// Runs the command.
pub fn run(asked: &Loss) -> Result<u8, Failure> {
    let config = open::config(&asked.config)?;
    let component = Component::named(&asked.asked.algo, &config)?;
    let inputs = input::read::<tokens::Tokens>(&asked.input)?;
    let mut batches = Vec::new();
    for (name, tokens) in &inputs.items {
        let columns = tokens.columns().map_err(|error| Failure::input(format_args!("{name}: {error}")))?;
        batches.push((name, columns));
    }
    let mut results = Vec::new();
    if let Some(component) = component {
        for (name, columns) in &batches {
            results.push(component.loss(columns).map_err(|e| Failure::input(format_args!("{name}: {e}")))?);
        }
    } else {
        let plugin = asked.asked.plugin()?;
        if !plugin.metadata().hooks.contains(&Hook::Loss) {
            return Err(Failure::input(format_args!(
                "`{}` has no loss of its own; its tokens go to a component of the trainer's: default, ipo, ce or ref_kl",
                plugin.metadata().name
            )));
        }
        let mut algorithm = plugin.create_loss(&config, asked.seed).map_err(Failure::input)?;
        for (name, columns) in &batches {
            // A run does not ask of a batch without members either.
            let call = |batch: &LossBatch| match batch.weights.iter().any(|weight| *weight != 0.0) {
                true => algorithm.loss(batch),
                false => Ok(LossGradient { dlogprob: vec![0.0; batch.weights.len()], ..LossGradient::default() }),
            };
            let called = columns.with_batch(call).map_err(bad_input(name))?;
            let out = called.map_err(|e| Failure::run(format_args!("{name}: {e}")))?;
            let mut metrics = BTreeMap::<&str, Vec<f64>>::new();
            out.metrics.iter().for_each(|m| metrics.entry(&m.name).or_default().push(m.value));
            let mut result = result(out.loss, &out.dlogprob, metrics).map_err(running(name))?;
            if let (Some(dentropy), Some(map)) = (&out.dentropy, result.as_object_mut()) {
                map.insert("grad_entropy".into(), json!(exact(dentropy)));
            }
            results.push(result);
        }
    }
    inputs.print(&results)
}

/// One result; several values of one metric are averaged.
///
/// # Errors
/// Log-probabilities are so far apart that something is beyond all numbers, which JSON does not have.
fn result(loss: f64, gradient: &[f32], metrics: BTreeMap<&str, Vec<f64>>) -> Result<Value, String> {
    let metrics: Vec<(&str, f64)> =
        metrics.into_iter().map(|(name, values)| (name, Summary::of(values).mean)).collect();
    if let Some((name, value)) = metrics.iter().copied().chain([("loss", loss)]).find(|(_, value)| !value.is_finite()) {
        return Err(format!("`{name}` is {value}: log-probabilities are too far apart"));
    }
    if let Some(token) = gradient.iter().position(|g| !g.is_finite()) {
        return Err(format!(
            "the gradient of token {token} is {}: log-probabilities are too far apart",
            gradient[token]
        ));
    }
    let metrics: Map<String, Value> =
        metrics.into_iter().map(|(name, value)| (name.to_owned(), value.into())).collect();
    Ok(json!({ "loss": loss, "grad": exact(gradient), "metrics": metrics }))
}

impl Component {
    /// The component of this name, with its configuration; `None` for other names.
    fn named(name: &str, config: &Value) -> Result<Option<Self>, Failure> {
        let rl = |config: &Value| {
            let mut config = config.clone();
            config["type"] = name.into();
            let loss = serde_json::from_value(config).map_err(bad_input(format_args!("`--config` of `{name}`")))?;
            Ok(Some(Component::Rl(loss)))
        };
        let plain = |component| match config.as_object().and_then(|keys| keys.keys().next()) {
            Some(key) => Err(Failure::input(format_args!("`--config`: `{name}` has no options, so no `{key}`"))),
            None => Ok(Some(component)),
        };
        match name {
            "default" | "ipo" => rl(config),
            "ce" => plain(Component::Ce),
            "ref_kl" => plain(Component::RefKl),
            _ => Ok(None),
        }
    }

    fn loss(&self, columns: &Columns) -> Result<Value, String> {
        let sequences = columns.sequences().map(|tokens| self.sequence(columns, tokens));
        let sequences = sequences.collect::<Result<Vec<_>, _>>()?;
        let mut counts = Counts::default();
        sequences.iter().for_each(|sequence| counts += Counts::of(&sequence.tokens(0)));
        if let Some(normalizer) = columns.normalizer {
            counts = Counts { rl: normalizer, ce: normalizer, ref_kl: normalizer };
        }
        // Another loss is never asked for by an item without rl members.
        let formula = match self {
            Component::Rl(loss) => loss.clone(),
            Component::Ce | Component::RefKl => prl_config::Loss::Default(Default::default()),
        };
        let (mut loss, mut gradient, mut metrics) = (0.0, Vec::new(), BTreeMap::<&str, Vec<f64>>::new());
        for (index, (sequence, tokens)) in sequences.iter().zip(columns.sequences()).enumerate() {
            let logprobs = [&[0.0], &columns.trainer_logprobs[tokens]].concat();
            let own = sample_loss(&formula, &counts, &sequence.tokens(index), &logprobs).map_err(|e| e.to_string())?;
            loss += own.loss;
            gradient.extend_from_slice(&own.dlogprob[1..]);
            own.metrics.iter().for_each(|(name, value)| metrics.entry(name).or_default().push(*value));
            metrics.entry("mismatch_kl").or_default().extend(own.mismatch_kl);
        }
        metrics.retain(|_, values| !values.is_empty());
        result(loss, &gradient, metrics)
    }

    /// A sequence as the trainer gets it: behind one token that nothing predicts, which is no member of anything.
    fn sequence(&self, columns: &Columns, tokens: std::ops::Range<usize>) -> Result<Sequence, String> {
        let stream = |values: &[f32]| [&[0.0], &values[tokens.clone()]].concat();
        let needed = |name: &str, values: &Option<Vec<f32>>| match values {
            Some(values) => Ok(Some(stream(values))),
            None => Err(format!("`{name}` is missing, and the loss is made of it")),
        };
        let n = tokens.len() + 1;
        let (weights, none) = (Some(stream(&columns.weights)), Some(vec![0.0; n]));
        let streams = match self {
            Component::Rl(_) => Streams {
                advantages: needed("advantages", &columns.advantages)?,
                rl_weights: weights,
                ..Streams::default()
            },
            Component::Ce => Streams { rl_weights: none, ce_weights: weights, ..Streams::default() },
            Component::RefKl => Streams {
                rl_weights: none,
                ref_kl_weights: weights,
                ref_logprobs: needed("ref_logprobs", &columns.ref_logprobs)?,
                ..Streams::default()
            },
        };
        let inference = match (self, &columns.inference_logprobs) {
            (Component::Ce, None) => vec![0.0; n],
            (_, given) => needed("inference_logprobs", given)?.unwrap_or_default(),
        };
        let mask = [&[false], &columns.mask[tokens.clone()]].concat();
        Ok(Sequence { mask, inference, streams })
    }
}

/// What a component reads of a sequence.
struct Sequence {
    mask: Vec<bool>,
    inference: Vec<f32>,
    streams: Streams,
}

impl Sequence {
    fn tokens(&self, index: usize) -> Tokens<'_> {
        let (mask, sampling_logprobs) = (&self.mask, &self.inference);
        Tokens { index, env: "input", mask, sampling_logprobs, streams: &self.streams }
    }
}
