//! One step of reinforcement learning: a batch of samples with streams in, new weights and metrics out.
//!
//! Owns the order of a step: count members, pack, forward and backward bin by bin, clip, update. Must not know how
//! samples were made or what their streams mean to the algorithm.

use crate::custom::{Custom, Pack, join};
use crate::metrics::{Cost, put, put_perf, put_spread};
use crate::optim::{self, Optimizer};
use crate::{
    Counts, CustomLoss, Progress, SampleLoss, Schedule, Skip, StepMetrics, Tokens, TrainerError, TrainerState, clock,
    pack, sample_loss,
};
use prl_config::{Loss, Optim, Scheduler};
use prl_model::{Learner, Packed};
use prl_types::{Batch, BatchItem, Step, Summary};
use std::collections::BTreeMap;
use std::path::Path;

/// The settings of a [`Trainer`].
#[derive(Clone, Debug, PartialEq)]
pub struct TrainerParts {
    /// The rl component.
    pub loss: Loss,
    /// The optimiser.
    pub optim: Optim,
    /// The learning rate over the run.
    pub scheduler: Scheduler,
    /// Steps of the run, for schedules that end.
    pub max_steps: Option<u64>,
    /// Tokens of a packed row; longer samples are cut. A GPU takes several short rows in one pass.
    pub seq_len: usize,
    /// The device's peak, floating-point operations per second, when known; gives `perf/mfu`.
    pub peak_flops: Option<f64>,
}

/// Tells whether a stop is asked for.
pub(crate) type Asked = Box<dyn Fn() -> bool + Send>;

/// What a step did to the weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Update {
    /// They changed.
    Applied,
    /// No token of the batch takes part in the loss; weights and optimiser are as before.
    NothingTrainable,
    /// Loss or gradient was not finite; weights and optimiser are as before.
    NotFinite,
}

/// The result of a step.
#[derive(Clone, Debug, PartialEq)]
pub struct StepOutcome {
    /// What happened to the weights.
    pub update: Update,
    /// Metric name → value.
    pub metrics: StepMetrics,
}

/// The model being trained, with its loss and its optimiser.
pub struct Trainer {
    learner: Learner,
    optimizer: Optimizer,
    schedule: Schedule,
    parts: TrainerParts,
    progress: Progress,
    stop: Option<Asked>,
    custom: Option<Custom>,
}

/// An item of the batch that takes part, cut to `seq_len`.
struct Member {
    index: usize,
    item: BatchItem,
}

/// What the forward pass said about a member.
struct Seen {
    loss: SampleLoss,
    /// Of each sampled token.
    entropy: Vec<f64>,
}

impl Trainer {
    /// Takes over a model before its first step.
    ///
    /// # Errors
    /// Settings that cannot work; [`Loss::Custom`], which takes [`Trainer::with_loss`].
    pub fn new(learner: Learner, parts: TrainerParts) -> Result<Self, TrainerError> {
        if let Loss::Custom(custom) = &parts.loss {
            let reason = format!("= \"custom\" needs the loss `{}` of a plug-in", custom.name);
            return Err(TrainerError::Setting { key: "trainer.loss.type", reason });
        }
        Self::build(learner, parts, None)
    }

    /// As [`Trainer::new`], with an rl component from outside: `parts.loss` is [`Loss::Custom`].
    ///
    /// # Errors
    /// Settings that cannot work.
    pub fn with_loss(learner: Learner, parts: TrainerParts, loss: Box<dyn CustomLoss>) -> Result<Self, TrainerError> {
        if !matches!(parts.loss, Loss::Custom(_)) {
            let reason = format!("= \"{}\" leaves no place for the loss `{}`", parts.loss.tag(), loss.name());
            return Err(TrainerError::Setting { key: "trainer.loss.type", reason });
        }
        Self::build(learner, parts, Some(Custom::new(loss)))
    }

    fn build(learner: Learner, parts: TrainerParts, custom: Option<Custom>) -> Result<Self, TrainerError> {
        if parts.seq_len < 2 {
            let reason = format!("= {} leaves no token to predict; it must be at least 2", parts.seq_len);
            return Err(TrainerError::Setting { key: "trainer.model.seq_len", reason });
        }
        let (optimizer, schedule) = optim::build(&parts.optim, &parts.scheduler, parts.max_steps)?;
        Ok(Trainer { learner, optimizer, schedule, parts, progress: Progress::default(), stop: None, custom })
    }

