//! Runs sandboxed WASM environments.
