//! From scored groups to batches: filters before and after the cut, the tally of where rollouts went, and the reasons to
//! give up. Pure; knows nothing of what is under way.

use crate::filters;
use crate::metrics::{Facts, batch as batch_metrics, most_frequent, share};
use crate::size::{Lengths, Size};
use crate::{EnvShare, Error, Filter, FilterKind, Observer, Purpose, Settings, state};
use prl_types::{Batch, BatchItem, ErrorKind, Metric, PolicyVersion, Rollout, RolloutId, Step};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// Distinct error texts kept for the reason of giving up.
const MAX_TEXTS: usize = 64;

/// A batch with what is to be said about it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Cut {
    pub batch: Arc<Batch>,
    pub metrics: BTreeMap<String, f64>,
    pub all: EnvShare,
    pub envs: Vec<EnvShare>,
    pub tokens: u64,
    pub rollouts: u64,
    pub tasks: u64,
    /// What the next batch knows of the length of rollouts.
    pub lengths: Lengths,
}

pub(crate) struct Batcher {
    envs: Vec<String>,
    size: Size,
    vocab_size: usize,
    pre: Vec<Filter>,
    post: Vec<Filter>,
    max_empty_batches: usize,
    max_error_rate: f64,
    kept: Kept,
}

/// What a batcher has in hand: rollouts that wait for a batch, and the counts since the last one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Kept {
    #[serde(with = "state::whole")]
    pending: VecDeque<Rollout>,
    #[serde(with = "state::pairs")]
    handled: BTreeMap<RolloutId, Facts>,
    pre_seen: usize,
    pre_dropped: usize,
    pre_flagged: BTreeMap<String, usize>,
    stale: usize,
    barren: usize,
    empty_batches: usize,
    /// Whether the last rollouts of each environment failed.
    recent: BTreeMap<String, VecDeque<bool>>,
    errors: BTreeMap<String, usize>,
    /// Sum and count of each of the algorithm's own numbers.
    algo: BTreeMap<String, (f64, usize)>,
    filtered: BTreeMap<String, usize>,
}

impl Batcher {
    pub(crate) fn new(settings: &Settings) -> Self {
        Batcher {
            envs: settings.train.iter().map(|e| e.name.clone()).collect(),
            size: Size::new(settings),
            vocab_size: settings.vocab_size,
            pre: settings.pre_batch_filters.clone(),
            post: settings.post_batch_filters.clone(),
            max_empty_batches: settings.max_empty_batches,
            max_error_rate: settings.max_error_rate,
            kept: Kept::default(),
        }
    }

    /// With what an earlier one had in hand.
    pub(crate) fn with(self, kept: Kept) -> Self {
        Batcher { kept, ..self }
    }

    /// What it has in hand.
    pub(crate) fn kept(&self) -> &Kept {
        &self.kept
    }

    /// Whether a batch can be cut.
    pub(crate) fn is_full(&self) -> bool {
        self.size.is_reached(&self.kept.pending)
    }

    /// How much of a batch waits and how much it takes, in rollouts or tokens.
    pub(crate) fn filled(&self) -> (usize, usize) {
        self.size.filled(&self.kept.pending)
    }

    /// Rollouts that are still to be sampled for a batch, as far as can be told.
    pub(crate) fn missing(&self) -> usize {
        self.size.missing(&self.kept.pending)
    }

    /// Whether `batches` batches take more than what waits and the `coming` rollouts under way.
    pub(crate) fn wants(&self, batches: u64, coming: usize) -> bool {
        self.size.wants(batches, &self.kept.pending, coming)
    }

    /// Takes a group in, in member order, and reports each of its rollouts.
    ///
    /// # Errors
    /// Too many errors, or nothing to train on for too long.
    pub(crate) fn accept(
        &mut self,
        group: impl IntoIterator<Item = Rollout>,
        step: Step,
        observer: &dyn Observer,
    ) -> Result<(), Error> {
        for mut rollout in group {
            match rollout.is_effective() {
                true => self.pre_filter(&mut rollout),
                // Taken out by scoring, under its only name.
                false if rollout.error.is_none() => self.tally_filter(rollout.filters.last().map(String::as_str)),
                false => {}
            }
            observer.rollout(Purpose::Train, step, &rollout);
            self.kept.handled.insert(rollout.id, Facts::from(&rollout));
            self.tally(&rollout);
            if rollout.is_effective() {
                self.kept.barren = 0;
                self.size.add(&rollout);
                self.kept.pending.push_back(rollout);
            } else {
                self.kept.barren += 1;
            }
        }
        self.check_error_rate(step)?;
        if self.kept.barren >= self.max_empty_batches * self.size.typical() {
            return Err(self.nothing_to_train(step));
        }
        Ok(())
    }

    /// Takes in an algorithm's own numbers for a group.
    pub(crate) fn note(&mut self, metrics: Vec<Metric>) {
        for metric in metrics {
            let (sum, count) = self.kept.algo.entry(metric.name).or_default();
            *sum += metric.value;
            *count += 1;
        }
    }

