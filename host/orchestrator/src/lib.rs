//! Tasks to groups to rollouts to batches.
//!
//! Owns what is sampled when, with which policy version, and what of it is trained: the rollout loop, the schedule, the
//! filters, evaluation and the metrics of all of it. Must not know how a token is sampled, what an environment is made
//! of, how an algorithm or a trainer works, or where anything is stored: it reaches all of these through the traits in
//! `ports` and is otherwise a pure state machine inside a thin asynchronous shell ([`run`]).
//!
//! # Schedule
//! Step n trains on batch n and yields policy version n. With `deterministic` set, batch n is sampled entirely with
//! version `max(start, n - 1 - max_async_level)`: version n becomes visible when batch n + `max_async_level` is complete
//! and step n is trained. Groups are handled in the order of their ids, so results do not depend on timing. Without it,
//! a version becomes visible as soon as it is trained, groups are handled as they arrive, and those that batch n needs
//! begin once version `n - 1 - max_async_level` is visible; one that takes long goes into a later batch.
//!
//! # Resume
//! A run goes on from a [`State`]. With `deterministic` set, the state of step n is taken when version n is about to become
//! visible, so that batches n + 1 to n + `max_async_level`, sampled with older versions, are in it, and nothing is under way;
//! at its last step a run samples that far ahead for the same reason. What follows is then the same, bit for bit, as in a run
//! that did not end. Without it, the state is taken as soon as the step is trained; groups that are under way are sampled
//! again, with the same ids, tasks and seeds, and nothing is trained twice.
//!
//! # Evaluation
//! An environment is evaluated before training (unless `skip_first_step`), after every step that its interval divides,
//! and after the last step whatever its interval. A resumed run evaluates the step it resumes from if that is due and not done.

mod batcher;
mod clock;
mod curriculum;
mod error;
mod eval;
mod filters;
mod machine;
mod metrics;
mod ports;
mod progress;
mod rollout;
mod scoring;
mod seed;
mod settings;
mod shell;
mod size;
mod stall;
mod state;
mod tasks;

pub use curriculum::{AdvantageRange, Curriculum, DifficultyPool};
pub use error::Error;
pub use eval::pass_at_k;
pub use ports::{
    Algorithm, Answer, Deps, Env, Finished, Observer, OpenRequest, Policy, PolicyError, Purpose, Question, Reference,
    Rendered, Renderer, SampleRequest, Scored, Session, Source, StepInput, TrainDeps, TrainReport, Trainer,
};
pub use progress::{EnvShare, Mode, Outcome, Progress, Status, StepReport};
pub use seed::{derive, fnv1a};
pub use settings::{Due, EvalEnv, Filter, FilterKind, Sampling, Settings, TrainEnv};
pub use shell::{check, run};
pub use size::Lengths;
pub use state::State;
pub use tasks::task_seed;
