//! Where training documents come from, and how they fill rows.
//!
//! Owns what a source of documents is and `cat` packing. Must not know text, templates or roles (documents are ids with a mask), nor
//! what is done with a row.

use crate::TrainerError;
use crate::fingerprint::{FIRST, Fingerprint, PartPrint};
use prl_types::TokenId;

/// Documents in a row without a trainable token after which a source is given up.
const MAX_SKIPPED_IN_A_ROW: u64 = 100_000;

/// A tokenised training document.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Document {
    /// The tokens.
    pub ids: Vec<TokenId>,
    /// Whether each token is a target, predicted from those before it. That of the first is without effect.
    pub mask: Vec<bool>,
}

impl Document {
    /// Number of targets.
    pub(crate) fn targets(&self) -> usize {
        self.mask.iter().skip(1).filter(|m| **m).count()
    }
}

/// A document that was drawn.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Drawn {
    /// The document.
    pub document: Document,
    /// Which of [`Documents::parts`] it is from; 0 where there are none.
    pub part: usize,
}

/// Documents by number of draw. A draw gives the same document whenever it is asked for, so a count of draws is all
/// that a checkpoint needs.
pub trait Documents: Send {
    /// The document of draw `n`, counted from 0; `None` when the source has ended before.
    ///
    /// # Errors
    /// A message for the user; the caller adds the number of the draw.
    fn get(&mut self, n: u64) -> Result<Option<Drawn>, String>;

    /// The pass over the data that draw `n` belongs to, counted from 0.
    fn epoch(&self, n: u64) -> u64;

    /// What documents are from, by the name that metrics give it; nothing where that is not told apart.
    fn parts(&self) -> Vec<&str> {
        Vec::new()
    }

    /// What tells this source from others.
    ///
    /// # Errors
    /// A message for the user.
    fn fingerprint(&mut self) -> Result<Fingerprint, String>;
}

/// An endless source: a function of the number of the draw.
pub struct Generated<F>(pub F);

impl<F: FnMut(u64) -> Result<Document, String> + Send> Documents for Generated<F> {
    fn get(&mut self, n: u64) -> Result<Option<Drawn>, String> {
        (self.0)(n).map(|document| Some(Drawn { document, part: 0 }))
    }

    fn epoch(&self, _n: u64) -> u64 {
        0
    }

    /// The first documents stand for all.
    fn fingerprint(&mut self) -> Result<Fingerprint, String> {
        let first = (0..FIRST).map(&mut self.0).collect::<Result<Vec<_>, _>>()?;
        let part = PartPrint::of(&first).map_err(|e| e.to_string())?;
        Ok(Fingerprint { parts: vec![part], ..Fingerprint::default() })
    }
}

/// One packed row: whole documents, at most `seq_len` tokens together.
pub(crate) type Row = Vec<Drawn>;

/// Cuts a stream of documents into rows.
#[derive(Debug, Default)]
pub(crate) struct Packer {
    next: u64,
    /// The last draw, when it did not fit the row before.
    pending: Option<Drawn>,
    /// Documents left out so far because they had no target.
    pub skipped: u64,
}

impl Packer {
    /// Goes on after so many draws, of which `skipped` were left out.
    pub fn at(cursor: u64, skipped: u64) -> Self {
        Packer { next: cursor, skipped, ..Default::default() }
    }

    /// Draws that are used up.
    pub fn cursor(&self) -> u64 {
        self.next - u64::from(self.pending.is_some())
    }

    /// The next row; `None` when the source has ended. Documents are concatenated in order; one that would overflow
    /// opens the next row; one longer than a row is cut; one without a target within the row length is skipped.
    pub fn row(&mut self, source: &mut dyn Documents, seq_len: usize) -> Result<Option<Row>, TrainerError> {
        let (mut row, mut used) = (Row::new(), 0);
        loop {
            let document = match self.pending.take() {
                Some(d) => Some(d),
                None => self.draw(source, seq_len)?,
            };
            match document {
                Some(d) if used + d.document.ids.len() <= seq_len => {
                    used += d.document.ids.len();
                    row.push(d);
                }
                overflow => {
                    self.pending = overflow;
                    return Ok(Some(row).filter(|r| !r.is_empty()));
                }
            }
            if used == seq_len {
                return Ok(Some(row));
            }
        }
    }

