//! What tells the data of a run from other data, so that a run that goes on notices. Owns what is compared and how a difference
//! is told; must not know where documents come from.

use crate::Document;
use crate::spool;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;

/// Documents that stand for a source without an end.
pub(crate) const FIRST: u64 = 8;

/// Documents and the order that they are drawn in.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fingerprint {
    /// The sources.
    pub parts: Vec<PartPrint>,
    /// What decides the order of draws, by the key that sets it.
    #[serde(default)]
    pub order: BTreeMap<String, String>,
}

/// The documents of a source.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PartPrint {
    /// What metrics call it.
    pub name: String,
    /// How many.
    pub documents: u64,
    /// All their tokens.
    pub tokens: u64,
    /// CRC-32 of all ids and masks, one document after the other.
    pub crc32: u32,
    /// The commit of the hub that they are from. Says where to find them, not what they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
}

impl PartPrint {
    /// Of a source without an end, which documents stand for.
    pub(crate) fn of(documents: &[Document]) -> io::Result<Self> {
        let mut sum = crc32fast::Hasher::new();
        for document in documents {
            sum.update(&spool::encode(document)?);
        }
        let tokens = documents.iter().map(|document| document.ids.len() as u64).sum();
        let name = "the beginning of what has no end".into();
        Ok(PartPrint { name, documents: documents.len() as u64, tokens, crc32: sum.finalize(), commit: None })
    }

    fn difference(&self, saved: &PartPrint) -> Option<String> {
        let (name, count) = (&self.name, |part: &PartPrint| (part.documents, part.tokens));
        if (count(self), self.crc32) == (count(saved), saved.crc32) {
            return None;
        }
        let ((documents, tokens), (were, of)) = (count(self), count(saved));
        let mut text = match count(self) == count(saved) {
            false => format!("`{name}` is {documents} documents of {tokens} tokens, and was {were} of {of}"),
            true => format!(
                "`{name}` has as many tokens as before, but others: from other rows, or by another tokenizer, chat template, \
                 renderer or loss mask"
            ),
        };
        if let (Some(commit), Some(before)) = (&self.commit, &saved.commit)
            && commit != before
        {
            text +=
                &format!(" (it is of the hub's commit {commit}, and was of {before}, which `data.revision` can name)");
        }
        Some(text)
    }
}

impl Fingerprint {
    /// How this data differs from that of before; `None` where it does not.
    pub(crate) fn difference(&self, saved: &Fingerprint) -> Option<String> {
        let names = |print: &Fingerprint| {
            print.parts.iter().map(|part| format!("`{}`", part.name)).collect::<Vec<_>>().join(", ")
        };
        if names(self) != names(saved) {
            return Some(format!("it is {}, and was {}", names(self), names(saved)));
        }
        if let Some(text) = self.parts.iter().zip(&saved.parts).find_map(|(part, saved)| part.difference(saved)) {
            return Some(text);
        }
        // Keys of this run first: a seed that is gone says less than what made it so.
        let mut keys = self.order.keys().chain(saved.order.keys());
        let key = keys.find(|key| self.order.get(*key) != saved.order.get(*key))?;
        let value = |print: &Fingerprint| print.order.get(key).map_or("not set", String::as_str).to_owned();
        Some(format!("`{key}` is {}, and was {}", value(self), value(saved)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_says_what_it_is() {
        let part = |name: &str, documents, crc32, commit: Option<&str>| PartPrint {
            name: name.into(),
            documents,
            tokens: 10 * documents,
            crc32,
            commit: commit.map(str::to_owned),
        };
        let print = |parts: Vec<PartPrint>, seed: Option<&str>| Fingerprint {
            parts,
            order: seed.iter().map(|seed| ("data.seed".into(), seed.to_string())).collect(),
        };
        let saved = print(vec![part("a", 3, 7, Some("old")), part("b", 4, 8, None)], Some("0"));
        let told = |parts, seed| print(parts, seed).difference(&saved);
        // Another commit with the same documents is no difference.
        assert_eq!(told(vec![part("a", 3, 7, Some("new")), part("b", 4, 8, None)], Some("0")), None);
        let text = told(vec![part("a", 3, 7, None), part("b", 5, 9, None)], Some("0")).unwrap();
        assert_eq!(text, "`b` is 5 documents of 50 tokens, and was 4 of 40");
        let text = told(vec![part("a", 3, 6, Some("new")), part("b", 4, 8, None)], Some("0")).unwrap();
        assert!(text.starts_with("`a` has as many tokens as before, but others"), "{text}");
        assert!(text.ends_with("(it is of the hub's commit new, and was of old, which `data.revision` can name)"));
        assert_eq!(told(vec![part("a", 3, 7, None)], Some("0")).unwrap(), "it is `a`, and was `a`, `b`");
        let same = || vec![part("a", 3, 7, None), part("b", 4, 8, None)];
        assert_eq!(told(same(), Some("1")).unwrap(), "`data.seed` is 1, and was 0");
        assert_eq!(told(same(), None).unwrap(), "`data.seed` is not set, and was 0");
    }
}
