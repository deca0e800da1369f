//! Write an environment in safe Rust.
