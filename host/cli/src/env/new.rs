//! `prl env new`: a first environment in a new folder. Owns the names put into the template, and where the SDK is; what is in
//! a template is `sdk/templates`' (Rust) and `prl_env.new`'s (Python).

use super::New;
use super::build::python;
use crate::failure::{Failure, run as running};
use crate::logging;
use clap::ValueEnum;
use std::path::{Path, PathBuf};

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

/// Words that Rust keeps for itself, as far as somebody would call an environment so.
const KEYWORDS: [&str; 16] = [
    "self", "crate", "super", "test", "core", "std", "alloc", "async", "move", "match", "loop", "type", "use", "mod",
    "box", "try",
];

/// Runs the command.
pub fn run(asked: &New) -> Result<u8, Failure> {
    let name = asked.name.as_str();
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_".contains(c);
    let begins = name.starts_with(|c: char| c.is_ascii_lowercase()) && !name.ends_with(['-', '_']);
    if !begins || !name.chars().all(plain) || KEYWORDS.contains(&name) || name.starts_with("prl-env") {
        return Err(Failure::input(format_args!(
            "`{name}` cannot be the name of an environment: it must be of a-z, 0-9, `-` and `_`, begin with a letter, and be \
             no keyword"
        )));
    }
    let dir = PathBuf::from(name);
    if dir.symlink_metadata().is_ok() {
        return Err(Failure::input(format_args!("`{name}` is there already; choose another name or remove it")));
    }
    let sdk = sdk(asked.sdk.as_deref())?;
    match asked.lang {
        Lang::Rust => rust(&dir, name, &sdk)?,
        Lang::Python => python(Some(&sdk), &["-m", "prl_env.new", name])?,
    }
    let next = match asked.lang {
        Lang::Rust => "cargo test && prl env build",
        Lang::Python => "prl env build",
    };
    logging::print(&format!("Wrote {name}. Next: cd {name} && {next} && prl env check {name}.wasm"))
}

fn rust(dir: &Path, name: &str, sdk: &Path) -> Result<(), Failure> {
    let path = sdk.join("environment");
    let path = path.to_str().filter(|path| !path.contains(['"', '\\'])).ok_or_else(|| {
        Failure::input(format_args!("`{}` cannot be written into a Cargo.toml; move the SDK", path.display()))
    })?;
    let made = RUST.iter().try_for_each(|(file, text)| {
        let text = text.replace("../../environment", path).replace("Sums", &camel(name)).replace("sums", name);
        let file = dir.join(file);
        std::fs::create_dir_all(file.parent().unwrap_or(dir))?;
        std::fs::write(file, text)
    });
    made.map_err(running(format_args!("cannot write `{}`", dir.display())))
}

fn camel(name: &str) -> String {
    let upper = |part: &str| {
        let mut chars = part.chars();
        chars.next().map(|first| first.to_ascii_uppercase().to_string() + chars.as_str()).unwrap_or_default()
    };
    name.split(['-', '_']).map(upper).collect()
}

/// The folder `sdk`: the one named, or the one above the binary.
pub fn sdk(named: Option<&Path>) -> Result<PathBuf, Failure> {
    let holds = |dir: &Path| dir.join("environment/Cargo.toml").is_file();
    if let Some(dir) = named {
        let whole = dir.canonicalize().ok().filter(|dir| holds(dir));
        return whole.ok_or_else(|| {
            Failure::input(format_args!("`--sdk`: `{}` holds no `environment/Cargo.toml`", dir.display()))
        });
    }
    let binary = std::env::current_exe().and_then(|path| path.canonicalize()).unwrap_or_default();
    let found = binary.ancestors().skip(1).map(|dir| dir.join("sdk")).find(|dir| holds(dir));
    found.ok_or_else(|| {
        Failure::input(format_args!(
            "the SDK is not beside this binary (`{}`); say where prl's sources have it: --sdk FOLDER/sdk",
            binary.display()
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_types() {
        assert_eq!(camel("word-count_2"), "WordCount2");
    }
}
