//! Supervised fine-tuning: rows of documents in, new weights and metrics out.
//!
//! Owns the token-weighted step and validation. Must not know where documents come from or what their text is.

use crate::documents::{Documents, Drawn, Packer, Row};
use crate::metrics::{Cost, put, put_perf};
use crate::optim::{self, Optimizer};
use crate::trainer::Asked;
use crate::{
    Fingerprint, Progress, Schedule, Share, Skip, StepMetrics, StepOutcome, TrainerError, TrainerState, Update, clock,
};
use prl_config::{Optim, Scheduler};
use prl_model::{Learner, Packed};
use std::path::Path;

/// The settings of an [`SftTrainer`].
#[derive(Clone, Debug, PartialEq)]
pub struct SftParts {
    /// The optimiser.
    pub optim: Optim,
    /// The learning rate over the run.
    pub scheduler: Scheduler,
    /// Steps of the run, for schedules that end.
    pub max_steps: Option<u64>,
    /// Tokens of one packed row.
    pub seq_len: usize,
    /// Rows of one step.
    pub batch_size: usize,
    /// Rows of one forward pass.
    pub micro_batch_size: usize,
    /// The same for validations.
    pub validation: ValidationPasses,
    /// The device's peak, floating-point operations per second, when known; gives `perf/mfu`.
    pub peak_flops: Option<f64>,
}

/// How validations compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValidationPasses {
    /// Tokens of one packed row: longer documents are cut.
    pub seq_len: usize,
    /// Rows of one forward pass.
    pub rows: usize,
}

/// The model being fine-tuned, with its data and its optimiser.
pub struct SftTrainer {
    learner: Learner,
    optimizer: Optimizer,
    schedule: Schedule,
    parts: SftParts,
    source: Box<dyn Documents>,
    packer: Packer,
    progress: Progress,
    stop: Option<Asked>,
}

impl SftTrainer {
    /// Takes over a model and a source before the first step.
    ///
    /// # Errors
    /// Settings that cannot work.
    pub fn new(learner: Learner, parts: SftParts, source: Box<dyn Documents>) -> Result<Self, TrainerError> {
        let setting = |key, reason: String| Err(TrainerError::Setting { key, reason });
        if parts.seq_len < 2 {
            return setting("data.seq_len", format!("= {} leaves no token to predict", parts.seq_len));
        }
        if parts.batch_size == 0 || !parts.batch_size.is_multiple_of(parts.micro_batch_size) {
            let reason = format!("= {} must divide `batch_size` = {}", parts.micro_batch_size, parts.batch_size);
            return setting("data.micro_batch_size", reason);
        }
        if parts.validation.seq_len < 2 {
            return setting("val.data.seq_len", format!("= {} leaves no token to predict", parts.validation.seq_len));
        }
        let (optimizer, schedule) = optim::build(&parts.optim, &parts.scheduler, parts.max_steps)?;
        let (packer, progress) = (Packer::default(), Progress::default());
        Ok(SftTrainer { learner, optimizer, schedule, parts, source, packer, progress, stop: None })
    }

    /// Trains on the next `batch_size` rows, or what is left of them; `None` when the source has ended.
    ///
    /// The loss is the mean of −log p over the step's target tokens, whatever rows they are in. Passes whose loss is not
    /// finite are left out and counted in `loss/nan_count`: the step is then the one of the other rows, bit for bit where
    /// the device sums in a fixed order. Where no pass is left, the weights stay.
    ///
    /// # Errors
    /// A failing source or device; no weight has changed then.
    pub fn train_step(&mut self) -> Result<Option<StepOutcome>, TrainerError> {
        let started = clock::now();
        let mut rows = Vec::new();
        while rows.len() < self.parts.batch_size {
            match self.packer.row(self.source.as_mut(), self.parts.seq_len)? {
                Some(row) => rows.push(row),
                None => break,
            }
        }
        if rows.is_empty() {
            return Ok(None);
        }
        let loaded = started.elapsed().as_secs_f64();
        let step = self.progress.step + 1;
        self.learner.begin(Some(step));
        let Passes { loss, left_out } = match self.passes(&rows) {
            Ok(passes) => passes,
            Err(e) => {
                // Should this fail too, the first error is the one to tell.
                let _ = self.learner.zero_grads();
                return Err(e);
            }
        };
        self.learner.wait()?;
        let forward_backward = started.elapsed().as_secs_f64() - loaded;

        let lr = self.schedule.lr(step, self.progress.schedule_from);
        let mut metrics = StepMetrics::new();
        let mut update = Update::NotFinite;
        if loss.is_finite() {
            let applied = self.optimizer.apply(&mut self.learner, lr)?;
            put(&mut metrics, "optim/grad_norm", applied.grad_norm);
            if applied.applied {
                put(&mut metrics, "optim/zero_grad_ratio", applied.zero_grad_ratio);
                update = Update::Applied;
            }
        } else {
            self.learner.zero_grads()?;
        }
        self.progress.skipped_steps += u64::from(update == Update::NotFinite);

        let tokens: usize = rows.iter().flatten().map(|d| d.document.ids.len()).sum();
        self.progress.step = step;
        self.progress.total_tokens += tokens as u64;
        self.progress.total_samples += rows.iter().map(Vec::len).sum::<usize>() as u64;
        self.progress.documents = self.packer.cursor();
        self.progress.skipped_documents = self.packer.skipped;
        self.put_mixture(&mut metrics, &rows);
        let epoch = self.epoch();
        let progress = &self.progress;
        put(&mut metrics, "loss/mean", loss);
        put(&mut metrics, "loss/nan_count", left_out as f64);
        put(&mut metrics, "optim/lr", lr);
        put(&mut metrics, "optim/skipped_steps", progress.skipped_steps as f64);
        put(&mut metrics, "progress/epoch", epoch as f64);
        put(&mut metrics, "progress/num_samples", progress.total_samples as f64);
        put(&mut metrics, "progress/num_tokens", progress.total_tokens as f64);
        put(&mut metrics, "progress/skipped_documents", progress.skipped_documents as f64);
        let seconds = started.elapsed().as_secs_f64();
        let cost =
            Cost { tokens, seconds: seconds - loaded, seq_len: self.parts.seq_len, peak_flops: self.parts.peak_flops };
        put_perf(&mut metrics, &self.learner, &cost);
        put(&mut metrics, "time/load_data", loaded);
        put(&mut metrics, "time/forward_backward", forward_backward);
        put(&mut metrics, "time/step", seconds);
        Ok(Some(StepOutcome { update, metrics }))
    }

