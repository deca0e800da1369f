//! Write an algorithm plug-in in safe Rust.
