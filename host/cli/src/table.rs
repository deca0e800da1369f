//! Columns of text. Owns their widths; must not know what is in them.

/// Rows under a heading, each column as wide as its widest cell, indented by two.
pub fn table(heading: &[&str], rows: &[Vec<String>]) -> String {
    let columns = heading.len();
    let mut widths: Vec<usize> = heading.iter().map(|cell| width(cell)).collect();
    for row in rows {
        row.iter().zip(&mut widths).for_each(|(cell, wide)| *wide = (*wide).max(width(cell)));
    }
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let mut text = String::from(" ");
        for (at, (cell, wide)) in cells.zip(&widths).enumerate() {
            text.push(' ');
            text.push_str(cell);
            if at + 1 < columns {
                text.extend(std::iter::repeat_n(' ', wide + 1 - width(cell)));
            }
        }
        text.trim_end().to_owned() + "\n"
    };
    let mut text = line(&mut heading.iter().copied());
    for row in rows {
        text += &line(&mut row.iter().map(String::as_str));
    }
    text
}

fn width(text: &str) -> usize {
    text.chars().count()
}

/// The text on one line, cut to so many characters.
pub fn short(text: &str, most: usize) -> String {
    let mut line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if width(&line) > most {
        line = line.chars().take(most.saturating_sub(1)).collect::<String>() + "…";
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_need_be() {
        let rows = [vec!["ä".into(), "1".into()], vec!["abc".into(), String::new()]];
        assert_eq!(table(&["k", "value"], &rows), "  k    value\n  ä    1\n  abc\n");
        assert_eq!((short("a\n  b", 9), short("abcdef", 4)), ("a b".into(), "abc…".into()));
    }
}
