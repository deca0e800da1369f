//! Stored documents, epoch after epoch: which one a draw is, where one source or several are trained on.
//!
//! Owns the order: how sources take turns, and how every epoch is shuffled. Must not know what a document is made of, nor
//! what is done with it. The sequence of a mixture is that of `interleave_datasets` in Hugging Face's library, but for the
//! generator of random numbers: it is laid out once, and it is the laid-out sequence that epochs shuffle.

use crate::TrainerError;
use crate::documents::{Documents, Drawn};
use crate::fingerprint::{Fingerprint, PartPrint};
use crate::spool::Spool;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use std::collections::BTreeMap;

/// An epoch has less draws than this: places are kept in 32 bits.
const MAX_DRAWS: f64 = u32::MAX as f64;
/// Memory that a draw takes: its place in the sequence, and in the order of an epoch.
const DRAW_BYTES: f64 = 8.0;
/// The stream of random numbers that says whose turn it is; 0 is that of shuffles.
const TURNS: u64 = 1;

/// One of the sources that are trained on.
#[derive(Debug)]
pub struct Part {
    /// What metrics call it.
    pub name: String,
    /// Its documents.
    pub documents: Spool,
    /// The commit of the hub that they are from.
    pub commit: Option<String>,
}

/// When an epoch of several sources has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// One source has been gone through.
    First,
    /// Every source has been gone through; those that were before begin again.
    All,
}

/// How several sources take turns.
#[derive(Clone, Debug, PartialEq)]
pub struct Turns {
    /// Of each source, more than 0 and 1 together; without them sources take turns one by one.
    pub probabilities: Option<Vec<f64>>,
    /// The end of an epoch.
    pub until: Until,
    /// Draws follow from it.
    pub seed: u64,
}

/// Documents of one or several sources.
pub struct Mixture {
    parts: Vec<Part>,
    /// The sequence of an epoch before it is shuffled, as places counted through all parts.
    sequence: Sequence,
    shuffle: Option<u64>,
    epochs: Option<u64>,
    order: Vec<u32>,
    ordered_for: Option<u64>,
    turns: Turns,
}

enum Sequence {
    /// As they are.
    Plain(usize),
    Mixed(Vec<u32>),
}

impl Sequence {
    fn len(&self) -> usize {
        match self {
            Sequence::Plain(len) => *len,
            Sequence::Mixed(places) => places.len(),
        }
    }

    fn place(&self, at: usize) -> u32 {
        match self {
            Sequence::Plain(_) => at as u32,
            Sequence::Mixed(places) => places[at],
        }
    }
}

impl Mixture {
    /// Every epoch has an order of its own that follows from the seed `shuffle`; `None` keeps the order. `epochs` bounds
    /// the passes. A single part takes no turns.
    ///
    /// # Errors
    /// A part without documents, probabilities that are none, an epoch of more than 2^32 draws.
    pub fn new(
        parts: Vec<Part>,
        turns: &Turns,
        shuffle: Option<u64>,
        epochs: Option<u64>,
    ) -> Result<Self, TrainerError> {
        let lens: Vec<usize> = parts.iter().map(|part| part.documents.len()).collect();
        let sequence = match lens[..] {
            [len] => plain(len)?,
            _ => Sequence::Mixed(turns.sequence(&lens).map_err(TrainerError::Mixture)?),
        };
        let turns = turns.clone();
        Ok(Mixture { parts, sequence, shuffle, epochs, order: Vec::new(), ordered_for: None, turns })
    }

    /// Every document of every part once, one part after the other.
    ///
    /// # Errors
    /// More than 2^32 documents.
    pub fn once(parts: Vec<Part>) -> Result<Self, TrainerError> {
        let sequence = plain(parts.iter().map(|part| part.documents.len()).sum())?;
        let turns = Turns { probabilities: None, until: Until::All, seed: 0 };
        Ok(Mixture { parts, sequence, shuffle: None, epochs: Some(1), order: Vec::new(), ordered_for: None, turns })
    }

    /// Documents of an epoch.
    pub fn epoch_len(&self) -> usize {
        self.sequence.len()
    }

