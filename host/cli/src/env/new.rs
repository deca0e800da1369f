//! `prl env new`: a first environment in a new folder. Owns the names put into the template; what is in a template is `sdk/templates`' (Rust) and `prl_env.new`'s (Python).

use super::build::python;
use super::{New, sdk};
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
const KEYWORDS: [&str; 15] = [
    "self", "crate", "super", "core", "std", "alloc", "async", "move", "match", "loop", "type", "use", "mod", "box",
    "try",
];

/// Characters of a name.
const LONGEST: usize = 64;

/// Runs the command.
pub fn run(asked: &New) -> Result<u8, Failure> {
    let name = asked.name.as_str();
    if !is_name(name) || asked.lang == Lang::Rust && KEYWORDS.contains(&name) {
        // The words of `prl_env.names.bad_name`, which also knows Python's modules.
        let shown: String = if name.chars().count() > LONGEST {
            name.chars().take(LONGEST - 1).chain(['…']).collect()
        } else {
            name.to_owned()
        };
        return Err(Failure::input(format_args!(
            "`{shown}` cannot be the name of an environment: it must be of a-z, 0-9, `-` and `_`, begin with a letter, have at \
             most {LONGEST} characters, and be neither a keyword, nor a module of the language or of prl, nor like a test's \
             (`test`, `test_x`, `x_test`, `conftest`)"
        )));
    }
    let dir = PathBuf::from(name);
    if dir.symlink_metadata().is_ok() {
        return Err(Failure::input(format_args!("`{name}` is there already; choose another name or remove it")));
    }
    match asked.lang {
        Lang::Rust => rust(&dir, name, &sdk::folder(asked.sdk.as_deref())?)?,
        Lang::Python => python(&sdk::python(asked.sdk.as_deref())?, &["-m", "prl_env.new", name])?,
    }
    let next = match asked.lang {
        Lang::Rust => "cargo test && prl env build",
        Lang::Python => "prl env build",
    };
    logging::print(&format!("Wrote {name}. Next: cd {name} && {next} && prl env check {name}.wasm"))
}

/// Words of a-z and 0-9 with a `-` or a `_` between them; the first begins with a letter. None of prl's modules, and nothing that
/// reads as the name of a test.
fn is_name(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let mut words = name.split(['-', '_']);
    let module = name.replace('-', "_");
    let test =
        ["test", "conftest"].contains(&module.as_str()) || module.starts_with("test_") || module.ends_with("_test");
    name.len() <= LONGEST
        && name.starts_with(|c: char| c.is_ascii_lowercase())
        && words.all(|word| !word.is_empty() && word.chars().all(plain))
        && !module.starts_with("prl_env")
        && !test
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_words() {
        assert!(["a", "my-env", "word_count-2", "testing", "a".repeat(64).as_str()].iter().all(|name| is_name(name)));
        let none = ["", "2a", "A", "a-", "-a", "a--b", "a.b", "ä", "prl-env-x", "prl_env"];
        assert!(none.iter().all(|name| !is_name(name)));
        assert!(["test", "test-x", "x_test", "conftest", "a".repeat(65).as_str()].iter().all(|name| !is_name(name)));
    }

    #[test]
    fn names_become_types() {
        assert_eq!(camel("word-count_2"), "WordCount2");
    }
}
