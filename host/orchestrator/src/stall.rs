//! What everything under way waits for, and a watchdog that tells when no step comes to its end. Owns the board and the words;
//! must not know what a step is made of.

use crate::Observer;
use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// No step is missed sooner than this.
const LEAST: Duration = Duration::from_secs(60);
/// How long a run may go without a step that has made too few to know its pace.
const FIRST: Duration = Duration::from_secs(600);
/// A step is missed after so many times the median of the last ones.
const FACTOR: f64 = 5.0;
/// Steps that make a median.
const STEPS: usize = 32;
/// Between two looks.
const LOOK: Duration = Duration::from_secs(1);

/// Everything under way.
#[derive(Debug)]
pub(crate) struct Board(Mutex<Inner>);

#[derive(Debug)]
struct Inner {
    next: u64,
    /// What waits (an environment, a step), what for, and since when.
    waits: BTreeMap<u64, (String, String, Instant)>,
    steps: VecDeque<Duration>,
    last_step: Instant,
    /// When it is told next that there was none.
    told: Option<Duration>,
}

/// One that waits, until it is dropped.
#[derive(Debug)]
pub(crate) struct Wait {
    board: Arc<Board>,
    at: u64,
}

impl Wait {
    /// From here on for something else.
    pub(crate) fn now(&self, phase: impl Into<String>) {
        if let Some((_, of, since)) = self.board.lock().waits.get_mut(&self.at) {
            (*of, *since) = (phase.into(), Instant::now());
        }
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        self.board.lock().waits.remove(&self.at);
    }
}

impl Board {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Board(Mutex::new(Inner {
            next: 0,
            waits: BTreeMap::new(),
            steps: VecDeque::new(),
            last_step: Instant::now(),
            told: None,
        })))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `who` begins to wait for `phase`.
    pub(crate) fn wait(self: &Arc<Self>, who: impl Into<String>, phase: impl Into<String>) -> Wait {
        let mut inner = self.lock();
        let at = inner.next;
        inner.next += 1;
        inner.waits.insert(at, (who.into(), phase.into(), Instant::now()));
        Wait { board: self.clone(), at }
    }

    /// A step has come to its end.
    pub(crate) fn step(&self) {
        let mut inner = self.lock();
        let took = inner.last_step.elapsed();
        inner.steps.push_back(took);
        if inner.steps.len() > STEPS {
            inner.steps.pop_front();
        }
        (inner.last_step, inner.told) = (Instant::now(), None);
    }

    /// What to tell now, if no step has come to its end for too long: at first, and each time the wait has doubled.
    fn overdue(&self) -> Option<String> {
        let mut inner = self.lock();
        let waited = inner.last_step.elapsed();
        let median = median(&inner.steps);
        let limit = match median {
            Some(median) => LEAST.max(median.mul_f64(FACTOR)),
            None => FIRST,
        };
        if waited < inner.told.unwrap_or(limit) {
            return None;
        }
        inner.told = Some(waited * 2);
        let usual = median.map_or(String::new(), |m| format!(" (usually one takes {:.0} s)", m.as_secs_f64()));
        let mut text = format!("No step has come to its end for {:.0} s{usual}", waited.as_secs_f64());
        let mut groups = BTreeMap::<(&str, &str), (usize, Duration)>::new();
        for (who, phase, since) in inner.waits.values() {
            let (count, longest) = groups.entry((who, phase)).or_default();
            *count += 1;
            *longest = (*longest).max(since.elapsed());
        }
        if groups.is_empty() {
            text += "; nothing is under way";
        }
        for ((who, phase), (count, longest)) in groups {
            // Writing into a text does not fail.
            let _ = write!(text, "; {count} x {who}: {phase}, for up to {:.0} s", longest.as_secs_f64());
        }
        Some(text)
    }

    /// Looks until it is dropped.
    pub(crate) async fn watch(self: Arc<Self>, observer: Arc<dyn Observer>) {
        loop {
            tokio::time::sleep(LOOK).await;
            if let Some(text) = self.overdue() {
                observer.stalled(&text);
            }
        }
    }
}

fn median(steps: &VecDeque<Duration>) -> Option<Duration> {
    let mut sorted: Vec<Duration> = steps.iter().copied().collect();
    sorted.sort_unstable();
    (sorted.len() >= 3).then(|| sorted[sorted.len() / 2])
}
