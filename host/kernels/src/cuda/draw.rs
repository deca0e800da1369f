//! Tokens drawn from rows of logits on the GPU.
//!
//! Owns the arguments of the kernel in `draw.cu`. Must not know requests or random streams.

use super::compile::Source;
use super::context::{Context, In, Out, args, grid, int};
use super::{CudaError, check, holds};

/// Most entries of a row; as in `draw.cu`.
const MOST: usize = 256 * 4096;

impl Context {
    /// Draws an id from softmax(logits · inv_temp) of each row of f32 logits `[rows, vocab]` by inverse transform of
    /// `uniform` in [0, 1), or takes the most likely one where it is negative; `logprob` is ln p of it. A row that holds NaN
    /// or +∞, or nothing above −∞, gives NaN.
    ///
    /// # Errors
    /// If a buffer is too short or the vocabulary is larger than a million entries.
    pub fn draw(
        &self,
        [rows, vocab]: [usize; 2],
        logits: In<'_, f32>,
        inv_temp: In<'_, f32>,
        uniform: In<'_, f64>,
        ids: Out<'_, i32>,
        logprob: Out<'_, f32>,
    ) -> Result<(), CudaError> {
        const OP: &str = "draw";
        check(OP, (1..=MOST).contains(&vocab), || format!("a vocabulary of {vocab}; at most {MOST} are supported"))?;
        holds(OP, "logits", logits.len(), rows * vocab)?;
        for (name, len) in [
            ("temperatures", inv_temp.len()),
            ("uniform numbers", uniform.len()),
            ("ids", ids.len()),
            ("logprob", logprob.len()),
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
                    self.address(inv_temp),
                    self.address(uniform),
                    self.address_mut(ids),
                    self.address_mut(logprob),
                    int(OP, vocab)?
                ],
            )
        }
    }
}
