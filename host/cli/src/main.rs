//! The `prl` binary.

fn main() {}
