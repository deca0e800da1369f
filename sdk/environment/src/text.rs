//! Reading structured answers out of a completion, and rows out of a data set.

use crate::{Error, ErrorCode, Result};
use serde::de::DeserializeOwned;

/// The trimmed text between the first `<name>` and the `</name>` that follows it; `None` when either is missing.
pub fn tag<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let open = format!("<{name}>");
    let start = text.find(&open)? + open.len();
    let end = text[start..].find(&format!("</{name}>"))?;
    Some(text[start..start + end].trim())
}

/// The rows of a data set in JSON Lines, most often from `include_str!`. Blank lines are skipped.
///
/// # Errors
/// Names the first line that is not a `T`.
pub fn rows<T: DeserializeOwned>(jsonl: &str) -> Result<Vec<T>> {
    let lines = jsonl.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let row = |(i, line): (usize, &str)| {
        serde_json::from_str(line)
            .map_err(|error| Error::new(ErrorCode::Internal, format!("line {} of the data set: {error}", i + 1)))
    };
    lines.map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_the_first_whole_tag() {
        assert_eq!(tag("so: <a> x y\n</a> <a>z</a>", "a"), Some("x y"));
        assert_eq!(tag("</a><a></a>", "a"), Some(""));
        assert_eq!(tag("<a>cut off", "a"), None);
        assert_eq!(tag("x</a>", "a"), None);
        assert_eq!(tag("<ab>x</ab>", "a"), None);
    }

    #[test]
    fn a_bad_row_is_named() {
        assert_eq!(rows::<u32>("1\n\n2\n").unwrap(), [1, 2]);
        assert!(rows::<u32>("1\n\nx").unwrap_err().message.starts_with("line 3 of the data set: expected value"));
    }
}
