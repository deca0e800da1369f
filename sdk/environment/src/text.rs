//! Reading structured answers out of a completion.

/// The trimmed text between the first `<name>` and the `</name>` that follows it; `None` when either is missing.
pub fn tag<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let open = format!("<{name}>");
    let start = text.find(&open)? + open.len();
    let end = text[start..].find(&format!("</{name}>"))?;
    Some(text[start..start + end].trim())
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
}
