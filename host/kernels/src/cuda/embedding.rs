//! Embeddings: rows gathered, scattered and summed by id.
//!
//! Owns the arguments of their kernels in `rows.cu` and the order of a batch's ids. Must not know layers or documents.
//! Gathering an id outside the table gives NaN.

use cudarc::driver::CudaSlice;

use super::compile::Source;
use super::context::{Context, In, Out, args, grid, int};
use super::element::Element;
use super::rows::check_width;
use super::{CudaError, holds};

/// Tokens of a batch ordered by id, so that an embedding's gradient is summed in a fixed order.
pub struct EmbedOrder {
    order: CudaSlice<i32>,
    starts: CudaSlice<i32>,
    ids: CudaSlice<i32>,
    segments: usize,
    tokens: usize,
    vocab: usize,
}

impl Context {
    /// `x[t] = table[ids[t]]` for a table of rows of `hidden`.
    ///
    /// # Errors
    /// If a buffer is too short or the width is not a multiple of 8.
    pub fn embed<T: Element>(
        &self,
        hidden: usize,
        table: In<'_, T>,
        ids: In<'_, i32>,
        x: Out<'_, T>,
    ) -> Result<(), CudaError> {
        const OP: &str = "embedding";
        check_width(OP, hidden)?;
        holds(OP, "x", x.len(), ids.len() * hidden)?;
        let units = ids.len() * hidden / 8;
        // SAFETY: arguments are those of `embed`; buffers were checked and the kernel checks ids.
        unsafe {
            self.launch(
                (Source::Rows(T::PRECISION), "embed"),
                (grid(OP, units.div_ceil(256))?, 1),
                (256, 1),
                0,
                args![
                    self.address(table),
                    self.address(ids),
                    self.address_mut(x),
                    units as i64,
                    int(OP, hidden)?,
                    int(OP, table.len() / hidden)?
                ],
            )
        }
    }

    /// `to[ids[i]] = from[i]` for rows of `hidden`. Ids are distinct; those outside `to` are left out.
    ///
    /// # Errors
    /// If a buffer is too short or the width is not a multiple of 8.
    pub fn scatter_rows<T: Element>(
        &self,
        hidden: usize,
        ids: In<'_, i32>,
        from: In<'_, T>,
        to: Out<'_, T>,
    ) -> Result<(), CudaError> {
        const OP: &str = "scattering rows";
        check_width(OP, hidden)?;
        holds(OP, "the source", from.len(), ids.len() * hidden)?;
        let units = ids.len() * hidden / 8;
        // SAFETY: arguments are those of `scatter_rows`; buffers were checked and the kernel checks ids.
        unsafe {
            self.launch(
                (Source::Rows(T::PRECISION), "scatter_rows"),
                (grid(OP, units.div_ceil(256))?, 1),
                (256, 1),
                0,
                args![
                    self.address(from),
                    self.address(ids),
                    self.address_mut(to),
                    units as i64,
                    int(OP, hidden)?,
                    int(OP, to.len() / hidden)?
                ],
            )
        }
    }

    /// Orders a batch's tokens by id for [`Context::embed_backward`].
    ///
    /// # Errors
    /// If an id is not below `vocab` or there is not enough memory.
    pub fn embed_order(&self, ids: &[u32], vocab: usize) -> Result<EmbedOrder, CudaError> {
        const OP: &str = "embedding's gradient";
        if let Some(id) = ids.iter().find(|id| **id as usize >= vocab) {
            return Err(CudaError::Shape { op: OP, what: format!("token {id} is not in a vocabulary of {vocab}") });
        }
        let mut order: Vec<i32> = (0..int(OP, ids.len())?).collect();
        order.sort_by_key(|t| ids[*t as usize]);
        let (mut starts, mut unique) = (Vec::new(), Vec::new());
        for (i, t) in order.iter().enumerate() {
            let id = ids[*t as usize] as i32;
            if unique.last() != Some(&id) {
                unique.push(id);
                starts.push(i as i32);
            }
        }
        starts.push(order.len() as i32);
        Ok(EmbedOrder {
            segments: unique.len(),
            tokens: ids.len(),
            vocab,
            order: self.upload(&order)?,
            starts: self.upload(&starts)?,
            ids: self.upload(&unique)?,
        })
    }

    /// Adds the gradient `dx` of a batch's embeddings to `grad`, `[vocab, hidden]`.
    ///
    /// # Errors
    /// If a buffer is too short or the width is not a multiple of 8.
    pub fn embed_backward<T: Element>(
        &self,
        hidden: usize,
        order: &EmbedOrder,
        dx: In<'_, T>,
        grad: Out<'_, f32>,
    ) -> Result<(), CudaError> {
        const OP: &str = "embedding's gradient";
        check_width(OP, hidden)?;
        holds(OP, "dx", dx.len(), order.tokens * hidden)?;
        holds(OP, "grad", grad.len(), order.vocab * hidden)?;
        // SAFETY: arguments are those of `embed_backward`; buffers were checked, the order comes from `embed_order`.
        unsafe {
            self.launch(
                (Source::Rows(T::PRECISION), "embed_backward"),
                (grid(OP, order.segments)?, grid(OP, hidden.div_ceil(256))?),
                (128, 1),
                0,
                args![
                    self.address(dx),
                    self.address(&order.order),
                    self.address(&order.starts),
                    self.address(&order.ids),
                    self.address_mut(grad),
                    int(OP, hidden)?
                ],
            )
        }
    }
}
