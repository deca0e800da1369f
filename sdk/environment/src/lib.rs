//! Write an environment in safe Rust. Most implement [`Recipe`]: tasks, a rubric of weighted functions, a hook for
//! further turns, tools. Those that want the whole contract implement [`Environment`] and [`Rollout`]. Either is then
//! [`export!`]ed.
//!
//! Owns the guest side of the WIT package `prl:env` (`sdk/wit`) and the helpers most environments want. Must not know
//! the host: nothing here depends on how tasks are sampled, trained on or stored. Everything but the export itself
//! also works natively, so an environment is tested with plain `cargo test` (see [`testing`]).
//!
//! ```
//! use prl_env::{Attempt, Message, Recipe, Result, Rng, Spec, Task};
//! use serde_json::json;
//!
//! prl_env::args! {
//!     /// What a run may set.
//!     pub struct Args {
//!         /// Largest number to add.
//!         largest: u64 = 99 => [min(1), max(1000000)];
//!     }
//! }
//!
//! struct Sums {
//!     args: Args,
//! }
//!
//! prl_env::export!(Sums);
//!
//! impl Recipe for Sums {
//!     type Args = Args;
//!     type State = ();
//!
//!     fn spec() -> Spec<Self> {
//!         Spec::<Self>::new("sums", "1.0.0", "Add two numbers.")
//!             .split("train", None)
//!             .split("eval", Some(100))
//!             .reward("right", 1.0, |_, attempt| attempt.answer() == attempt.text().trim())
//!             .metric("length", |_, attempt| attempt.text().len() as f64)
//!     }
//!
//!     fn new(args: Args) -> Result<Self> {
//!         Ok(Sums { args })
//!     }
//!
//!     fn task(&self, split: &str, index: u64, seed: u64) -> Result<Task> {
//!         let mut rng = Rng::for_task(split, index, seed);
//!         let mut number = || rng.next_u64() % (self.args.largest + 1);
//!         let (a, b) = (number(), number());
//!         let question = format!("{a} + {b} = ? Answer with the number.");
//!         Ok(Task::new(vec![Message::user(question)]).answer(json!(a + b)))
//!     }
//! }
//!
//! let harness = prl_env::testing::Harness::<Sums>::new("{}").unwrap();
//! let task = harness.task("eval", 3, 7).unwrap();
//! let answer = task.answer_text();
//! assert_eq!(harness.answer(&task, &answer).unwrap().reward, 1.0);
//! ```

// So that macros which name this crate also work inside it.
extern crate self as prl_env;

mod adapter;
mod args;
#[allow(missing_docs, clippy::all)]
pub mod bindings {
    //! Generated from `sdk/wit`; the parts worth naming are re-exported at the crate's root.
    wit_bindgen::generate!({
        path: "../wit/since_v0.1.0",
        world: "full-env",
        additional_derives: [Clone, PartialEq],
        pub_export_macro: true,
        export_macro_name: "export_component",
        default_bindings_module: "prl_env::bindings",
    });
}
mod difflib;
mod environment;
pub mod log;
mod recipe;
mod rng;
pub mod services;
pub mod testing;
mod text;
mod tools;
mod types;

#[doc(hidden)]
pub use adapter::Adapter;
#[doc(hidden)]
pub use args::checked;
pub use args::{ArgType, Args, NoArgs};
pub use bindings::exports::prl::env::environment::{
    Completion, Component, Features, FinishReason, Finished, Info, RolloutContext, Split, Stop, StopKind, Task, Turn,
};
pub use bindings::prl::env::types::{
    ContentPart, Error, ErrorCode, Media, MediaSource, Message, NamedValue, Role, Score, ToolCall, ToolDef,
};
pub use difflib::ratio;
pub use environment::{Environment, Result, Rollout};
pub use recipe::{Attempt, Recipe, Spec, Verdict};
pub use rng::Rng;
#[doc(hidden)]
pub use serde;
#[doc(hidden)]
pub use serde_json;
pub use text::{rows, tag};
pub use tools::dispatch;

/// Makes the crate a `prl:env` component around a [`Recipe`] or an [`Environment`]. Call it once, at the top level of a
/// `cdylib`.
///
/// On targets other than WASM it does nothing, so the same crate is a plain library there.
#[macro_export]
macro_rules! export {
    ($environment:ty) => {
        #[cfg(target_arch = "wasm32")]
        mod __prl_env_export {
            use super::*;
            type Component = $crate::Adapter<$environment>;
            $crate::bindings::export_component!(Component with_types_in $crate::bindings);
        }
    };
}
