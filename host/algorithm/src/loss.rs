//! The call of a custom loss: the trainer's lists go out as they are, the answer is validated. Owns the places that a
//! plug-in writes a gradient to; must not know any formula.

use crate::algorithm::mix;
use crate::clock::timed;
use crate::host::Places;
use crate::{Algorithm, AlgorithmError};
use prl_abi::BatchColumns;
use prl_types::{LossBatch, LossGradient};
use std::mem::size_of;
use std::ptr;

/// Keeps the random numbers of a loss apart from those of scoring.
const LOSS_STREAM: u64 = 2;
/// What stands behind the end of a list: a plug-in that writes there is found out.
const GUARD: u32 = 0x7fc0_5eed;
/// Elements of the guard.
const GUARDS: usize = 16;
/// Elements that are looked at together; the loops over so many need no branch.
const STRIDE: usize = 1024;

impl Algorithm {
    /// The loss of one micro-batch and its derivatives by log-probability and entropy.
    ///
    /// # Errors
    /// The plug-in's failure or panic; a plug-in without a loss; lists of the batch that do not fit each other; a result
    /// that is not finite, or written elsewhere than it should be.
    pub fn loss(&mut self, batch: &LossBatch) -> Result<LossGradient, AlgorithmError> {
        const CALL: &str = "loss";
        let Some(hook) = self.table.loss else {
            return Err(AlgorithmError::NoLoss { name: self.metadata.name.clone() });
        };
        let columns = BatchColumns {
            normalizer: batch.normalizer,
            token_start: batch.starts,
            temperature: batch.temperatures,
            version_min: batch.oldest,
            version_max: batch.newest,
            token_id: batch.token_ids,
            mask: batch.mask,
            trainer_logprob: batch.trainer_logprobs,
            sampling_logprob: batch.sampling_logprobs,
            ref_logprob: batch.ref_logprobs,
            advantage: batch.advantages,
            rl_weight: batch.weights,
            entropy: self.metadata.entropy.then_some(batch.entropy),
        };
        let tokens = batch.token_ids.len();
        if let Some((list, len, due)) = columns.misfit() {
            return Err(AlgorithmError::Batch { list, len, due });
        }
        if let Some((list, len, due)) = misplaced(batch.starts, tokens) {
            return Err(AlgorithmError::Batch { list, len, due });
        }
        let mut d_logprob = Place::new(tokens);
        let mut d_entropy = self.metadata.entropy.then(|| Place::new(tokens));
        let mut token_loss = Place::new(tokens);
        let asked = prl_abi::Loss {
            struct_size: size_of::<prl_abi::Loss>() as u32,
            reserved: 0,
            loss: 0.0,
            d_logprob: d_logprob.as_mut_ptr(),
            d_entropy: d_entropy.as_mut().map_or(ptr::null_mut(), Place::as_mut_ptr),
            token_loss: token_loss.as_mut_ptr(),
        };
        let mut out = asked;
        let view = columns.view();
        let seed = mix(&[self.seed, batch.step, batch.part, LOSS_STREAM]);
        self.host.context().begin(seed, Places::default());
        // SAFETY: the instance is alive and borrowed exclusively; view and places live during the call.
        let (code, time) = timed(|| unsafe { hook(self.instance, view.raw(), &mut out) });
        self.note(CALL, time);
        let outcome = self.finish(CALL, code)?;
        let same =
            (out.d_logprob, out.d_entropy, out.token_loss) == (asked.d_logprob, asked.d_entropy, asked.token_loss);
        if !same {
            return Err(
                self.output(CALL, "it put a list of its own in the place of one it was given to write to".into())
            );
        }
        if !out.loss.is_finite() {
            return Err(self.output(CALL, format!("the loss is {}", out.loss)));
        }
        let values = |name, place: Place| place.check(name, batch.starts).map_err(|reason| self.output(CALL, reason));
        let mut dlogprob = values("d_logprob", d_logprob)?;
        let mut dentropy = d_entropy.map(|place| values("d_entropy", place)).transpose()?;
        let token_losses = values("token_loss", token_loss)?;
        clear_non_members(&mut dlogprob, batch.weights);
        dentropy.iter_mut().for_each(|values| clear_non_members(values, batch.weights));
        let (metrics, seconds) = (outcome.metrics, time.as_secs_f64());
        Ok(LossGradient { loss: out.loss, dlogprob, dentropy, token_losses, metrics, seconds })
    }
}

/// A list for a plug-in to write to: zeros, and a guard behind them.
struct Place(Vec<f32>);

impl Place {
    fn new(tokens: usize) -> Self {
        let mut values = vec![0.0; tokens + GUARDS];
        values[tokens..].fill(f32::from_bits(GUARD));
        Place(values)
    }

    fn as_mut_ptr(&mut self) -> *mut f32 {
        self.0.as_mut_ptr()
    }

    /// The list, when the guard is whole and every value finite; `starts` place a value in its sample.
    fn check(mut self, name: &str, starts: &[u64]) -> Result<Vec<f32>, String> {
        let guard = self.0.split_off(self.0.len() - GUARDS);
        if guard.iter().any(|v| v.to_bits() != GUARD) {
            return Err(format!("it wrote past the end of `{name}`"));
        }
        let Some(at) = not_finite(&self.0) else { return Ok(self.0) };
        let sample = starts.partition_point(|start| *start <= at as u64).saturating_sub(1);
        let token = at - starts.get(sample).map_or(0, |start| *start as usize);
        Err(format!("`{name}` is {} at token {token} of sample {sample}", self.0[at]))
    }
}

/// The first value that is NaN or infinite.
fn not_finite(values: &[f32]) -> Option<usize> {
    let fine = |block: &[f32]| block.iter().fold(true, |fine, v| fine & v.is_finite());
    let block = values.chunks(STRIDE).position(|block| !fine(block))?;
    values[block * STRIDE..].iter().position(|v| !v.is_finite()).map(|at| block * STRIDE + at)
}

fn clear_non_members(values: &mut [f32], weights: &[f32]) {
    for (value, weight) in values.iter_mut().zip(weights) {
        *value = if *weight == 0.0 { 0.0 } else { *value };
    }
}

/// Starts that are not 0, ascending, and the number of tokens.
fn misplaced(starts: &[u64], tokens: usize) -> Option<(&'static str, usize, usize)> {
    let ascending = starts.first() == Some(&0) && starts.is_sorted();
    let last = starts.last().map_or(0, |last| *last as usize);
    (!ascending || last != tokens).then_some(("token_start", last, tokens))
}