    /// Counts a rollout that was cancelled before it could be scored.
    pub(crate) fn cancelled(&mut self, rollout: &Rollout) {
        self.kept.handled.insert(rollout.id, Facts::from(rollout));
        self.tally(rollout);
    }

    fn pre_filter(&mut self, rollout: &mut Rollout) {
        let enforced = filters::apply(&self.pre, rollout, self.vocab_size);
        self.tally_filter(enforced);
        self.kept.pre_seen += 1;
        self.kept.pre_dropped += usize::from(rollout.is_filtered);
        for name in &rollout.filters {
            *self.kept.pre_flagged.entry(name.clone()).or_default() += 1;
        }
    }

    fn tally(&mut self, rollout: &Rollout) {
        let failed = match &rollout.error {
            Some(error) => {
                let text = format!("{:?}: {}", error.kind, error.message);
                if !self.kept.errors.contains_key(&text) {
                    tracing::warn!("Rollout {} of {}: {text}", rollout.id, rollout.task.env);
                }
                if self.kept.errors.len() < MAX_TEXTS || self.kept.errors.contains_key(&text) {
                    *self.kept.errors.entry(text).or_default() += 1;
                }
                if error.kind == ErrorKind::Cancelled {
                    return;
                }
                matches!(error.kind, ErrorKind::EnvError | ErrorKind::ProviderError)
            }
            None => false,
        };
        let window = self.window();
        let recent = self.kept.recent.entry(rollout.task.env.clone()).or_default();
        recent.push_back(failed);
        if recent.len() > window {
            recent.pop_front();
        }
    }

    fn tally_filter(&mut self, enforced: Option<&str>) {
        if let Some(name) = enforced {
            *self.kept.filtered.entry(name.to_owned()).or_default() += 1;
        }
    }

    fn window(&self) -> usize {
        (2 * self.size.rollouts()).max(32)
    }

    fn check_error_rate(&self, step: Step) -> Result<(), Error> {
        let window = self.window();
        for (env, recent) in &self.kept.recent {
            let errors = recent.iter().filter(|failed| **failed).count();
            if recent.len() == window && errors as f64 > self.max_error_rate * window as f64 {
                let (env, limit, reason) = (env.clone(), self.max_error_rate, self.reason());
                return Err(Error::ErrorRate { step, env, errors, window, limit, reason });
            }
        }
        Ok(())
    }

    fn nothing_to_train(&self, step: Step) -> Error {
        Error::NothingToTrain { step, batches: self.max_empty_batches, reason: self.reason() }
    }

    fn reason(&self) -> String {
        let mut parts = Vec::new();
        if let Some((text, count)) = most_frequent(&self.kept.errors) {
            let total: usize = self.kept.errors.values().sum();
            parts.push(format!("{total} rollouts failed, {count} of them with `{text}`"));
        }
        for (name, count) in &self.kept.filtered {
            parts.push(format!("{count} were dropped as `{name}`"));
        }
        if self.kept.stale > 0 {
            parts.push(format!("{} were too old", self.kept.stale));
        }
        if parts.is_empty() { "no rollout finished".into() } else { parts.join(", ") }
    }

    /// Drops waiting rollouts with a token older than `oldest`.
    pub(crate) fn drop_stale(&mut self, oldest: PolicyVersion) {
        let before = self.kept.pending.len();
        self.kept.pending.retain(|r| oldest_version(r).is_none_or(|version| version >= oldest));
        self.kept.stale += before - self.kept.pending.len();
    }

    /// Cuts a batch of the first of the waiting rollouts, exactly as many as it takes. Where its filters leave nothing, the step goes by
    /// without an update.
    ///
    /// # Errors
    /// It was one empty batch too many, or a stream does not fit its sample.
    pub(crate) fn cut(&mut self, step: Step, observer: &dyn Observer) -> Result<Cut, Error> {
        let size = self.size.take(&self.kept.pending);
        let mut rollouts: Vec<Rollout> = self.kept.pending.drain(..size).collect();
        for rollout in &mut rollouts {
            let enforced = filters::apply(&self.post, rollout, self.vocab_size);
            self.tally_filter(enforced);
            if let Some(known) = self.kept.handled.get_mut(&rollout.id) {
                known.filtered_as(rollout);
            }
        }
        let effective: Vec<&Rollout> = rollouts.iter().filter(|r| r.is_effective()).collect();
        if effective.is_empty() {
            self.kept.empty_batches += 1;
            if self.kept.empty_batches >= self.max_empty_batches {
                return Err(self.nothing_to_train(step));
            }
            let reason = self.reason();
            tracing::warn!("Step {step}: nothing to train on in a batch of {size} ({reason}); the weights stay");
        } else {
            self.kept.empty_batches = 0;
            observer.batch(step, &effective);
        }
        if !effective.is_empty() && effective.len() * 10 <= size {
            tracing::warn!("Step {step}: only {} of {size} rollouts are trainable", effective.len());
        }
        let mut cut = self.describe(step, &rollouts, &effective);
        cut.batch = Arc::new(Batch { step, items: items(step, rollouts)? });
        cut.lengths = self.size.cut();
        self.reset();
        Ok(cut)
    }

