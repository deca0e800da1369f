//! The thread that writes checkpoints while training goes on. Owns what waits for it and what is given up; what is in a
//! checkpoint is `checkpoint`'s.

use crate::checkpoint::{Folders, Plan, Saved};
use prl_store::RunDir;
use prl_trainer::StepMetrics;
use prl_types::Step;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

/// Takes steps to be saved. One is written at a time, and one waits: a newer one takes the place of that.
pub struct Saver {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    waiting: Option<Saved>,
    writing: bool,
    closed: bool,
    /// Why the newest that was due is not there.
    unsaved: Option<String>,
    /// That could not be written, and that were given up for newer ones.
    failed: u64,
    skipped: u64,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `ready` gives something.
    fn wait<T>(&self, mut ready: impl FnMut(&mut Queue) -> Option<T>) -> T {
        let mut queue = self.lock();
        loop {
            if let Some(value) = ready(&mut queue) {
                return value;
            }
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Writes whatever is there to write until there will be no more.
    fn work(&self, plan: &Plan, folders: &Folders) {
        loop {
            let next = self.wait(|queue| match queue.waiting.take() {
                Some(saved) => {
                    queue.writing = true;
                    Some(Some(saved))
                }
                None => queue.closed.then_some(None),
            });
            let Some(saved) = next else { return };
            let (step, started) = (saved.step, Instant::now());
            // A panic in there must cost the checkpoint only: somebody waits for this thread.
            let written = catch_unwind(AssertUnwindSafe(|| plan.write(folders, &saved)));
            let written = written.unwrap_or_else(|_| Err("writing it panicked".to_owned()));
            drop(saved);
            match &written {
                Ok(()) => {
                    let seconds = started.elapsed().as_secs_f64();
                    tracing::info!(target: "prl_trainer", "Saved checkpoint of step {step} ({seconds:.1} s)");
                }
                Err(error) => tracing::error!(target: "prl_trainer", "checkpoint of step {step} failed: {error}"),
            }
            let mut queue = self.lock();
            queue.failed += u64::from(written.is_err());
            queue.unsaved = written.err();
            queue.writing = false;
            drop(queue);
            self.changed.notify_all();
        }
    }
}

impl Saver {
    /// Starts the thread, which writes into the folders of `run`.
    pub fn start(plan: Plan, run: &RunDir) -> std::io::Result<Self> {
        let folders = Folders::from(run);
        let shared = Arc::new(Shared { queue: Mutex::default(), changed: Condvar::new() });
        let of_thread = shared.clone();
        let thread = std::thread::Builder::new().name("checkpoints".into());
        let thread = thread.spawn(move || of_thread.work(&plan, &folders))?;
        Ok(Saver { shared, thread: Some(thread) })
    }

    /// Has a step saved. It costs no step and no run if that fails: it is logged, and [`Saver::finish`] tells.
    pub fn save(&self, saved: Saved) {
        let mut queue = self.shared.lock();
        let newer = saved.step;
        if let Some(older) = queue.waiting.replace(saved) {
            queue.skipped += 1;
            given_up(older.step, newer);
        }
        drop(queue);
        self.shared.changed.notify_all();
    }

    /// Adds to a step's numbers how many steps could not be written so far, and how many were given up because the disk is slower
    /// than training.
    pub fn put_lost(&self, metrics: &mut StepMetrics) {
        let queue = self.shared.lock();
        metrics.insert("ckpt/failed".into(), queue.failed as f64);
        metrics.insert("ckpt/skipped".into(), queue.skipped as f64);
    }

    /// Waits until everything is written. Says why the newest step that was to be saved is not there, if it is not.
    pub fn finish(&self) -> Option<String> {
        self.shared.wait(|queue| (queue.waiting.is_none() && !queue.writing).then(|| queue.unsaved.clone()))
    }
}

fn given_up(step: Step, newer: Step) {
    tracing::warn!(
        target: "prl_trainer",
        "checkpoint of step {step} is not written: that of step {newer} is due, and the one before both is still being \
         written; raise `ckpt.interval`, or use a faster disk"
    );
}

impl Drop for Saver {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // It catches nothing that could be told here.
            let _ = thread.join();
        }
    }
}
