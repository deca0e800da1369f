//! The bytes that each token stands for. Owns how decoders write bytes as characters; must not know what the bytes are for.

use crate::{RenderError, Tokenizer};
use serde_json::Value;
use std::collections::HashMap;

/// How a vocabulary writes bytes.
enum Writing {
    /// One character for each byte.
    Characters(HashMap<char, u8>),
    /// Text, in which this character stands for a space, and `<0x..>` for a byte.
    Text(char),
}

impl Tokenizer {
    /// The bytes of each token, by id; `None` for special tokens and for ids that are no token. Bytes of several tokens in a
    /// row are those of their text, but for a space that some tokenizers drop at the beginning of one.
    ///
    /// # Errors
    /// The tokenizer's decoder is of a kind that makes text of whole sequences only.
    pub fn bytes(&self) -> Result<Vec<Option<Vec<u8>>>, RenderError> {
        let decoder = self.decoder();
        let writing = writing(&decoder).ok_or_else(|| {
            let decoder = decoder["type"].as_str().unwrap_or("none").to_owned();
            RenderError::NoBytes { decoder }
        })?;
        let of = |id| {
            let token = self.id_to_token(id).filter(|_| !self.is_special(id))?;
            // What was added to a vocabulary is written as it is.
            if self.is_added(id) { Some(token.into_bytes()) } else { writing.bytes(&token) }
        };
        Ok((0..self.vocab_size() as u32).map(of).collect())
    }
}

impl Writing {
    fn bytes(&self, token: &str) -> Option<Vec<u8>> {
        match self {
            Writing::Characters(bytes) => token.chars().map(|c| bytes.get(&c).copied()).collect(),
            Writing::Text(space) => match byte(token) {
                Some(byte) => Some(vec![byte]),
                None => Some(token.replace(*space, " ").into_bytes()),
            },
        }
    }
}

/// The byte of `<0x..>`.
fn byte(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    u8::from_str_radix(digits, 16).ok().filter(|_| digits.len() == 2)
}

fn writing(decoder: &Value) -> Option<Writing> {
    let parts = match decoder["type"].as_str()? {
        "Sequence" => decoder["decoders"].as_array()?.as_slice(),
        _ => std::slice::from_ref(decoder),
    };
    let part = |kind: &str| parts.iter().find(|part| part["type"] == kind);
    if part("ByteLevel").is_some() {
        return Some(Writing::Characters(characters()));
    }
    let only = |string: &Value| string.as_str().and_then(|s| s.chars().next().filter(|c| s.len() == c.len_utf8()));
    let replaced = part("Replace").filter(|part| part["content"] == " ").map(|part| only(&part["pattern"]["String"]));
    match (replaced, part("Metaspace"), part("ByteFallback")) {
        (Some(space), None, _) => space.map(Writing::Text),
        (None, Some(part), _) => only(&part["replacement"]).map(Writing::Text),
        (None, None, Some(_)) => Some(Writing::Text(' ')),
        _ => None,
    }
}

/// GPT-2's table: printable characters of Latin-1 stand for themselves, the other bytes for characters from U+0100 on.
fn characters() -> HashMap<char, u8> {
    let itself = |byte: &u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let (same, others): (Vec<u8>, Vec<u8>) = (0..=255).partition(itself);
    let moved = ('\u{100}'..).zip(others);
    same.into_iter().map(|byte| (char::from(byte), byte)).chain(moved).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn decoders_of_all_families_are_understood() {
        let characters = writing(&json!({"type": "Sequence", "decoders": [{"type": "ByteLevel"}]})).unwrap();
        assert_eq!(characters.bytes("Ġé").unwrap(), b" \xe9");
        assert_eq!(characters.bytes("ĊÃ©"), Some("\né".as_bytes().to_vec()));
        assert_eq!(characters.bytes("日"), None);
        let fallback = json!({"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}]});
        let text = writing(&fallback).unwrap();
        assert_eq!(text.bytes("▁日").unwrap(), " 日".as_bytes());
        assert_eq!((text.bytes("<0xE6>").unwrap(), text.bytes("<0x>").unwrap()), (vec![0xe6], b"<0x>".to_vec()));
        let metaspace = json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true});
        assert_eq!(writing(&metaspace).unwrap().bytes("▁a▁").unwrap(), b" a ");
        for unknown in [json!(null), json!({"type": "WordPiece", "prefix": "##"}), json!({"type": "BPEDecoder"})] {
            assert!(writing(&unknown).is_none(), "{unknown}");
        }
    }
}