    /// All that is to be said about a batch; it is still empty.
    fn describe(&self, step: Step, batch: &[Rollout], effective: &[&Rollout]) -> Cut {
        let all: Vec<&Facts> = self.kept.handled.values().collect();
        // What waited since the batch before is known no more.
        let facts =
            |r: &&Rollout| self.kept.handled.get(&r.id).map_or_else(|| Cow::Owned(Facts::from(*r)), Cow::Borrowed);
        let facts: Vec<Cow<'_, Facts>> = effective.iter().map(facts).collect();
        let facts: Vec<&Facts> = facts.iter().map(Cow::as_ref).collect();
        let mut metrics = batch_metrics(&self.envs, &all, &facts);
        let lag = |r: &Rollout| oldest_version(r).map_or(0, |version| (step - 1).saturating_sub(version.0));
        let lags: Vec<u64> = effective.iter().map(|r| lag(r)).collect();
        let line = |env: Option<&str>, mut share: EnvShare| {
            let own = |r: &Rollout| env.is_none_or(|env| r.task.env == env);
            share.batch = batch.iter().filter(|r| own(r)).count();
            share.trainable = effective.iter().filter(|r| own(r)).count();
            share.max_off_policy = effective.iter().filter(|r| own(r)).map(|r| lag(r)).max().unwrap_or(0);
            share
        };
        let total = line(None, share("all", 1.0, &all));
        let tokens: usize = facts.iter().map(|f| f.total_tokens).sum();
        let output: usize = facts.iter().map(|f| f.output_tokens).sum();
        let tasks = facts.iter().map(|f| f.group).collect::<BTreeSet<_>>().len();
        let seen = self.kept.pre_seen.max(1) as f64;
        let mut put = |name: &str, value: f64| metrics.insert(name.to_owned(), value);
        put("off_policy/max", total.max_off_policy as f64);
        put("off_policy/mean", lags.iter().sum::<u64>() as f64 / lags.len().max(1) as f64);
        put("off_policy/dropped", self.kept.stale as f64);
        put("batch/empty", f64::from(u8::from(effective.is_empty())));
        put("rollouts/retried", all.iter().map(|f| f64::from(f.attempt)).sum());
        put("progress/tokens", tokens as f64);
        put("progress/input_tokens", (tokens - output) as f64);
        put("progress/output_tokens", output as f64);
        put("progress/rollouts", facts.len() as f64);
        put("progress/tasks", tasks as f64);
        put("pre_filters/all/dropped_rate", self.kept.pre_dropped as f64 / seen);
        for filter in &self.pre {
            let name = FilterKind::name(&filter.kind);
            let count = self.kept.pre_flagged.get(name).copied().unwrap_or(0);
            put(&format!("pre_filters/all/{name}/rate"), count as f64 / seen);
        }
        for (name, (sum, count)) in &self.kept.algo {
            put(&format!("algo/{name}"), sum / *count as f64);
        }
        let envs = match self.envs.as_slice() {
            [_] => Vec::new(),
            several => several
                .iter()
                .map(|env| {
                    let own: Vec<&Facts> = all.iter().copied().filter(|f| f.env == *env).collect();
                    line(Some(env), share(env, own.len() as f64 / all.len().max(1) as f64, &own))
                })
                .collect(),
        };
        Cut {
            batch: Arc::new(Batch { step, items: Vec::new() }),
            metrics,
            all: total,
            envs,
            tokens: tokens as u64,
            rollouts: facts.len() as u64,
            tasks: tasks as u64,
            lengths: Lengths::default(),
        }
    }

    /// Starts the counts of the next batch. Where rollouts went is remembered until a batch has something to train on.
    fn reset(&mut self) {
        self.kept.handled.clear();
        self.kept.pre_flagged.clear();
        self.kept.algo.clear();
        (self.kept.pre_seen, self.kept.pre_dropped, self.kept.stale) = (0, 0, 0);
        if self.kept.empty_batches == 0 {
            self.kept.errors.clear();
            self.kept.filtered.clear();
        }
    }
}

/// The oldest policy that sampled a part of it; nothing where that was a model outside the run.
fn oldest_version(rollout: &Rollout) -> Option<PolicyVersion> {
    rollout.samples.iter().filter_map(|s| s.versions()).map(|(oldest, _)| oldest).min()
}

/// The samples of those that train.
fn items(step: Step, rollouts: Vec<Rollout>) -> Result<Vec<BatchItem>, Error> {
    let mut items = Vec::new();
    for rollout in rollouts.into_iter().filter(Rollout::is_effective) {
        for (sample, streams) in rollout.samples.into_iter().zip(rollout.streams) {
            let item = BatchItem::new(rollout.task.env.clone(), sample, streams);
            items.push(item.map_err(|e| Error::Algorithm {
                env: rollout.task.env.clone(),
                group: rollout.id.group,
                message: format!("rollout {} of step {step}: {e}", rollout.id),
            })?);
        }
    }
    Ok(items)
}
