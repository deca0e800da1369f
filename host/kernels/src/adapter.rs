//! Low-rank additions to a decoder's matrices: different ones for different sequences of a batch, or one that is trained.
//!
//! Owns their shapes, their products and the gradients of those. Must not know files or which request has which. LoRA (Hu et al.
//! 2021, equation 3): a matrix W with an addition gives `W·x + B·(A·x)`, the scale `alpha / r` being part of B here.

use std::ops::Range;

use crate::dropout::Dropout;
use crate::forward::ROWS;
use crate::gemm::{TnJob, nn, nt, tn_acc_many};
use crate::pool::Buffer;
use crate::projection::Projection;
use crate::shared::{Shared, for_ranges};
use crate::weights::{Dims, KernelError};

/// An addition of rank `r` to a matrix `[out, in]`.
#[derive(Clone, Debug, PartialEq)]
pub struct LowRank {
    /// `[r, in]`.
    pub a: Vec<f32>,
    /// `[out, r]`, times the scale.
    pub b: Vec<f32>,
    /// r, at least 1.
    pub rank: usize,
}

impl LowRank {
    /// Of the same shape, all 0.
    fn zeros(&self) -> Self {
        LowRank { a: vec![0.0; self.a.len()], b: vec![0.0; self.b.len()], rank: self.rank }
    }
}

/// The additions of one layer, by matrix.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AdapterLayer {
    /// To the query projection.
    pub q: Option<LowRank>,
    /// To the key projection.
    pub k: Option<LowRank>,
    /// To the value projection.
    pub v: Option<LowRank>,
    /// To the output projection of the attention.
    pub o: Option<LowRank>,
    /// To the gate projection.
    pub gate: Option<LowRank>,
    /// To the up projection.
    pub up: Option<LowRank>,
    /// To the down projection.
    pub down: Option<LowRank>,
}

impl AdapterLayer {
    /// What is added to a matrix.
    pub fn get(&self, which: Projection) -> Option<&LowRank> {
        match which {
            Projection::Q => &self.q,
            Projection::K => &self.k,
            Projection::V => &self.v,
            Projection::O => &self.o,
            Projection::Gate => &self.gate,
            Projection::Up => &self.up,
            Projection::Down => &self.down,
        }
        .as_ref()
    }

    /// The place for what is added to a matrix.
    pub fn slot(&mut self, which: Projection) -> &mut Option<LowRank> {
        match which {
            Projection::Q => &mut self.q,
            Projection::K => &mut self.k,
            Projection::V => &mut self.v,
            Projection::O => &mut self.o,
            Projection::Gate => &mut self.gate,
            Projection::Up => &mut self.up,
            Projection::Down => &mut self.down,
        }
    }

    /// All that is there, in the order of [`Projection::ALL`].
    pub fn iter(&self) -> impl Iterator<Item = (Projection, &LowRank)> {
        Projection::ALL.into_iter().filter_map(|which| Some((which, self.get(which)?)))
    }

    /// As [`AdapterLayer::iter`].
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (Projection, &mut LowRank)> {
        let Self { q, k, v, o, gate, up, down } = self;
        let all = Projection::ALL.into_iter().zip([q, k, v, o, gate, up, down]);
        all.filter_map(|(which, pair)| Some((which, pair.as_mut()?)))
    }

    /// Of the same shapes, all 0: gradients.
    pub fn zeros(&self) -> Self {
        let mut zeros = Self::default();
        self.iter().for_each(|(which, pair)| *zeros.slot(which) = Some(pair.zeros()));
        zeros
    }
}

/// The additions of a decoder's layers, which fit its matrices.
#[derive(Clone, Copy, Debug)]
pub struct AdapterView<'a> {
    layers: &'a [AdapterLayer],
    dims: &'a Dims,
}

impl<'a> AdapterView<'a> {
    /// Checks additions by layer against a decoder's dimensions; layers behind the last one have none.
    ///
    /// # Errors
    /// More layers than the decoder has; the first addition that does not fit its matrix.
    pub fn new(layers: &'a [AdapterLayer], dims: &'a Dims) -> Result<Self, KernelError> {
        if layers.len() > dims.layers {
            return Err(KernelError::AdapterLayers { got: layers.len(), most: dims.layers });
        }
        for (which, LowRank { a, b, rank }) in layers.iter().flat_map(AdapterLayer::iter) {
            let shape = which.shape(dims);
            let want = [rank.checked_mul(shape[1]), rank.checked_mul(shape[0])];
            if *rank == 0 || [Some(a.len()), Some(b.len())] != want {
                let got = [a.len(), b.len()];
                return Err(KernelError::Adapter { name: which.module(), rank: *rank, got, shape });
            }
        }
        Ok(AdapterView { layers, dims })
    }

