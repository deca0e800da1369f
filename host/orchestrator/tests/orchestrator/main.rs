//! The shipped crate against fakes of engine, environment, algorithm and trainer, on a paused clock.

mod curriculum;
mod dispatch;
mod failures;
mod fakes;
mod others;
mod resume;
mod rollouts;
mod schedule;
mod simulation;
