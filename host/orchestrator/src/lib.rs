//! Tasks to groups to rollouts to batches.