    fn read(&mut self, place: u32) -> Result<Drawn, String> {
        let mut at = place as usize;
        for (part, Part { name, documents, .. }) in self.parts.iter_mut().enumerate() {
            match at.checked_sub(documents.len()) {
                Some(rest) => at = rest,
                None => {
                    let document = documents.get(at).map_err(|e| format!("`{name}`: its tokens on disk: {e}"))?;
                    return Ok(Drawn { document, part });
                }
            }
        }
        Err(format!("place {place} is in no part"))
    }
}

fn plain(len: usize) -> Result<Sequence, TrainerError> {
    match len as f64 <= MAX_DRAWS {
        true => Ok(Sequence::Plain(len)),
        false => Err(TrainerError::Mixture(format!("{len} documents are more than an epoch can have"))),
    }
}

impl Documents for Mixture {
    fn get(&mut self, n: u64) -> Result<Option<Drawn>, String> {
        let len = self.sequence.len() as u64;
        let epoch = self.epoch(n);
        if len == 0 || self.epochs.is_some_and(|max| epoch >= max) {
            return Ok(None);
        }
        let at = (n % len) as usize;
        let Some(seed) = self.shuffle else { return self.read(self.sequence.place(at)).map(Some) };
        if self.ordered_for != Some(epoch) {
            let sequence = &self.sequence;
            self.order.clear();
            self.order.try_reserve_exact(sequence.len()).map_err(|_| no_room(sequence.len() as f64))?;
            self.order.extend((0..sequence.len()).map(|at| sequence.place(at)));
            shuffle(&mut self.order, seed.wrapping_add(epoch));
            self.ordered_for = Some(epoch);
        }
        self.read(self.order[at]).map(Some)
    }

    fn epoch(&self, n: u64) -> u64 {
        n / (self.sequence.len() as u64).max(1)
    }

    fn parts(&self) -> Vec<&str> {
        self.parts.iter().map(|part| part.name.as_str()).collect()
    }

    fn fingerprint(&mut self) -> Result<Fingerprint, String> {
        let print = |part: &Part| PartPrint {
            name: part.name.clone(),
            documents: part.documents.len() as u64,
            tokens: part.documents.tokens(),
            crc32: part.documents.crc32(),
            commit: part.commit.clone(),
        };
        let mut order = BTreeMap::from([("data.shuffle", self.shuffle.is_some().to_string())]);
        order.extend(self.shuffle.map(|seed| ("data.seed", seed.to_string())));
        let Turns { probabilities, until, seed } = &self.turns;
        if self.parts.len() > 1 {
            let until = match until {
                Until::First => "first_exhausted",
                Until::All => "all_exhausted",
            };
            order.insert("data.stopping_strategy", until.to_owned());
            if let Some(probabilities) = probabilities {
                order.insert("data.probabilities", format!("{probabilities:?}"));
                order.insert("data.seed", seed.to_string());
            }
        }
        let order = order.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        Ok(Fingerprint { parts: self.parts.iter().map(print).collect(), order })
    }
}

impl Turns {
    /// The places of an epoch, counted through sources of these lengths.
    fn sequence(&self, lens: &[usize]) -> Result<Vec<u32>, String> {
        if lens.is_empty() || lens.contains(&0) {
            return Err("a source has no documents".into());
        }
        let weights = self.weights(lens.len())?;
        let draws = self.draws(lens, &weights);
        if draws > MAX_DRAWS / 2.0 {
            return Err(too_many(draws));
        }
        let mut starts = Vec::with_capacity(lens.len());
        starts.extend(lens.iter().scan(0, |start, len| Some(std::mem::replace(start, *start + len))));
        let mut next = vec![0; lens.len()];
        let mut exhausted = vec![false; lens.len()];
        let mut picks = Picks::new(self, lens.len());
        let mut places = Vec::new();
        // How many it is exactly, chance says; a hundredth more is seldom needed, and makes room anew where it is.
        places.try_reserve(draws as usize + draws as usize / 100).map_err(|_| no_room(draws))?;
        while !(picks.may_end() && self.ended(&exhausted)) {
            let part = picks.next();
            places.push(u32::try_from(starts[part] + next[part]).map_err(|_| "there are too many documents")?);
            next[part] += 1;
            if next[part] == lens[part] {
                (next[part], exhausted[part]) = (0, true);
            }
        }
        Ok(places)
    }

