//! The two traits of the whole contract. Owns the author's view of it; must not know the bindings' calling conventions
//! (that is `adapter`).

use crate::{Completion, Error, Finished, Info, RolloutContext, Score, Task, Turn};
use std::rc::Rc;

/// What every call may end with.
pub type Result<T> = std::result::Result<T, Error>;

/// One configured environment: where tasks come from.
///
/// All randomness comes from the seeds that are handed in; there is no clock, no file and no socket.
pub trait Environment: Sized + 'static {
    /// State of one attempt at a task.
    type Rollout: Rollout;

    /// What this environment is, with default arguments: splits, arguments, names of its rewards and metrics.
    fn describe() -> Info;

    /// Takes the run's arguments, a JSON object that follows `Info::args_schema`.
    ///
    /// # Errors
    /// [`ErrorCode::InvalidConfig`](crate::ErrorCode::InvalidConfig) for arguments it cannot work with.
    fn configure(args: &str) -> Result<Self>;

    /// What the arguments made of it, where they change sizes of splits or names.
    fn info(&self) -> Info {
        Self::describe()
    }

    /// The task at `index` of `split`. The same arguments give the same task in every instance.
    ///
    /// # Errors
    /// [`ErrorCode::InvalidTask`](crate::ErrorCode::InvalidTask) when there is no such split or index.
    fn task(&self, split: &str, index: u64, seed: u64) -> Result<Task>;

    /// Begins an attempt.
    ///
    /// # Errors
    /// [`ErrorCode::InvalidTask`](crate::ErrorCode::InvalidTask) for a task that this environment did not make.
    fn open(self: &Rc<Self>, task: Task, context: RolloutContext) -> Result<Self::Rollout>;

    /// Scores a whole group at once; called when `Features::GROUP_SCORING` is set. One score per member, in order.
    ///
    /// # Errors
    /// When the group cannot be scored.
    fn score_group(&self, task: Task, members: Vec<Finished>) -> Result<Vec<Score>> {
        let _ = (task, members);
        Err(Error::unsupported("score-group"))
    }
}

/// One attempt at a task. The host samples, the environment reacts.
pub trait Rollout: 'static {
    /// What to add to the conversation before the first sampled turn; most often nothing.
    ///
    /// # Errors
    /// An error ends the rollout.
    fn start(&mut self) -> Result<Turn> {
        Ok(Turn::next(Vec::new()))
    }

    /// Reacts to one assistant turn.
    ///
    /// # Errors
    /// An error ends the rollout.
    fn step(&mut self, completion: Completion) -> Result<Turn>;

    /// The final rubric. `truncated` says why the host cut the rollout off, if it did.
    ///
    /// # Errors
    /// An error fails the rollout: it is never trained on as a zero reward.
    fn score(&mut self, truncated: Option<&str>) -> Result<Score>;
}
