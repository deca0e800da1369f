//! What can be wrong with a configuration, and how it is told.
//!
//! Owns the error types and their text. Must not know how a problem is found.

use std::fmt;
use thiserror::Error;

/// One thing that is wrong.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum ProblemKind {
    /// A key that does not exist.
    #[error("unknown key `{key}`{hint}")]
    UnknownKey {
        /// Dotted key.
        key: String,
        /// What may have been meant, with its leading punctuation.
        hint: String,
    },
    /// A key or a value of prime-rl that prl does not have.
    #[error("{what} is known from prime-rl, but prl does not support it yet")]
    Unsupported {
        /// The key, or `key = "value"`.
        what: String,
    },
    /// A key that goes by another name.
    #[error("`{key}` is not a key here: write {instead}")]
    Renamed {
        /// Dotted key.
        key: String,
        /// What to write.
        instead: String,
    },
    /// A value of the wrong type.
    #[error("`{key}` must be {expected}, not {found}")]
    WrongType {
        /// Dotted key.
        key: String,
        /// What it may be.
        expected: String,
        /// What it is.
        found: String,
    },
    /// A value outside its limits.
    #[error("`{key}` must be {limit}, not {found}")]
    OutOfRange {
        /// Dotted key.
        key: String,
        /// The limit in words.
        limit: String,
        /// The value.
        found: String,
    },
    /// A word that is not on the list.
    #[error("`{key}` must be {expected}, not \"{found}\"{hint}")]
    BadChoice {
        /// Dotted key.
        key: String,
        /// The list.
        expected: String,
        /// The value.
        found: String,
        /// What may have been meant, with its leading punctuation.
        hint: String,
    },
    /// A key without default that is not there.
    #[error("`{key}` is missing: {doc}")]
    Missing {
        /// Dotted key.
        key: String,
        /// What the key is for.
        doc: String,
    },
    /// The same key under two names.
    #[error("`{alias}` is another name of `{key}`: set only one of them")]
    Twice {
        /// Dotted key.
        key: String,
        /// The second name.
        alias: String,
    },
    /// A text that is not TOML.
    #[error("not valid TOML: {message}")]
    Syntax {
        /// From the parser.
        message: String,
    },
    /// A file that cannot be read.
    #[error("cannot read the configuration file {path}: {message}")]
    File {
        /// As given on the command line.
        path: String,
        /// Why.
        message: String,
    },
    /// A malformed command line.
    #[error("{0}")]
    Flag(String),
    /// Shared keys against the sections that they fill.
    #[error("shared keys differ from the sections that they fill; set one of each pair, or make them equal:{}", pairs(.0))]
    Conflict(Vec<String>),
    /// Values that do not fit each other.
    #[error("{0}")]
    Invalid(String),
}

fn pairs(pairs: &[String]) -> String {
    pairs.iter().map(|p| format!("\n      {p}")).collect()
}

/// Where a problem is: a line of a file, or a flag.
#[derive(Clone, Debug, PartialEq)]
pub struct Place {
    /// The file's path as given, or `command line`.
    pub name: String,
    /// Line in the file from 1; none for a flag.
    pub line: Option<usize>,
    /// Column in characters from 1.
    pub column: usize,
    /// The text of the line, or the flag.
    pub text: String,
    /// Characters to underline, at least 1.
    pub width: usize,
    /// Reading order over a whole load: source, then offset.
    pub(crate) order: (usize, usize),
}

/// A problem and its place.
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    /// What.
    pub kind: ProblemKind,
    /// Where, when it was written anywhere.
    pub place: Option<Place>,
}

impl fmt::Display for Problem {
    /// `file:line:col: message`, then the line with a caret under the spot.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(place) = &self.place else { return write!(f, "{}", self.kind) };
        match place.line {
            Some(line) => write!(f, "{}:{line}:{}: {}", place.name, place.column, self.kind)?,
            None => write!(f, "{}: {}", place.name, self.kind)?,
        }
        if place.text.trim().is_empty() {
            return Ok(());
        }
        let text = place.text.replace('\t', " ");
        write!(f, "\n    {text}\n    {}{}", " ".repeat(place.column.saturating_sub(1)), "^".repeat(place.width))
    }
}

/// Everything that is wrong with one load, in reading order.
#[derive(Clone, Debug, PartialEq)]
pub struct ConfigErrors {
    /// At least one.
    pub problems: Vec<Problem>,
}

impl ConfigErrors {
    /// Sorts into reading order: files, flags, then what has no place.
    pub(crate) fn new(mut problems: Vec<Problem>) -> Self {
        problems.sort_by_key(|p| p.place.as_ref().map_or((usize::MAX, usize::MAX), |place| place.order));
        problems.dedup();
        ConfigErrors { problems }
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, problem) in self.problems.iter().enumerate() {
            if i > 0 {
                writeln!(f)?;
            }
            write!(f, "{problem}")?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigErrors {}