    /// The passes of a step; the gradients of those that count are summed up.
    fn passes(&mut self, rows: &[Row]) -> Result<Passes, TrainerError> {
        let mut micros: Vec<&[Row]> = rows.chunks(self.parts.micro_batch_size).collect();
        if let Some(loss) = self.accumulate(&micros)? {
            return Ok(Passes { loss, left_out: 0 });
        }
        // The bad pass is in the sums and its targets are in the denominator: look at each, then begin anew without.
        self.learner.zero_grads()?;
        let mut finite = Vec::with_capacity(micros.len());
        for micro in &micros {
            self.asked()?;
            finite.push(micro_step(&mut self.learner, micro, None)?.is_finite());
        }
        let all = micros.len();
        let mut finite = finite.into_iter();
        micros.retain(|_| finite.next().unwrap_or_default());
        let loss = if micros.is_empty() { None } else { self.accumulate(&micros)? };
        Ok(Passes { loss: loss.unwrap_or(f64::NAN), left_out: all - micros.len() })
    }

    /// Forward and backward of all; the mean of −log p over their targets. `None` as soon as one is not finite, which
    /// leaves the gradients worthless.
    fn accumulate(&mut self, micros: &[&[Row]]) -> Result<Option<f64>, TrainerError> {
        let targets: usize = micros.iter().copied().flatten().flatten().map(|d| d.document.targets()).sum();
        let mut loss = 0.0;
        for micro in micros {
            self.asked()?;
            let nll = micro_step(&mut self.learner, micro, Some(targets))?;
            if !nll.is_finite() {
                return Ok(None);
            }
            loss += nll / targets as f64;
        }
        Ok(Some(loss))
    }

    fn asked(&self) -> Result<(), TrainerError> {
        match self.stop.as_ref().is_some_and(|asked| asked()) {
            true => Err(TrainerError::Stopped),
            false => Ok(()),
        }
    }

    /// Counts what of each source the step trained on, and adds `progress/<source>/ratio_{samples,tokens}`: the sources'
    /// shares in all steps so far.
    fn put_mixture(&mut self, metrics: &mut StepMetrics, rows: &[Row]) {
        let (names, mixed) = (self.source.parts(), &mut self.progress.mixed);
        if names.len() < 2 {
            return;
        }
        // Nothing is counted yet, or it is of a checkpoint that did not say of which data.
        if mixed.len() != names.len() {
            *mixed = vec![Share::default(); names.len()];
        }
        for drawn in rows.iter().flatten() {
            mixed[drawn.part].samples += 1;
            mixed[drawn.part].tokens += drawn.document.ids.len() as u64;
        }
        let samples: u64 = mixed.iter().map(|share| share.samples).sum();
        let tokens: u64 = mixed.iter().map(|share| share.tokens).sum();
        for (name, share) in names.iter().zip(mixed) {
            put(metrics, format!("progress/{name}/ratio_samples"), share.samples as f64 / samples as f64);
            put(metrics, format!("progress/{name}/ratio_tokens"), share.tokens as f64 / tokens as f64);
        }
    }

