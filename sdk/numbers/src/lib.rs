//! Exact numbers for environments. Owns rationals, the rules by which a number is read out of what a model wrote, and
//! the evaluation of arithmetic expressions; must not know tasks, rewards or the contract with the host.
//!
//! Nothing here panics or takes more than linear time, whatever the text: what cannot be read is `None` or a [`Fault`].

mod answer;
mod expression;
mod rational;
mod read;

pub use answer::{Answer, Mark, answer, boxed, last_tag};
pub use expression::{Dialect, Expression, Fault, evaluate};
pub use rational::Rational;
pub use read::{Reading, last, only};