    /// Trains on one batch and advances the step, whatever becomes of the weights.
    ///
    /// Samples without a token in the loss are left out before packing, so that they change nothing. The loss is
    /// summed in the order of the batch, whatever the packing. `loss/mean` is the step's loss; `loss/{median,std,min,
    /// max}` are over its tokens. `optim/lr` is the rate of this step. A custom loss is summed over micro-batches instead,
    /// and its own metrics are `loss/<name>/…`, averaged over them.
    ///
    /// # Errors
    /// A batch out of turn, streams that do not fit, a failing device. The step is not counted then, and no weight has
    /// changed.
    pub fn train_step(&mut self, batch: &Batch) -> Result<StepOutcome, TrainerError> {
        let started = clock::now();
        let step = self.progress.step + 1;
        if batch.step != step {
            return Err(TrainerError::OutOfTurn { got: batch.step, want: step });
        }
        let (members, counts) = self.members(batch);
        self.learner.begin(Some(step));
        self.custom.iter_mut().for_each(Custom::begin);
        let lens: Vec<usize> = members.iter().map(|m| m.item.sample.len()).collect();
        let mut seen: Vec<Option<Seen>> = members.iter().map(|_| None).collect();
        for bin in pack(&lens, self.learner.pass_tokens(self.parts.seq_len)) {
            let done = match self.stop.as_ref().is_some_and(|asked| asked()) {
                true => Err(TrainerError::Stopped),
                false => self.micro_step((step, &counts), &members, &bin, &mut seen),
            };
            if let Err(e) = done {
                // Should this fail too, the first error is the one to tell.
                let _ = self.learner.zero_grads();
                return Err(e);
            }
        }
        let seen: Vec<Seen> = seen.into_iter().flatten().collect();
        self.learner.wait()?;
        let forward_backward = started.elapsed().as_secs_f64();

        let lr = self.schedule.lr(step, self.progress.schedule_from);
        let mut metrics = StepMetrics::new();
        let own: f64 = seen.iter().map(|s| s.loss.loss).sum();
        let loss = self.custom.as_ref().map_or(own, |custom| own + custom.value);
        let update = if !counts.any() {
            self.progress.zero_trainable_batches += 1;
            put(&mut metrics, "optim/grad_norm", 0.0);
            put(&mut metrics, "optim/zero_grad_ratio", 1.0);
            Update::NothingTrainable
        } else if !loss.is_finite() {
            self.learner.zero_grads()?;
            self.progress.skipped_steps += 1;
            Update::NotFinite
        } else {
            let applied = self.optimizer.apply(&mut self.learner, lr)?;
            put(&mut metrics, "optim/grad_norm", applied.grad_norm);
            if applied.applied {
                put(&mut metrics, "optim/zero_grad_ratio", applied.zero_grad_ratio);
                Update::Applied
            } else {
                self.progress.skipped_steps += 1;
                Update::NotFinite
            }
        };

        let tokens: usize = lens.iter().sum();
        self.progress.step = step;
        self.progress.total_tokens += tokens as u64;
        self.progress.total_samples += batch.items.len() as u64;
        put(&mut metrics, "optim/lr", lr);
        put(&mut metrics, "optim/skipped_steps", self.progress.skipped_steps as f64);
        put(&mut metrics, "zero_trainable_batches", self.progress.zero_trainable_batches as f64);
        put_losses(&mut metrics, loss, &members, &seen);
        if let Some(custom) = &self.custom {
            put_custom(&mut metrics, custom);
        }
        let seconds = started.elapsed().as_secs_f64();
        let cost = Cost { tokens, seconds, seq_len: self.parts.seq_len, peak_flops: self.parts.peak_flops };
        put_perf(&mut metrics, &self.learner, &cost);
        put(&mut metrics, "time/forward_backward", forward_backward);
        put(&mut metrics, "time/step", seconds);
        Ok(StepOutcome { update, metrics })
    }

    /// Lets a step be given up between two passes: [`TrainerError::Stopped`]. Training cannot go on after that.
    pub fn stop_when(&mut self, asked: impl Fn() -> bool + Send + 'static) {
        self.stop = Some(Box::new(asked));
    }

    /// The model with its present weights.
    pub fn learner(&self) -> &Learner {
        &self.learner
    }

    /// Steps done and counters.
    pub fn progress(&self) -> &Progress {
        &self.progress
    }

    /// What [`Trainer::load_state`] takes back once it is written. The weights are not part of it.
    ///
    /// # Errors
    /// The device or the loss does not give it.
    pub fn state(&mut self) -> Result<TrainerState, TrainerError> {
        Ok(TrainerState {
            optimizer: self.optimizer.saved(&mut self.learner)?,
            progress: self.progress.clone(),
            loss: self.custom.as_mut().map_or(Ok(None), |custom| custom.state())?,
        })
    }

    /// Reads what [`TrainerState::write`] wrote, for a model that has the weights of that moment. Training goes on as
    /// if it had not stopped, bit for bit where the device sums in a fixed order, but for what `skip` leaves out.
    ///
    /// # Errors
    /// A file that is missing, damaged, or of another model; nothing has changed then.
    pub fn load_state(&mut self, dir: &Path, skip: Skip) -> Result<(), TrainerError> {
        let progress = Progress::load(dir)?.without(skip);
        self.custom.as_mut().map_or(Ok(()), |custom| custom.load(dir))?;
        if !skip.optimizer {
            self.optimizer.load(dir, &mut self.learner)?;
        }
        self.progress = progress;
        Ok(())
    }

