//! Finds algorithm plug-ins, loads them over the C ABI of `sdk/abi/include/prl.h`, and validates all they return.
//!
//! Owns the only raw pointers to outside code: discovery by metadata without loading ([`Registry`]), loading of a private
//! copy that stays for the life of the process ([`Plugin`]), instances ([`Algorithm`]). Must not know any algorithm, nor
//! where rollouts come from or what trains on the streams. Reads no environment variables: callers hand in all places.

mod algorithm;
mod clock;
mod error;
mod host;
mod loss;
mod metadata;
mod plugin;
mod registry;
mod routing;
mod swap;
mod view;

pub use algorithm::{Algorithm, Scored};
pub use error::AlgorithmError;
pub use metadata::{Hook, Metadata, Reference, Source, inspect};
pub use plugin::Plugin;
pub use registry::{Found, Registry, Search};
pub use routing::{ActionLoss, stamp_loss_routing};
pub use swap::Trial;