    /// The next document with a target.
    fn draw(&mut self, source: &mut dyn Documents, seq_len: usize) -> Result<Option<Drawn>, TrainerError> {
        for _ in 0..MAX_SKIPPED_IN_A_ROW {
            let index = self.next;
            let got = source.get(index).map_err(|message| TrainerError::Source { index, message })?;
            let Some(mut drawn) = got else { return Ok(None) };
            self.next += 1;
            let document = &mut drawn.document;
            let (ids, mask) = (document.ids.len(), document.mask.len());
            if ids != mask {
                return Err(TrainerError::Document { index, ids, mask });
            }
            document.ids.truncate(seq_len);
            document.mask.truncate(seq_len);
            if document.targets() > 0 {
                return Ok(Some(drawn));
            }
            self.skipped += 1;
        }
        Err(TrainerError::NothingTrainable { skipped: MAX_SKIPPED_IN_A_ROW, seq_len })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mixture::stored;
    use proptest::prelude::*;

    fn document(first: TokenId, len: usize) -> Document {
        Document { ids: (first..first + len as TokenId).collect(), mask: (0..len).map(|t| t > 0).collect() }
    }

    fn rows(source: &mut dyn Documents, seq_len: usize) -> (Vec<Row>, Packer) {
        let mut packer = Packer::default();
        let mut rows = Vec::new();
        while let Some(row) = packer.row(source, seq_len).unwrap() {
            rows.push(row);
        }
        (rows, packer)
    }

    #[test]
    fn rows_are_filled_in_order_and_nothing_is_split() {
        let lens = [4, 5, 3, 10, 99, 1, 2];
        let documents: Vec<Document> = lens.iter().enumerate().map(|(i, n)| document(100 * i as TokenId, *n)).collect();
        let (rows, packer) = rows(&mut stored(&documents, None, Some(1)), 10);
        let lens: Vec<Vec<usize>> = rows.iter().map(|r| r.iter().map(|d| d.document.ids.len()).collect()).collect();
        assert_eq!(lens, [vec![4, 5], vec![3], vec![10], vec![10], vec![2]]);
        // A single token has nothing to be predicted from.
        assert_eq!((packer.skipped, packer.cursor()), (1, 7));
    }

    #[test]
    fn targets_must_lie_within_the_row() {
        let mut late = document(0, 12);
        late.mask = (0..12).map(|t| t >= 10).collect();
        let mut first = document(0, 3);
        first.mask = vec![true, false, false];
        let (rows, packer) = rows(&mut stored(&[late, first], None, Some(1)), 10);
        assert!(rows.is_empty());
        assert_eq!(packer.skipped, 2);
        let mut source = Generated(|_| Ok(Document { ids: vec![1], mask: vec![true] }));
        let error = Packer::default().row(&mut source, 8).unwrap_err().to_string();
        assert!(error.starts_with("100000 documents in a row have no trainable token within 8 tokens"), "{error}");
    }

    #[test]
    fn bad_documents_are_named() {
        let mut source = Generated(|n| match n {
            0 => Ok(document(0, 3)),
            1 => Ok(Document { ids: vec![1, 2], mask: vec![true] }),
            _ => Err("line 7 is not JSON".into()),
        });
        let mut packer = Packer::default();
        let error = packer.row(&mut source, 8).unwrap_err().to_string();
        assert_eq!(error, "document 1: the mask has 1 entries for 2 tokens");
        let error = packer.row(&mut source, 8).unwrap_err().to_string();
        assert_eq!(error, "document 2: line 7 is not JSON");
    }

    proptest! {
        /// Stopping after any row and going on from the cursor alone gives the same rows.
        #[test]
        fn the_cursor_is_all_there_is_to_remember(
            lens in prop::collection::vec(1usize..15, 1..40), seq_len in 4usize..24, stop in 0usize..10,
        ) {
            let documents: Vec<Document> =
                lens.iter().enumerate().map(|(i, n)| document(100 * i as TokenId, *n)).collect();
            let mut source = stored(&documents, Some(1), Some(1));
            let (want, _) = rows(&mut source, seq_len);
            let mut packer = Packer::default();
            let mut got = Vec::new();
            for _ in 0..stop.min(want.len()) {
                got.extend(packer.row(&mut source, seq_len).unwrap());
            }
            let mut packer = Packer::at(packer.cursor(), packer.skipped);
            while let Some(row) = packer.row(&mut source, seq_len).unwrap() {
                got.push(row);
            }
            prop_assert_eq!(got, want);
        }
    }
}
