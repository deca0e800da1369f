//! Environments in OCI registries: `oci://registry/name:version[@sha256:…]`.
//!
//! Owns references, the artifact's layout (that of WASM components in general: a config, the component, and a layer for
//! each published file), the requests of the distribution API, and the verification of every byte that comes back. Must
//! not know what an environment is beyond its bytes, and reads no variables: keys are handed in.

mod artifact;
mod client;
mod error;
mod reference;
mod store;

pub use artifact::{Asset, Package};
pub use client::{Credentials, Registry};
pub use error::RegistryError;
pub use reference::Reference;
pub use store::{Pulled, cached};
