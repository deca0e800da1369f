//! From files and flags to one checked tree: reading, merging, checking against a schema, keeping every value's source.
//!
//! Knows schemas, not concrete keys.

pub(crate) mod args;
pub(crate) mod check;
pub(crate) mod layers;
pub(crate) mod merge;
pub(crate) mod suggest;
pub(crate) mod value;
