//! Keys and values of past sequences, found by what they have in common with a new one.
//!
//! Owns the index and what is given up first. Knows only the present weights' caches: whoever changes the weights clears it.

use crate::forward::Cached;
use prl_types::TokenId;
use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

/// Tokens between the places at which sequences are compared.
const BLOCK: usize = 16;

/// What a cache was made for besides its tokens: a caller's word, and an adapter's id.
pub(crate) type Salt = (Option<Arc<str>>, Option<u64>);

struct Entry<C> {
    salt: Salt,
    ids: Vec<TokenId>,
    cache: C,
    /// Of its blocks, and of the whole where that ends within one.
    hashes: Vec<u64>,
    used: u64,
}

/// Past sequences, the least recently used of which is given up first.
pub(crate) struct Prefixes<C> {
    entries: HashMap<u64, Entry<C>>,
    /// The newest entry with this hash.
    index: HashMap<u64, u64>,
    /// Entries by the time of their last use.
    order: BTreeMap<u64, u64>,
    clock: u64,
    most: usize,
}

impl<C: Cached> Prefixes<C> {
    /// Keeps at most so many sequences.
    pub fn new(most: usize) -> Self {
        Prefixes { entries: HashMap::new(), index: HashMap::new(), order: BTreeMap::new(), clock: 0, most }
    }

    /// A cache that holds the most that any past sequence has in common with `ids`, and how much that is: less than all of
    /// them, since something must be left to run.
    pub fn find(&mut self, salt: &Salt, ids: &[TokenId]) -> Option<(C, usize)> {
        if self.entries.is_empty() {
            return None;
        }
        let hashes = hashes(salt, ids);
        let at = hashes.iter().rev().find_map(|hash| self.index.get(hash))?;
        let (at, now) = (*at, self.tick());
        let entry = self.entries.get_mut(&at)?;
        // Hashes may collide.
        let common = entry.ids.iter().zip(ids).take_while(|(one, other)| one == other).count();
        let common = common.min(ids.len() - 1);
        if entry.salt != *salt || common == 0 {
            return None;
        }
        self.order.remove(&entry.used);
        entry.used = now;
        self.order.insert(now, at);
        let mut cache = entry.cache.clone();
        cache.truncate(common);
        Some((cache, common))
    }

    /// Keeps the cache of `ids`.
    pub fn keep(&mut self, salt: Salt, ids: Vec<TokenId>, cache: C) {
        if self.most == 0 || ids.is_empty() {
            return;
        }
        let hashes = hashes(&salt, &ids);
        // One that says the same is replaced.
        let same = hashes.last().and_then(|hash| self.index.get(hash)).copied();
        if let Some(same) = same.filter(|at| self.entries.get(at).is_some_and(|e| e.ids == ids && e.salt == salt)) {
            self.remove(same);
        }
        while self.entries.len() >= self.most {
            self.give_up();
        }
        let used = self.tick();
        self.index.extend(hashes.iter().map(|hash| (*hash, used)));
        self.order.insert(used, used);
        self.entries.insert(used, Entry { salt, ids, cache, hashes, used });
    }

    /// Gives up the least recently used one; whether there was one.
    pub fn give_up(&mut self) -> bool {
        match self.order.first_key_value() {
            Some((_, at)) => {
                self.remove(*at);
                true
            }
            None => false,
        }
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.entries.clear();
        self.index.clear();
        self.order.clear();
    }

    fn remove(&mut self, at: u64) {
        let Some(entry) = self.entries.remove(&at) else { return };
        self.order.remove(&entry.used);
        for hash in entry.hashes {
            if self.index.get(&hash) == Some(&at) {
                self.index.remove(&hash);
            }
        }
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }
}

/// Of the first block, the first two, and so on; last of the whole, if that ends within a block.
fn hashes(salt: &Salt, ids: &[TokenId]) -> Vec<u64> {
    let mut so_far = DefaultHasher::new();
    salt.hash(&mut so_far);
    let next = |block: &[TokenId]| {
        block.hash(&mut so_far);
        so_far.finish()
    };
    ids.chunks(BLOCK).map(next).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PLAIN: Salt = (None, None);

    impl Cached for Vec<TokenId> {
        fn truncate(&mut self, len: usize) {
            Vec::truncate(self, len);
        }

        fn growth(&self, more: usize) -> usize {
            more
        }
    }

    #[test]
    fn what_is_used_stays() {
        let mut prefixes = Prefixes::new(2);
        let ids = |first: u32| (first..first + 40).collect::<Vec<_>>();
        for first in [0, 100] {
            prefixes.keep(PLAIN, ids(first), ids(first));
        }
        assert_eq!(prefixes.find(&PLAIN, &ids(0)), Some((ids(0)[..39].to_vec(), 39)));
        prefixes.keep(PLAIN, ids(200), ids(200));
        assert_eq!(prefixes.find(&PLAIN, &ids(100)), None);
        assert!(prefixes.find(&PLAIN, &ids(0)).is_some());
        assert_eq!(prefixes.find(&(Some("salt".into()), None), &ids(0)), None);
        assert!(prefixes.give_up() && prefixes.give_up() && !prefixes.give_up());
        assert!(prefixes.index.is_empty());
    }

    proptest! {
        /// A cache that is found holds the beginning of what was asked for, and of no other salt.
        #[test]
        fn only_beginnings_are_found(
            kept in prop::collection::vec((prop::bool::ANY, prop::collection::vec(0u32..2, 1..90)), 1..8),
            asked in prop::collection::vec(0u32..2, 1..90),
        ) {
            let mut prefixes = Prefixes::new(4);
            for (salted, ids) in kept {
                let salt: Salt = (None, salted.then_some(1));
                prefixes.keep(salt.clone(), ids.clone(), ids.clone());
                let found = prefixes.find(&salt, &[&ids[..], &[7]].concat());
                prop_assert!(found.is_none_or(|(cache, len)| len == ids.len() && cache == ids) || ids.len() < BLOCK);
                let again = prefixes.find(&salt, &ids);
                prop_assert!(again.is_none_or(|(cache, len)| len == ids.len() - 1 && cache == ids[..len]) || ids.len() == 1);
            }
            if let Some((cache, len)) = prefixes.find(&PLAIN, &asked) {
                prop_assert!(len < asked.len() && cache == asked[..len]);
            }
        }
    }
}
