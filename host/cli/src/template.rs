//! New projects out of `sdk/templates`: names that every tool takes, and files with them put in. Owns no template.

use crate::failure::{Failure, run as running};
use std::path::Path;

/// Words that Rust keeps for itself, as far as somebody would call an environment so.
const KEYWORDS: [&str; 15] = [
    "self", "crate", "super", "core", "std", "alloc", "async", "move", "match", "loop", "type", "use", "mod", "box",
    "try",
];

/// Characters of a name.
const LONGEST: usize = 64;

/// Checks that a new project in the working directory, of what is called `what`, can have this name: words of a-z and 0-9
/// with a `-` or a `_` between them, the first beginning with a letter; nothing that reads as the name of a test; no keyword
/// where it is `rust`; not `taken` otherwise; and nothing of that name there yet.
///
/// # Errors
/// It cannot.
pub fn check_name(what: &str, name: &str, rust: bool, taken: bool) -> Result<(), Failure> {
    if !is_name(name) || taken || rust && KEYWORDS.contains(&name) {
        let shown: String = if name.chars().count() > LONGEST {
            name.chars().take(LONGEST - 1).chain(['…']).collect()
        } else {
            name.to_owned()
        };
        return Err(Failure::input(format_args!(
            "`{shown}` cannot be the name of an {what}: it must be of a-z, 0-9, `-` and `_`, begin with a letter, have at most \
             {LONGEST} characters, and be neither a keyword, nor a module of the language or of prl, nor like a test's (`test`, \
             `test_x`, `x_test`, `conftest`)"
        )));
    }
    if Path::new(name).symlink_metadata().is_ok() {
        return Err(Failure::input(format_args!("`{name}` is there already; choose another name or remove it")));
    }
    Ok(())
}

fn is_name(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let mut words = name.split(['-', '_']);
    let module = name.replace('-', "_");
    let test =
        ["test", "conftest"].contains(&module.as_str()) || module.starts_with("test_") || module.ends_with("_test");
    name.len() <= LONGEST
        && name.starts_with(|c: char| c.is_ascii_lowercase())
        && words.all(|word| !word.is_empty() && word.chars().all(plain))
        && !test
}

/// The name as that of a type.
pub fn camel(name: &str) -> String {
    let upper = |part: &str| {
        let mut chars = part.chars();
        chars.next().map(|first| first.to_ascii_uppercase().to_string() + chars.as_str()).unwrap_or_default()
    };
    name.split(['-', '_']).map(upper).collect()
}

/// A path as it can stand in a `Cargo.toml`.
///
/// # Errors
/// It cannot.
pub fn in_toml(path: &Path) -> Result<String, Failure> {
    let text = path.to_str().filter(|path| !path.contains(['"', '\\']));
    text.map(str::to_owned).ok_or_else(|| {
        Failure::input(format_args!("`{}` cannot be written into a Cargo.toml; move the SDK", path.display()))
    })
}

/// Writes a template's files, by their paths, into a new folder, with each of `words` put in the place of another.
///
/// # Errors
/// They cannot be written.
pub fn write(dir: &Path, files: &[(&str, &str)], words: &[(&str, &str)]) -> Result<(), Failure> {
    let made = files.iter().try_for_each(|(file, text)| {
        let with = |text: String| words.iter().fold(text, |text, (old, new)| text.replace(old, new));
        let file = dir.join(with((*file).to_owned()));
        std::fs::create_dir_all(file.parent().unwrap_or(dir))?;
        std::fs::write(file, with((*text).to_owned()))
    });
    made.map_err(running(format_args!("cannot write `{}`", dir.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_words() {
        assert!(["a", "my-env", "word_count-2", "testing", "a".repeat(64).as_str()].iter().all(|name| is_name(name)));
        let none = ["", "2a", "A", "a-", "-a", "a--b", "a.b", "ä"];
        assert!(none.iter().all(|name| !is_name(name)));
        assert!(["test", "test-x", "x_test", "conftest", "a".repeat(65).as_str()].iter().all(|name| !is_name(name)));
        assert!(check_name("environment", "fn", true, true).is_err());
    }

    #[test]
    fn names_become_types() {
        assert_eq!(camel("word-count_2"), "WordCount2");
    }
}
