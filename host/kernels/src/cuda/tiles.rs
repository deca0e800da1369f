//! Packed documents cut into the tiles that attention's blocks take.
//!
//! Owns the tiles' sizes and order. Must not know what is done with them.

use std::cmp::Reverse;

use cudarc::driver::CudaSlice;

use super::CudaError;
use super::context::{Context, int};

const OP: &str = "attention";
/// Rows of queries of a forward tile and of a dq tile, as in all sources.
pub(super) const QUERY_ROWS: usize = 128;
/// Rows of keys of a dk/dv tile, as in `attention.cu`.
pub(super) const KEY_ROWS: usize = 64;
/// The same, as in the other two.
pub(super) const WIDE_KEY_ROWS: usize = 128;
/// Tokens of documents that the fused backward pass takes at about the same time: few enough that their sums stay in the
/// GPU's cache from one tile's to the next one's.
const NEAR_TOKENS: usize = 4096;

/// Where documents begin and end, cut into tiles of rows, most expensive first. Made once per batch.
pub struct Tiles {
    tokens: usize,
    pub(super) queries: (CudaSlice<i32>, usize),
    pub(super) keys: (CudaSlice<i32>, usize),
    pub(super) wide_keys: (CudaSlice<i32>, usize),
    pub(super) near_keys: (CudaSlice<i32>, usize),
}

impl Tiles {
    /// Number of tokens of all documents.
    pub fn tokens(&self) -> usize {
        self.tokens
    }
}

/// Tiles {first token, document's length, first row, 0} of `rows` rows, sorted by falling cost; those of about `near` tokens of
/// documents, the longest first, before those of the next ones.
fn cut(
    doc_lens: &[usize],
    rows: usize,
    near: usize,
    cost: impl Fn(usize, usize) -> usize,
) -> Result<Vec<i32>, CudaError> {
    let mut start = 0;
    let mut docs: Vec<(usize, usize)> = Vec::with_capacity(doc_lens.len());
    for len in doc_lens {
        docs.push((start, *len));
        start += len;
    }
    docs.sort_by_key(|d| Reverse(d.1));
    let (mut tiles, mut before) = (Vec::new(), 0);
    for (start, len) in docs {
        tiles.extend((0..len).step_by(rows).map(|row| (before / near, Reverse(cost(len, row)), start, len, row)));
        before += len;
    }
    tiles.sort_by_key(|t| (t.0, t.1));
    let mut out = Vec::with_capacity(tiles.len() * 4);
    for (_, _, start, len, row) in tiles {
        out.extend([int(OP, start)?, int(OP, len)?, int(OP, row)?, 0]);
    }
    Ok(out)
}

impl Context {
    /// Cuts packed documents into tiles. Documents of length 0 are allowed.
    ///
    /// # Errors
    /// If there is no memory for the lists.
    pub fn tiles(&self, doc_lens: &[usize]) -> Result<Tiles, CudaError> {
        let queries = cut(doc_lens, QUERY_ROWS, usize::MAX, |len, row| len.min(row + QUERY_ROWS))?;
        let keys = cut(doc_lens, KEY_ROWS, usize::MAX, |len, row| len - row)?;
        let wide_keys = cut(doc_lens, WIDE_KEY_ROWS, usize::MAX, |len, row| len - row)?;
        let near_keys = cut(doc_lens, WIDE_KEY_ROWS, NEAR_TOKENS, |len, row| len - row)?;
        let list = |x: Vec<i32>| Ok::<_, CudaError>((self.upload(&x)?, x.len() / 4));
        Ok(Tiles {
            tokens: doc_lens.iter().sum(),
            queries: list(queries)?,
            keys: list(keys)?,
            wide_keys: list(wide_keys)?,
            near_keys: list(near_keys)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_cover_every_row_once_and_start_with_the_dearest() {
        let tiles = cut(&[0, 1, 130, 64], 64, usize::MAX, |len, row| len - row).unwrap();
        let mut rows: Vec<i32> =
            tiles.chunks_exact(4).flat_map(|t| (t[2]..t[1].min(t[2] + 64)).map(|r| t[0] + r)).collect();
        assert_eq!(tiles[..4], [1, 130, 0, 0]);
        rows.sort_unstable();
        assert_eq!(rows, (0..195).collect::<Vec<i32>>());
    }

    #[test]
    fn near_documents_come_together_the_longest_first() {
        let tiles = cut(&[64, 128, 192], 64, 192, |len, row| len - row).unwrap();
        let starts: Vec<i32> = tiles.chunks_exact(4).map(|t| t[0]).collect();
        assert_eq!(starts, [192, 192, 192, 64, 64, 0]);
    }
}