    /// Whether an epoch of sources that have at least so many documents can be held in `memory` bytes. A single source is
    /// as long as it is.
    ///
    /// # Errors
    /// It cannot, or the probabilities are none.
    pub fn check(&self, lens: &[usize], memory: u64) -> Result<(), TrainerError> {
        if lens.len() < 2 {
            return Ok(());
        }
        let weights = self.weights(lens.len()).map_err(TrainerError::Mixture)?;
        match self.draws(lens, &weights) {
            draws if draws > MAX_DRAWS / 2.0 => Err(TrainerError::Mixture(too_many(draws))),
            draws if draws * DRAW_BYTES > memory as f64 => Err(TrainerError::Mixture(no_room(draws))),
            _ => Ok(()),
        }
    }

    fn weights(&self, parts: usize) -> Result<Vec<f64>, String> {
        match &self.probabilities {
            None => Ok(vec![1.0 / parts as f64; parts]),
            Some(p) if p.len() == parts && p.iter().all(|p| p.is_finite() && *p > 0.0) => Ok(p.clone()),
            Some(p) => Err(format!("{p:?} are no probabilities of {parts} sources")),
        }
    }

    /// About how many draws an epoch has.
    fn draws(&self, lens: &[usize], weights: &[f64]) -> f64 {
        let needed = lens.iter().zip(weights).map(|(len, weight)| *len as f64 / weight);
        match self.until {
            Until::First => needed.fold(f64::INFINITY, f64::min),
            Until::All => needed.fold(0.0, f64::max),
        }
    }

    fn ended(&self, exhausted: &[bool]) -> bool {
        match self.until {
            Until::First => exhausted.contains(&true),
            Until::All => !exhausted.contains(&false),
        }
    }
}

fn too_many(draws: f64) -> String {
    format!("an epoch of the mixture would have about {draws:.1e} documents: mix less unevenly")
}

fn no_room(draws: f64) -> String {
    let gib = draws * DRAW_BYTES / f64::from(1 << 30);
    format!(
        "an epoch would have about {draws:.1e} draws, which take {gib:.1} GiB of memory, more than there is: mix less \
         unevenly, or let an epoch end with the shortest source (`stopping_strategy` = \"first_exhausted\")"
    )
}

/// Whose turn it is.
struct Picks<'a> {
    parts: usize,
    made: usize,
    drawn: Option<(ChaCha8Rng, &'a [f64])>,
}

impl<'a> Picks<'a> {
    fn new(turns: &'a Turns, parts: usize) -> Self {
        let drawn = turns.probabilities.as_deref().map(|probabilities| {
            let mut rng = ChaCha8Rng::seed_from_u64(turns.seed);
            rng.set_stream(TURNS);
            (rng, probabilities)
        });
        Picks { parts, made: 0, drawn }
    }

    /// One by one, a round is always finished.
    fn may_end(&self) -> bool {
        self.drawn.is_some() || self.made.is_multiple_of(self.parts)
    }

    fn next(&mut self) -> usize {
        self.made += 1;
        let Some((rng, probabilities)) = &mut self.drawn else { return (self.made - 1) % self.parts };
        let mut left = (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
        for (part, p) in probabilities.iter().enumerate() {
            if left < *p {
                return part;
            }
            left -= p;
        }
        // Probabilities are 1 together but for rounding.
        self.parts - 1
    }
}

/// Fisher–Yates on a ChaCha stream.
fn shuffle(order: &mut [u32], seed: u64) {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    for i in (1..order.len()).rev() {
        // Multiply-shift: uniform up to 2^-64 · n.
        let j = (u128::from(rng.next_u64()) * (i as u128 + 1)) >> 64;
        order.swap(i, j as usize);
    }
}

#[cfg(test)]
#[path = "mixture_tests.rs"]
mod tests;
#[cfg(test)]
pub(crate) use tests::stored;