    /// By layer.
    #[cfg(feature = "cuda")]
    pub(crate) fn layers(&self) -> &'a [AdapterLayer] {
        self.layers
    }

    /// Those of the decoder.
    #[cfg(feature = "cuda")]
    pub(crate) fn dims(&self) -> &'a Dims {
        self.dims
    }

    /// Those of a layer.
    pub(crate) fn get(&self, layer: usize) -> Option<&'a AdapterLayer> {
        self.layers.get(layer)
    }

    /// # Panics
    /// If it was checked against other dimensions.
    pub(crate) fn assert_fits(&self, dims: &Dims) {
        assert!(self.dims == dims, "additions to a decoder of other dimensions");
    }
}

/// Which rows of a batch have which additions in a layer.
pub(crate) type RowAdapters<'a> = Vec<(Range<usize>, &'a AdapterLayer)>;

/// Adds to the rows of y what the additions to the matrix `which` make of the rows of x.
///
/// # Safety
/// x and y must hold the rows at their strides, as wide as the matrix that was validated; nobody else may use y.
pub(crate) unsafe fn add(
    adapters: &RowAdapters<'_>,
    which: Projection,
    (x, ldx, input): (*const f32, usize, usize),
    (y, ldy, out): (*mut f32, usize, usize),
) {
    for (rows, layer) in adapters {
        let Some(pair) = layer.get(which) else { continue };
        // SAFETY: by the caller's word.
        unsafe {
            let (x, y) = (x.add(rows.start * ldx), y.add(rows.start * ldy));
            add_rows(pair, rows.len(), (x, ldx, input), (y, ldy, out));
        }
    }
}

/// `y += B·(A·x)` for `n` rows. The only way to these bits, for sampling and training.
///
/// # Safety
/// As [`add`].
unsafe fn add_rows(
    LowRank { a, b, rank }: &LowRank,
    n: usize,
    (x, ldx, input): (*const f32, usize, usize),
    (y, ldy, out): (*mut f32, usize, usize),
) {
    let mut low = vec![0.0f32; n * rank];
    let mut high = vec![0.0f32; n * out];
    // SAFETY: by the caller's word; the buffers have the products' shapes.
    unsafe {
        nt(false, n, *rank, input, x, ldx, a.as_ptr(), low.as_mut_ptr(), *rank);
        nt(false, n, out, *rank, low.as_ptr(), *rank, b.as_ptr(), high.as_mut_ptr(), out);
        for (row, high) in high.chunks_exact(out).enumerate() {
            let y = std::slice::from_raw_parts_mut(y.add(row * ldy), out);
            y.iter_mut().zip(high).for_each(|(y, x)| *y += x);
        }
    }
}

/// Additions of a forward pass over packed documents, the same for all of them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Additions<'a> {
    adapter: Option<AdapterView<'a>>,
    scale: f32,
    dropout: Option<&'a Dropout>,
}

impl<'a> Additions<'a> {
    /// `scale` is that which is part of B: gradients are those of B without it. `dropout` leaves out some of what additions see.
    ///
    /// # Errors
    /// A scale that is no number.
    pub fn new(adapter: AdapterView<'a>, scale: f32, dropout: Option<&'a Dropout>) -> Result<Self, KernelError> {
        if !scale.is_finite() {
            return Err(KernelError::Scale(scale));
        }
        Ok(Additions { adapter: Some(adapter), scale, dropout })
    }

    /// # Panics
    /// If they are to another decoder, or their masks for another number of tokens.
    pub(crate) fn assert_fits(&self, dims: &Dims, tokens: usize) {
        if let Some(adapter) = &self.adapter {
            adapter.assert_fits(dims);
        }
        let masks = self.dropout.map_or(tokens, Dropout::tokens);
        assert_eq!(masks, tokens, "additions must have masks for as many tokens as there are");
    }

    /// Those of one layer.
    pub(crate) fn layer(&self, index: usize) -> LayerAdditions<'a> {
        let own = self.adapter.and_then(|adapter| adapter.get(index));
        LayerAdditions { own, index, scale: self.scale, dropout: self.dropout }
    }
}

/// Additions of one layer.
#[derive(Clone, Copy)]
pub(crate) struct LayerAdditions<'a> {
    own: Option<&'a AdapterLayer>,
    index: usize,
    scale: f32,
    dropout: Option<&'a Dropout>,
}

