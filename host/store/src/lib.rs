//! The run directory: checkpoints, rollout log, the one writer.
