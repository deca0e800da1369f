//! Finds stop strings in the text of sampled tokens.
//!
//! Owns how much of the tail is decoded again after each token. Must not know how text is decoded: that is a callback.

use prl_types::TokenId;
use std::sync::Arc;

/// Decodes sampled ids to text. Called with the tail of the sampled ids after each token of a request that has stop
/// strings.
pub type Decode = Arc<dyn Fn(&[TokenId]) -> String + Send + Sync>;

/// Tokens decoded beyond the longest stop string, for what a decoder does at the edge of its input.
const MARGIN: usize = 16;

/// The stop string that the last of `sampled` has completed: the one that starts first in the text, of several at the same
/// place the one listed first. One that was there before ended nothing then, since more tokens were asked for, and does
/// not now.
///
/// Decodes a tail that is long enough for the longest stop string (a token carries at least one byte of text, and the
/// tail grows where tokens decode to nothing), so that the cost of a request stays linear in its length.
pub(crate) fn find<'a>(sampled: &[TokenId], stop: &'a [String], decode: &Decode) -> Option<&'a str> {
    let longest = stop.iter().map(String::len).max()?;
    let mut window = (longest + MARGIN).min(sampled.len());
    loop {
        let text = decode(&sampled[sampled.len() - window..]);
        if text.len() < longest + MARGIN && window < sampled.len() {
            window = (window * 2).min(sampled.len());
            continue;
        }
        if !stop.iter().any(|s| text.contains(s.as_str())) {
            return None;
        }
        // An incomplete character at the end may have become a shorter one.
        let before = decode(&sampled[sampled.len() - window..sampled.len() - 1]);
        let known = before.trim_end_matches(char::REPLACEMENT_CHARACTER).len();
        let new = |s: &'a str| {
            let from = text.ceil_char_boundary((known + 1).saturating_sub(s.len()));
            text[from..].find(s).map(|at| (from + at, s))
        };
        return stop.iter().filter_map(|s| new(s)).min_by_key(|(at, _)| *at).map(|(_, s)| s);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ascii() -> Decode {
        // 0 stands for a special token without text.
        Arc::new(|ids| ids.iter().filter(|i| **i != 0).map(|i| char::from(*i as u8)).collect())
    }

    fn bytes(text: &str) -> Vec<TokenId> {
        text.bytes().map(TokenId::from).collect()
    }

    #[test]
    fn the_first_match_in_the_text_wins() {
        let stop = ["</b>".to_string(), "</a>".to_string()];
        // One token that completes both.
        let both: Decode = Arc::new(|ids| ids.iter().map(|i| if *i == 1 { "a></b>" } else { "x</" }).collect());
        assert_eq!(find(&[0, 1], &stop, &both), Some("</a>"));
        assert_eq!(find(&bytes("x</a"), &stop, &ascii()), None);
        assert_eq!(find(&bytes("x</b>"), &[], &ascii()), None);
    }

    #[test]
    fn only_the_last_token_completes_one() {
        let stop = ["</b>".to_string(), "b".to_string()];
        assert_eq!(find(&bytes("x</b>"), &stop[..1], &ascii()), Some("</b>"));
        assert_eq!(find(&bytes("x</b>y"), &stop, &ascii()), None);
        assert_eq!(find(&bytes("x</b>b"), &stop, &ascii()), Some("b"));
        let decode: Decode = Arc::new(|ids| {
            let bytes: Vec<u8> = ids.iter().map(|i| *i as u8).collect();
            String::from_utf8_lossy(&bytes).into_owned()
        });
        let stop = ["é".to_string(), "é!".to_string()];
        assert_eq!(find(&bytes("aé"), &stop, &decode), Some("é"));
        assert_eq!(find(&bytes("aé!"), &stop, &decode), Some("é!"));
        assert_eq!(find(&bytes("aé?"), &stop, &decode), None);
    }

    #[test]
    fn tokens_without_text_do_not_hide_a_match() {
        let mut ids = bytes("ab");
        ids.extend([0; 500]);
        ids.extend(bytes("c"));
        assert_eq!(find(&ids, &["abc".to_string()], &ascii()), Some("abc"));
    }

    proptest! {
        /// Token by token, the window finds what a search of the whole text finds, at the same token.
        #[test]
        fn a_window_sees_what_the_whole_text_holds(
            ids in prop::collection::vec(prop_oneof![Just(0u32), Just(97), Just(98), Just(99)], 1..80),
            stop in prop::collection::vec("[abc]{2,6}", 1..4),
        ) {
            let decode = ascii();
            for n in 1..=ids.len() {
                let whole = decode(&ids[..n]);
                let want = stop.iter().any(|s| whole.contains(s.as_str()));
                let got = find(&ids[..n], &stop, &decode);
                prop_assert_eq!(got.is_some(), want);
                if want {
                    break;
                }
            }
        }
    }
}
