//! Finds the final answer in a completion. Owns where it may stand; what a number looks like is `read`'s.

use crate::read::{Reading, last, only};

/// How an answer was marked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// `<answer>…</answer>`
    Tag,
    /// `\boxed{…}`
    Box,
    /// Not at all: it is the last number.
    None,
}

/// A number that stands as the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Where it was found.
    pub mark: Mark,
    /// `None` when there is none, or a mark holds none or several.
    pub number: Option<Reading>,
}

/// The answer in `text`, of which only what follows the last `</think>` counts: the number in the last whole
/// `<answer>…</answer>`; without one, that in the last `\boxed{…}`; without either, the last number.
///
/// A mark must hold one number (with words around it as may be); of an equation what follows the last `=` or `≈`
/// counts. So several guesses in one mark are no answer.
pub fn answer(text: &str) -> Answer {
    let text = text.rsplit_once("</think>").map_or(text, |(_, said)| said);
    let (mark, inside) = match (last_tag(text, "answer"), boxed(text)) {
        (Some(inside), _) => (Mark::Tag, boxed(inside).unwrap_or(inside)),
        (None, Some(inside)) => (Mark::Box, inside),
        (None, None) => return Answer { mark: Mark::None, number: last(text) },
    };
    let result = inside.rfind(['=', '≈']).map_or(inside, |at| inside[at..].trim_start_matches(['=', '≈']));
    Answer { mark, number: only(result) }
}

/// The trimmed text inside the last `<name>…</name>`.
pub fn last_tag<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let end = text.rfind(&format!("</{name}>"))?;
    let open = format!("<{name}>");
    let start = text[..end].rfind(&open)? + open.len();
    Some(text[start..end].trim())
}

/// The trimmed text inside the last `\boxed{…}`, whose braces must balance.
pub fn boxed(text: &str) -> Option<&str> {
    const OPEN: &str = "\\boxed{";
    let start = text.rfind(OPEN)? + OPEN.len();
    let mut depth = 1usize;
    for (at, byte) in text[start..].bytes().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(text[start..start + at].trim());
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_answer_is_found_where_it_is_marked() {
        for (text, mark, number) in [
            ("first 3, then <answer>4</answer>", Mark::Tag, "4"),
            ("<answer>3</answer> no: <answer> 4 apples </answer> 9", Mark::Tag, "4"),
            ("<answer>\\boxed{5}</answer> \\boxed{6}", Mark::Tag, "5"),
            ("<answer><answer>7</answer></answer>", Mark::Tag, "7"),
            ("<answer>2 * 3 = 6</answer>", Mark::Tag, "6"),
            ("<answer>6 or 7</answer>", Mark::Tag, "-"),
            ("<answer></answer> 8", Mark::Tag, "-"),
            ("\\boxed{1} and \\boxed{\\frac{1}{2}}.", Mark::Box, "0.5"),
            ("\\boxed{x = 12\\text{ cm}} 3", Mark::Box, "12"),
            ("\\boxed{12", Mark::None, "12"),
            ("<answer>13", Mark::None, "13"),
            ("#### 1,400", Mark::None, "1400"),
            ("<think><answer>1</answer></think> It is 2.", Mark::None, "2"),
            ("</think>", Mark::None, "-"),
            ("", Mark::None, "-"),
        ] {
            let found = answer(text);
            let number = Answer { mark, number: last(number) };
            assert_eq!(found, number, "{text}");
        }
    }

    #[test]
    fn large_hostile_texts_are_read_in_linear_time() {
        for piece in ["<answer>", "</answer>", "\\boxed{", "}", "1", "1,", "-", "$", "</think>", "\\frac{1", "é", "1 "]
        {
            answer(&piece.repeat(1_000_000 / piece.len()));
        }
    }

    proptest! {
        #[test]
        fn any_pieces_are_read(pieces in proptest::collection::vec(proptest::sample::select(vec![
            "<answer>", "</answer>", "\\boxed{", "{", "}", "1", "-2", "=", "≈", "</think>", "é", " ", "\\frac{1}{2}", "<",
        ]), 0..30)) {
            answer(&pieces.concat());
        }
    }
}
