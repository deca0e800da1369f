//! How a command ends badly: exit code and text. Owns the codes; must not know what went wrong inside.

use std::fmt::Display;

/// A failed command. The text is what the user sees; it says what, where and how to fix.
#[derive(Debug)]
pub struct Failure {
    /// Exit code.
    pub code: u8,
    /// The text, without `error:`.
    pub text: String,
}

/// Failed during the run.
const FAILED: u8 = 1;
/// Bad input: configuration, model, plug-in, environment, device.
const BAD_INPUT: u8 = 2;

impl Failure {
    /// Bad input (exit code 2).
    pub fn input(text: impl Display) -> Self {
        Failure { code: BAD_INPUT, text: text.to_string() }
    }

    /// Failed during the run (exit code 1).
    pub fn run(text: impl Display) -> Self {
        Failure { code: FAILED, text: text.to_string() }
    }
}

/// `.map_err(input("…"))` with a subject before the cause.
pub fn input<E: Display>(subject: impl Display) -> impl FnOnce(E) -> Failure {
    move |error| Failure::input(format_args!("{subject}: {error}"))
}

/// `.map_err(run("…"))` with a subject before the cause.
pub fn run<E: Display>(subject: impl Display) -> impl FnOnce(E) -> Failure {
    move |error| Failure::run(format_args!("{subject}: {error}"))
}
