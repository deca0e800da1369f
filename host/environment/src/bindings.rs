//! Host bindings generated from `sdk/wit`, one module per track of the package. Owns nothing else.

/// The track 0.1.x.
#[allow(missing_docs)]
pub mod since_v0_1_0 {
    wasmtime::component::bindgen!({
        path: "../../sdk/wit/since_v0.1.0",
        world: "pure-env",
        exports: { default: async },
    });
}

pub use since_v0_1_0::PureEnv;
pub use since_v0_1_0::PureEnvPre;
pub use since_v0_1_0::exports::prl::env::environment as wit;
pub use since_v0_1_0::prl::env::{log as wit_log, types as wit_types};

/// The package's name.
pub const PACKAGE: &str = "prl:env";
/// The interface a component must export.
pub const INTERFACE: &str = "prl:env/environment";
/// The version this host was built with: it takes the whole track, whatever the patch number.
pub const VERSION: (u64, u64, u64) = (0, 1, 0);
/// Interfaces the host offers without being asked.
pub const GRANTED: [&str; 2] = ["prl:env/types", "prl:env/log"];
