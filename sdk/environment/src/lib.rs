//! Write an environment in safe Rust: implement [`Environment`] and [`Rollout`], then [`export!`] the type.
//!
//! Owns the guest side of the WIT package `prl:env` (`sdk/wit`) and the helpers most environments want. Must not know
//! the host: nothing here depends on how tasks are sampled, trained on or stored. Everything but the export itself
//! also works natively, so an environment is unit-tested with plain `cargo test`.

mod adapter;
#[allow(missing_docs, clippy::all)]
pub mod bindings {
    //! Generated from `sdk/wit`; the parts worth naming are re-exported at the crate's root.
    wit_bindgen::generate!({
        path: "../wit/since_v0.1.0",
        world: "pure-env",
        additional_derives: [Clone, PartialEq],
        pub_export_macro: true,
        export_macro_name: "export_component",
        default_bindings_module: "prl_env::bindings",
    });
}
mod difflib;
mod environment;
pub mod log;
mod rng;
mod text;
mod types;

#[doc(hidden)]
pub use adapter::Adapter;
pub use bindings::exports::prl::env::environment::{
    Completion, Features, FinishReason, Finished, Info, RolloutContext, Split, Stop, StopKind, Task, Turn,
};
pub use bindings::prl::env::types::{
    ContentPart, Error, ErrorCode, Media, MediaSource, Message, Metric, RewardComponent, Role, Score, ToolCall, ToolDef,
};
pub use difflib::ratio;
pub use environment::{Environment, Result, Rollout};
pub use rng::Rng;
pub use text::tag;

/// Makes the crate a `prl:env` component around an [`Environment`]. Call it once, at the top level of a `cdylib`.
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
