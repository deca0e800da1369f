//! `prl env new`: a first environment in a new folder. Owns the names put into the template; what is in a template is `sdk/templates`' (Rust) and `prl_env.new`'s (Python).

use super::New;
use super::build::python;
use crate::failure::Failure;
use crate::template::{self, camel};
use crate::{logging, sdk};
use clap::ValueEnum;
use std::path::Path;

/// Languages with a template.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Lang {
    /// Rust.
    Rust,
    /// Python.
    Python,
}

/// The Rust template: file names and texts.
const RUST: [(&str, &str); 4] = [
    ("Cargo.toml", include_str!("../../../../sdk/templates/environment-rust/Cargo.toml")),
    ("src/lib.rs", include_str!("../../../../sdk/templates/environment-rust/src/lib.rs")),
    ("README.md", include_str!("../../../../sdk/templates/environment-rust/README.md")),
    (".gitignore", include_str!("../../../../sdk/templates/environment-rust/gitignore")),
];

/// Runs the command.
pub fn run(asked: &New) -> Result<u8, Failure> {
    let name = asked.name.as_str();
    // The words of `prl_env.names.bad_name`, which also knows Python's modules.
    template::check_name("environment", name, asked.lang == Lang::Rust, name.replace('-', "_").starts_with("prl_env"))?;
    let dir = Path::new(name);
    match asked.lang {
        Lang::Rust => rust(dir, name, &sdk::folder(asked.sdk.as_deref(), "environment")?)?,
        Lang::Python => python(&sdk::python(asked.sdk.as_deref())?, &["-m", "prl_env.new", name])?,
    }
    let next = match asked.lang {
        Lang::Rust => "cargo test && prl env build",
        Lang::Python => "prl env build",
    };
    logging::print(&format!("Wrote {name}. Next: cd {name} && {next} && prl env check {name}.wasm"))
}

fn rust(dir: &Path, name: &str, sdk: &Path) -> Result<(), Failure> {
    let path = template::in_toml(&sdk.join("environment"))?;
    template::write(dir, &RUST, &[("../../environment", &path), ("Sums", &camel(name)), ("sums", name)])
}