    /// The items with a token in the loss, cut to length, and the step's counts.
    fn members(&self, batch: &Batch) -> (Vec<Member>, Counts) {
        let mut counts = Counts::default();
        let mut members = Vec::new();
        for (index, item) in batch.items.iter().enumerate() {
            let mut item = item.clone();
            item.sample.truncate(self.parts.seq_len);
            item.streams.truncate(self.parts.seq_len);
            let own = Counts::of(&Tokens::of(index, &item));
            if own.any() {
                counts += own;
                members.push(Member { index, item });
            }
        }
        (members, counts)
    }

    /// Forward and backward of one bin.
    fn micro_step(
        &mut self,
        (step, counts): (Step, &Counts),
        members: &[Member],
        bin: &[usize],
        seen: &mut [Option<Seen>],
    ) -> Result<(), TrainerError> {
        let mut packed = Packed::default();
        for i in bin {
            let sample = &members[*i].item.sample;
            packed.ids.extend_from_slice(sample.token_ids());
            packed.doc_lens.push(sample.len());
            packed.temperatures.resize(packed.ids.len(), sample.temperature());
        }
        let stats = self.learner.forward(&packed)?;
        let mut gradient = None;
        // Of values that are not finite a custom loss could say nothing; the step is left out below.
        let blind = self.custom.is_some() && stats.logprobs.iter().any(|lp| !lp.is_finite());
        if let Some(custom) = self.custom.as_mut().filter(|_| !blind) {
            let mut pack = Pack::default();
            for i in bin {
                let Member { index, item } = &members[*i];
                pack.push(&item.sample, &Tokens::of(*index, item));
            }
            gradient = custom.call(step, counts.rl, &pack, &stats)?;
        }
        let mut dlogprob = Vec::with_capacity(packed.ids.len());
        for i in bin {
            let Member { index, item } = &members[*i];
            let tokens = dlogprob.len()..dlogprob.len() + item.sample.len();
            let of = Tokens::of(*index, item);
            let mut loss = sample_loss(&self.parts.loss, counts, &of, &stats.logprobs[tokens.clone()])?;
            if let Some(gradient) = &gradient {
                join(&mut loss, &of, gradient, tokens.start);
            }
            dlogprob.extend_from_slice(&loss.dlogprob);
            let entropy = stats.entropy[tokens].iter().zip(item.sample.mask());
            let entropy = entropy.filter(|(_, sampled)| **sampled).map(|(e, _)| f64::from(*e)).collect();
            seen[*i] = Some(Seen { loss, entropy });
        }
        // Values that are not finite would only spread; the step is left out anyway.
        if !blind && dlogprob.iter().all(|g| g.is_finite()) {
            let dentropy = gradient.as_ref().and_then(|g| g.dentropy.as_deref());
            self.learner.backward(&dlogprob, dentropy)?;
        } else {
            for i in bin {
                if let Some(s) = &mut seen[*i] {
                    s.loss.loss = f64::NAN;
                }
            }
        }
        Ok(())
    }
}

/// Adds what the forward passes said: `loss/*`, `entropy/*`, `mismatch_kl/*` and the components' own metrics.
fn put_losses(metrics: &mut StepMetrics, loss: f64, members: &[Member], seen: &[Seen]) {
    let tokens = seen.iter().flat_map(|s| &s.loss.token_losses).copied().filter(|x| x.is_finite());
    let spread = Summary::of(tokens);
    put(metrics, "loss/mean", loss);
    put(metrics, "loss/median", spread.median);
    put(metrics, "loss/std", spread.std);
    put(metrics, "loss/min", spread.min);
    put(metrics, "loss/max", spread.max);

    let mut by_env: BTreeMap<&str, (Vec<f64>, Vec<f64>)> = BTreeMap::new();
    for (member, s) in members.iter().zip(seen) {
        for env in ["all", member.item.env.as_str()] {
            let (entropy, mismatch) = by_env.entry(env).or_default();
            entropy.extend(&s.entropy);
            mismatch.extend(&s.loss.mismatch_kl);
        }
    }
    by_env.entry("all").or_default();
    for (env, (entropy, mismatch)) in by_env {
        put_spread(metrics, &format!("entropy/{env}"), &entropy);
        put_spread(metrics, &format!("mismatch_kl/{env}"), &mismatch);
    }

    let mut per_sample: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for (name, value) in seen.iter().flat_map(|s| &s.loss.metrics) {
        per_sample.entry(name).or_default().push(*value);
    }
    for (name, values) in per_sample {
        let s = Summary::of(values.into_iter().filter(|v| v.is_finite()));
        put(metrics, format!("{name}/mean"), s.mean);
        put(metrics, format!("{name}/max"), s.max);
    }
}

/// Adds what a custom loss gave: `loss/<name>/…`, averaged by name, and `time/loss`.
fn put_custom(metrics: &mut StepMetrics, custom: &Custom) {
    let mut by_name: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for metric in &custom.metrics {
        by_name.entry(&metric.name).or_default().push(metric.value);
    }
    for (name, values) in by_name {
        put(metrics, format!("loss/{}/{name}", custom.name()), Summary::of(values).mean);
    }
    put(metrics, "time/loss", custom.seconds);
}
