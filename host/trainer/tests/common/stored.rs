//! Documents on disk.

use prl_trainer::{Document, Mixture, Part, SpoolWriter, Turns, Until};

/// A source's documents.
pub fn part(name: &str, documents: &[Document]) -> Part {
    let mut writer = SpoolWriter::new(tempfile::tempfile().unwrap());
    documents.iter().for_each(|document| writer.push(document).unwrap());
    Part { name: name.into(), documents: writer.finish().unwrap(), commit: None }
}

/// A source of one part.
pub fn stored(documents: &[Document], shuffle: Option<u64>, epochs: Option<u64>) -> Mixture {
    let turns = Turns { probabilities: None, until: Until::All, seed: 0 };
    Mixture::new(vec![part("all", documents)], &turns, shuffle, epochs).unwrap()
}
