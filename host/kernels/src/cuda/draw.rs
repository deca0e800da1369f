//! Tokens drawn from rows of logits on the GPU, and tokens told how likely they are.
//!
//! Owns the arguments of the kernels in `draw.cu`. Must not know requests or random streams.

use super::compile::Source;
use super::context::{Context, In, Out, args, grid, int};
use super::{CudaError, check, holds};

/// Most entries of a row; as in `draw.cu`.
const MOST: usize = 256 * 4096;

/// How a token is drawn from each row.
#[derive(Clone, Copy)]
pub struct DrawRows<'a> {
    /// One over the temperature.
    pub inv_temp: In<'a, f32>,
    /// In [0, 1), or negative for the most likely token.
    pub uniform: In<'a, f64>,
    /// Keeps so many of the most likely tokens, and those as likely as the last of them; 0 keeps all.
    pub top_k: In<'a, i32>,
    /// Of what is left keeps the fewest most likely tokens whose probabilities sum to this fraction, and those as likely as
    /// the last of them; 1 keeps all.
    pub top_p: In<'a, f32>,
    /// Before those two drops tokens less likely than this fraction of the most likely one; 0 drops none.
    pub min_p: In<'a, f32>,
}

fn check_vocab(op: &'static str, vocab: usize) -> Result<i32, CudaError> {
    check(op, (1..=MOST).contains(&vocab), || format!("a vocabulary of {vocab}; at most {MOST} are supported"))?;
    int(op, vocab)
}

impl Context {
    /// Draws an id from softmax(logits · inv_temp) of each row of f32 logits `[rows, vocab]` by inverse transform, in order of
    /// ids, over what the filters keep. `drawn` gets pairs of the id and the bits of ln p of it, over the whole row. A row that
    /// holds NaN or +∞, or nothing above −∞, gives NaN.
    ///
    /// # Errors
    /// If a buffer is too short or the vocabulary is larger than a million entries.
    pub fn draw(
        &self,
        [rows, vocab]: [usize; 2],
        logits: In<'_, f32>,
        how: DrawRows<'_>,
        drawn: Out<'_, i32>,
    ) -> Result<(), CudaError> {
        const OP: &str = "draw";
        let entries = check_vocab(OP, vocab)?;
        holds(OP, "logits", logits.len(), rows * vocab)?;
        for (name, len) in [
            ("temperatures", how.inv_temp.len()),
            ("uniform numbers", how.uniform.len()),
            ("top_k", how.top_k.len()),
            ("top_p", how.top_p.len()),
            ("min_p", how.min_p.len()),
            ("pairs", drawn.len() / 2),
        ] {
            holds(OP, name, len, rows)?;
        }
        // SAFETY: arguments are those of `draw`; buffers were checked.
        unsafe {
            self.launch(
                (Source::Draw, "draw"),
                (grid(OP, rows)?, 1),
                (512, 1),
                0,
                args![
                    self.address(logits),
                    self.address(how.inv_temp),
                    self.address(how.uniform),
                    self.address(how.top_k),
                    self.address(how.top_p),
                    self.address(how.min_p),
                    self.address_mut(drawn),
                    entries
                ],
            )
        }
    }

    /// `out = ids`, with the id of pair n of `drawn` where that is −1 − n.
    ///
    /// # Errors
    /// If a buffer is too short.
    pub fn take(&self, ids: In<'_, i32>, drawn: In<'_, i32>, out: Out<'_, i32>) -> Result<(), CudaError> {
        const OP: &str = "drawn ids";
        let rows = ids.len();
        holds(OP, "ids", out.len(), rows)?;
        // SAFETY: arguments are those of `take`; buffers were checked and the kernel checks the pairs' numbers.
        unsafe {
            self.launch(
                (Source::Draw, "take"),
                (grid(OP, rows.div_ceil(256))?, 1),
                (256, 1),
                0,
                args![
                    self.address(ids),
                    self.address(drawn),
                    self.address_mut(out),
                    int(OP, rows)?,
                    int(OP, drawn.len() / 2)?
                ],
            )
        }
    }

    /// Words that [`Context::score`] writes for each row.
    pub const fn score_words(most: usize) -> usize {
        2 + 2 * most
    }

    /// For each row of f32 logits `[rows, vocab]` at its temperature, into `scored`: the bits of the label's ln p, its place by
    /// likelihood from 1, and pairs of an id and the bits of its ln p for the `most` likeliest ones, equals in order of ids. NaN
    /// as in [`Context::draw`].
    ///
    /// # Errors
    /// If a buffer is too short, or the vocabulary is larger than a million entries or smaller than `most`.
    pub fn score(
        &self,
        [rows, vocab, most]: [usize; 3],
        logits: In<'_, f32>,
        labels: In<'_, i32>,
        inv_temp: In<'_, f32>,
        scored: Out<'_, i32>,
    ) -> Result<(), CudaError> {
        const OP: &str = "score";
        let entries = check_vocab(OP, vocab)?;
        check(OP, most <= vocab, || format!("the {most} likeliest of {vocab}"))?;
        holds(OP, "logits", logits.len(), rows * vocab)?;
        holds(OP, "labels", labels.len(), rows)?;
        holds(OP, "temperatures", inv_temp.len(), rows)?;
        holds(OP, "scores", scored.len(), rows * Self::score_words(most))?;
        // SAFETY: arguments are those of `score`; buffers were checked and the kernel checks labels.
        unsafe {
            self.launch(
                (Source::Draw, "score"),
                (grid(OP, rows)?, 1),
                (512, 1),
                0,
                args![
                    self.address(logits),
                    self.address(labels),
                    self.address(inv_temp),
                    self.address_mut(scored),
                    entries,
                    int(OP, most)?
                ],
            )
        }
    }
}