    /// `val/loss`: the mean of −log p over all target tokens of a source that ends. Documents whose loss is not finite are
    /// left out and counted in `val/nan_count`; those without a target in `val/skipped_documents`. Changes nothing. No metric
    /// where there is no target.
    ///
    /// # Errors
    /// A document whose lists differ in length, a failing source or device; [`TrainerError::Stopped`] between two passes.
    pub fn validate(&mut self, source: &mut dyn Documents) -> Result<StepMetrics, TrainerError> {
        let mut packer = Packer::default();
        let ValidationPasses { seq_len, rows } = self.parts.validation;
        let (mut nll, mut targets, mut left_out) = (0.0, 0usize, 0usize);
        self.learner.begin(None);
        loop {
            let mut pass = Vec::new();
            while pass.len() < rows.max(1)
                && let Some(row) = packer.row(source, seq_len)?
            {
                pass.push(row);
            }
            if pass.is_empty() {
                break;
            }
            for (part, loss) in self.losses(pass)? {
                match loss.is_finite() {
                    true => {
                        nll += loss;
                        targets += part.iter().flatten().map(|d| d.document.targets()).sum::<usize>();
                    }
                    false => left_out += part.iter().map(Vec::len).sum::<usize>(),
                }
            }
        }
        let mut metrics = StepMetrics::new();
        if targets > 0 {
            put(&mut metrics, "val/loss", nll / targets as f64);
        }
        if targets > 0 || left_out > 0 {
            put(&mut metrics, "val/nan_count", left_out as f64);
            put(&mut metrics, "val/skipped_documents", packer.skipped as f64);
        }
        Ok(metrics)
    }

    /// Σ −log p over the targets of a pass; where that is not finite, of each of its documents alone.
    fn losses(&mut self, pass: Vec<Row>) -> Result<Vec<(Vec<Row>, f64)>, TrainerError> {
        self.asked()?;
        let loss = micro_step(&mut self.learner, &pass, None)?;
        if loss.is_finite() {
            return Ok(vec![(pass, loss)]);
        }
        let mut alone = Vec::new();
        for drawn in pass.into_iter().flatten() {
            self.asked()?;
            let one = vec![vec![drawn]];
            let loss = micro_step(&mut self.learner, &one, None)?;
            alone.push((one, loss));
        }
        Ok(alone)
    }

    /// Lets a step or a validation be given up between two passes: [`TrainerError::Stopped`]. Training cannot go on after that.
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

    /// The pass over the data that the last document of the steps so far was in, counted from 0.
    pub fn epoch(&self) -> u64 {
        self.source.epoch(self.progress.documents.saturating_sub(1))
    }

    /// What [`SftTrainer::load_state`] takes back once it is written. The weights are not part of it.
    ///
    /// # Errors
    /// The device does not give it; a failing source.
    pub fn state(&mut self) -> Result<TrainerState, TrainerError> {
        let progress = Progress { data: Some(self.fingerprint()?), ..self.progress.clone() };
        Ok(TrainerState { optimizer: self.optimizer.saved(&mut self.learner)?, progress, loss: None })
    }

    fn fingerprint(&mut self) -> Result<Fingerprint, TrainerError> {
        self.source.fingerprint().map_err(|message| TrainerError::Source { index: 0, message })
    }

    /// Reads what [`TrainerState::write`] wrote, for a model that has the weights of that moment and the same
    /// source. Training goes on as if it had not stopped, bit for bit where the device sums in a fixed order, but for what `skip` leaves out.
    ///
    /// # Errors
    /// A file that is missing, damaged, or of another model; other data, unless the source is begun anew. Nothing has changed
    /// then.
    pub fn load_state(&mut self, dir: &Path, skip: Skip) -> Result<(), TrainerError> {
        let mut progress = Progress::load(dir)?.without(skip);
        if let Some(saved) = &progress.data
            && let Some(difference) = self.fingerprint()?.difference(saved)
        {
            if !skip.dataloader {
                return Err(TrainerError::OtherData { difference });
            }
            // Shares are those of other sources.
            progress.mixed.clear();
        }
        if !skip.optimizer {
            self.optimizer.load(dir, &mut self.learner)?;
        }
        self.packer = Packer::at(progress.documents, progress.skipped_documents);
        self.progress = progress;
        Ok(())
    }
}

/// What the passes of a step gave.
struct Passes {
    /// The mean over the targets of the passes that count; not finite where there are none.
    loss: f64,
    /// How many do not count.
    left_out: usize,
}

/// Forward of some rows; with `targets`, the step's number of target tokens, backward too. Returns Σ −log p over the
/// rows' targets. Where that is not finite the gradients are not either.
fn micro_step(learner: &mut Learner, rows: &[Row], targets: Option<usize>) -> Result<f64, TrainerError> {
    let mut packed = Packed::default();
    let mut is_target = Vec::new();
    for Drawn { document, .. } in rows.iter().flatten() {
        packed.ids.extend_from_slice(&document.ids);
        packed.doc_lens.push(document.ids.len());
        is_target.extend(document.mask.iter().enumerate().map(|(t, m)| t > 0 && *m));
    }
    packed.temperatures = vec![1.0; packed.ids.len()];
    let logprobs = match targets {
        None => learner.forward(&packed)?.logprobs,
        Some(n) => {
            let gradient = -1.0 / n as f32;
            let dlogprob: Vec<f32> = is_target.iter().map(|t| if *t { gradient } else { 0.0 }).collect();
            learner.forward_backward(&packed, &dlogprob)?
        }
    };
    let of_targets = logprobs.iter().zip(&is_target).filter(|(_, t)| **t);
    Ok(of_targets.map(|(lp, _)| -f64::from(*lp)).sum())
}
