//! Layered TOML and flags to a validated run configuration.