impl LayerAdditions<'_> {
    fn get(&self, which: Projection) -> Option<&LowRank> {
        self.own?.get(which)
    }

    /// Rows of x as the addition sees them: [rows, input], or x itself at its stride where nothing is dropped.
    ///
    /// # Safety
    /// x must hold the rows, the first of which is token `rows.start`.
    unsafe fn seen(
        &self,
        which: Projection,
        rows: Range<usize>,
        (x, ldx, input): (*const f32, usize, usize),
    ) -> Option<Vec<f32>> {
        let dropout = self.dropout?;
        let mut seen = vec![0.0f32; rows.len() * input];
        for (i, (token, row)) in rows.zip(seen.chunks_exact_mut(input)).enumerate() {
            // SAFETY: by the caller's word.
            row.copy_from_slice(unsafe { std::slice::from_raw_parts(x.add(i * ldx), input) });
            dropout.apply(token, self.index, which, row);
        }
        Some(seen)
    }

    /// Adds to rows of y what is made of rows of x; both begin with token `rows.start`.
    ///
    /// # Safety
    /// As [`add`].
    pub unsafe fn add(
        &self,
        which: Projection,
        rows: Range<usize>,
        x: (*const f32, usize, usize),
        y: (*mut f32, usize, usize),
    ) {
        let Some(pair) = self.get(which) else { return };
        // SAFETY: by the caller's word.
        unsafe {
            let seen = self.seen(which, rows.clone(), x);
            let x = seen.as_ref().map_or(x, |seen| (seen.as_ptr(), x.2, x.2));
            add_rows(pair, rows.len(), x, y);
        }
    }

    /// Adds to rows of dx what the addition passes back from rows of dy; both begin with token `rows.start`.
    ///
    /// # Safety
    /// As [`add`], dx being written and dy read.
    pub unsafe fn add_backward(
        &self,
        which: Projection,
        rows: Range<usize>,
        (dy, lddy, out): (*const f32, usize, usize),
        (dx, lddx, input): (*mut f32, usize, usize),
    ) {
        let Some(LowRank { a, b, rank }) = self.get(which) else { return };
        let n = rows.len();
        let mut low = vec![0.0f32; n * rank];
        let mut back = vec![0.0f32; n * input];
        // SAFETY: by the caller's word; the buffers have the products' shapes.
        unsafe {
            nn(n, *rank, out, dy, lddy, b.as_ptr(), *rank, low.as_mut_ptr(), *rank, false);
            nn(n, input, *rank, low.as_ptr(), *rank, a.as_ptr(), input, back.as_mut_ptr(), input, false);
            for (i, (token, back)) in rows.zip(back.chunks_exact_mut(input)).enumerate() {
                if let Some(dropout) = self.dropout {
                    dropout.apply(token, self.index, which, back);
                }
                let dx = std::slice::from_raw_parts_mut(dx.add(i * lddx), input);
                dx.iter_mut().zip(back).for_each(|(to, x)| *to += *x);
            }
        }
    }

    /// Adds the gradients of both factors, that of B without its scale, from all rows of the matrix's input x and of the gradient dy of its output.
    pub fn factors(
        &self,
        which: Projection,
        tokens: usize,
        (x, ldx, input): (&[f32], usize, usize),
        (dy, lddy, out): (&[f32], usize, usize),
        grads: &mut AdapterLayer,
    ) {
        let (Some(LowRank { a, b, rank }), Some(grads)) = (self.get(which), grads.slot(which)) else { return };
        let rank = *rank;
        assert!(x.len() >= (tokens - 1) * ldx + input && dy.len() >= (tokens - 1) * lddy + out);
        let (mut low, mut dlow) = (Buffer::any(tokens * rank), Buffer::any(tokens * rank));
        let mut dropped = Buffer::any(if self.dropout.is_some() { tokens * input } else { 0 });
        {
            let (low, dlow, dropped) = (Shared::new(&mut low), Shared::new(&mut dlow), Shared::new(&mut dropped));
            for_ranges(true, tokens, ROWS, |rows| {
                let n = rows.len();
                // SAFETY: tasks own disjoint rows of the buffers; extents were checked above.
                unsafe {
                    let own = (x.as_ptr().add(rows.start * ldx), ldx, input);
                    let seen = self.seen(which, rows.clone(), own);
                    let (x, ldx) = seen.as_ref().map_or((own.0, ldx), |seen| (seen.as_ptr(), input));
                    nt(false, n, rank, input, x, ldx, a.as_ptr(), low.at(rows.start * rank), rank);
                    low.slice(rows.start * rank..rows.end * rank).iter_mut().for_each(|x| *x *= self.scale);
                    let dy = dy.as_ptr().add(rows.start * lddy);
                    nn(n, rank, out, dy, lddy, b.as_ptr(), rank, dlow.at(rows.start * rank), rank, false);
                    if let Some(seen) = &seen {
                        dropped.slice(rows.start * input..rows.end * input).copy_from_slice(seen);
                    }
                }
            });
        }
        let (x, ldx): (&[f32], usize) = if self.dropout.is_some() { (&dropped, input) } else { (x, ldx) };
        tn_acc_many(&[
            TnJob { m: out, n: rank, k: tokens, x: dy, ldx: lddy, w: &low, ldw: rank, y: Shared::new(&mut grads.b) },
            TnJob { m: rank, n: input, k: tokens, x: &dlow, ldx: rank, w: x, ldw: ldx, y: Shared::new(&mut grads.a) },
        ]);
    }
}
