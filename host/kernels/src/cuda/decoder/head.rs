//! The language-model head in chunks of rows: log-probabilities forward, gradients backward, logits never whole.
//!
//! Owns which rows take part and the chunk's scratch. Must not know losses or layers.

use std::ops::Range;

use crate::cuda::{Context, CudaError, CudaSlice, CudaView, CudaViewMut, Element, HeadRows, Matrix, Onto};

use super::arena::{Arena, Region, bytes};

/// Rows that predict a token, by their index among the batch's tokens, and what they predict.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Targets {
    /// Indices, each once.
    pub rows: Vec<i32>,
    /// The predicted token of each.
    pub labels: Vec<i32>,
    /// One over the temperature of each.
    pub inv_temp: Vec<f32>,
}

impl Targets {
    /// Those at the given places.
    fn pick(&self, places: &[usize]) -> Targets {
        let ints = |x: &[i32]| places.iter().map(|i| x[*i]).collect();
        Targets {
            rows: ints(&self.rows),
            labels: ints(&self.labels),
            inv_temp: places.iter().map(|i| self.inv_temp[*i]).collect(),
        }
    }
}

/// Of each row of [`Targets`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RowStats {
    /// ln p(label).
    pub logprob: Vec<f32>,
    /// −Σ p ln p, in nats.
    pub entropy: Vec<f32>,
    /// ln Σ exp(logit · inv_temp).
    pub logz: Vec<f32>,
}

/// What the chunks need.
pub(super) struct Head<'a, T> {
    pub c: &'a Context,
    /// Width of a hidden state and of a row of logits.
    pub sizes: [usize; 2],
    /// `[vocab, hidden]`.
    pub weight: CudaView<'a, T>,
    /// Hidden states of all tokens.
    pub hidden: CudaView<'a, T>,
    /// Rows at a time.
    pub chunk: usize,
}

/// Bytes of scratch of one chunk.
pub(super) fn scratch_bytes<T>([hidden, vocab]: [usize; 2], chunk: usize) -> usize {
    let row = chunk * hidden * size_of::<T>();
    bytes(&[row, row, chunk * vocab * 4, chunk * vocab * size_of::<T>()])
}

/// Gradients towards the results of some rows.
pub(super) struct RowGrads<'a> {
    pub targets: &'a Targets,
    pub stats: &'a RowStats,
    pub dlogprob: &'a [f32],
    pub dentropy: Option<&'a [f32]>,
}

/// [`RowStats`] on the GPU.
pub(super) struct StatsThere([CudaSlice<f32>; 3]);

impl StatsThere {
    fn new(c: &Context, n: usize) -> Result<Self, CudaError> {
        Ok(Self([c.alloc(n)?, c.alloc(n)?, c.alloc(n)?]))
    }

    fn rows(&mut self, span: &Range<usize>) -> [CudaViewMut<'_, f32>; 3] {
        self.0.each_mut().map(|x| x.slice_mut(span.clone()))
    }

    /// Brings them to the host.
    pub fn read(&self, c: &Context) -> Result<RowStats, CudaError> {
        let [logprob, entropy, logz] = &self.0;
        Ok(RowStats { logprob: c.download(logprob)?, entropy: c.download(entropy)?, logz: c.download(logz)? })
    }
}

/// [`Targets`] on the GPU.
struct TargetsThere {
    rows: CudaSlice<i32>,
    labels: CudaSlice<i32>,
    inv_temp: CudaSlice<f32>,
}

impl TargetsThere {
    fn new(c: &Context, t: &Targets) -> Result<Self, CudaError> {
        Ok(Self { rows: c.upload(&t.rows)?, labels: c.upload(&t.labels)?, inv_temp: c.upload(&t.inv_temp)? })
    }
}

impl<T: Element> Head<'_, T> {
    fn chunks(&self, n: usize) -> impl Iterator<Item = Range<usize>> + use<T> {
        let chunk = self.chunk;
        (0..n).step_by(chunk).map(move |start| start..n.min(start + chunk))
    }

    /// Hidden states of the rows at `rows`, and their logits.
    fn logits(&self, rows: &CudaView<'_, i32>, x: &mut Region<'_, T>, logits: &mut Region<'_, f32>) -> Done {
        let ([h, vocab], m) = (self.sizes, rows.len());
        self.c.embed(h, &self.hidden, rows, x)?;
        let (x, weight) = (Matrix::new(x as &_, h), Matrix::t(&self.weight as &_, h));
        self.c.gemm([m, vocab, h], x, weight, logits, vocab, Onto::Nothing)
    }

    /// From the logits' gradient to those of hidden states and weight; `dx` is scratch.
    fn back(
        &self,
        rows: &CudaView<'_, i32>,
        (x, dlogits, dx): (&Region<'_, T>, &Region<'_, T>, &mut Region<'_, T>),
        dhidden: &mut CudaSlice<T>,
        dweight: &mut CudaViewMut<'_, f32>,
    ) -> Done {
        let (c, [h, vocab], m) = (self.c, self.sizes, rows.len());
        let (d, weight) = (Matrix::new(dlogits as &_, vocab), Matrix::new(&self.weight as &_, h));
        c.gemm([m, h, vocab], d, weight, dx, h, Onto::Nothing)?;
        c.scatter_rows(h, rows, dx, dhidden)?;
        let (d, x) = (Matrix::t(dlogits as &_, vocab), Matrix::new(x as &_, h));
        c.gemm([vocab, h, m], d, x, dweight, h, Onto::Itself)
    }

    /// Log-probability, entropy and normaliser of every row.
    pub fn stats(&self, targets: &Targets, arena: &mut Arena) -> Result<RowStats, CudaError> {
        let (c, [h, vocab], n) = (self.c, self.sizes, targets.rows.len());
        if n == 0 {
            return Ok(RowStats::default());
        }
        let there = TargetsThere::new(c, targets)?;
        let mut out = StatsThere::new(c, n)?;
        for span in self.chunks(n) {
            let m = span.len();
            let mut carver = arena.carve();
            let (mut x, mut logits) = (carver.take(m * h)?, carver.take(m * vocab)?);
            self.logits(&there.rows.slice(span.clone()), &mut x, &mut logits)?;
            let (labels, inv_temp) = (there.labels.slice(span.clone()), there.inv_temp.slice(span.clone()));
            let of = HeadRows { labels: &labels, inv_temp: &inv_temp };
            let [mut logprob, mut entropy, mut logz] = out.rows(&span);
            c.head_stats([m, vocab], &logits, of, [&mut logprob, &mut entropy, &mut logz])?;
        }
        out.read(c)
    }

    /// Writes the gradient towards the hidden states to `dhidden` (all rows; 0 where none takes part) and adds that of
    /// the weight to `dweight`. Rows with gradient 0 are left out; false if that are all.
    pub fn backward(
        &self,
        of: RowGrads<'_>,
        dhidden: &mut CudaSlice<T>,
        dweight: &mut CudaViewMut<'_, f32>,
        arena: &mut Arena,
    ) -> Result<bool, CudaError> {
        let (c, [h, vocab]) = (self.c, self.sizes);
        let active = |i: &usize| of.dlogprob[*i] != 0.0 || of.dentropy.is_some_and(|d| d[*i] != 0.0);
        let picked: Vec<usize> = (0..of.targets.rows.len()).filter(active).collect();
        if picked.is_empty() {
            return Ok(false);
        }
        let n = picked.len();
        let floats = |x: &[f32]| c.upload(&picked.iter().map(|i| x[*i]).collect::<Vec<f32>>());
        let there = TargetsThere::new(c, &of.targets.pick(&picked))?;
        let (logz, entropy) = (floats(&of.stats.logz)?, floats(&of.stats.entropy)?);
        let dlogprob = floats(of.dlogprob)?;
        let dentropy = of.dentropy.map(floats).transpose()?;
        c.fill_zero(dhidden)?;
        for span in self.chunks(n) {
            let m = span.len();
            let mut carver = arena.carve();
            let (mut x, mut dx) = (carver.take(m * h)?, carver.take(m * h)?);
            let (mut logits, mut dlogits) = (carver.take(m * vocab)?, carver.take(m * vocab)?);
            let rows = there.rows.slice(span.clone());
            self.logits(&rows, &mut x, &mut logits)?;
            let (labels, inv_temp) = (there.labels.slice(span.clone()), there.inv_temp.slice(span.clone()));
            let (logz, entropy) = (logz.slice(span.clone()), entropy.slice(span.clone()));
            let dlogprob = dlogprob.slice(span.clone());
            let dentropy = dentropy.as_ref().map(|d| d.slice(span.clone()));
            let of = HeadRows { labels: &labels, inv_temp: &inv_temp };
            let dentropy = dentropy.as_ref().map(|d| d as _);
            c.head_gradient([m, vocab], &logits, of, [&logz, &entropy], &dlogprob, dentropy, &mut dlogits)?;
            self.back(&rows, (&x, &dlogits, &mut dx), dhidden, dweight)?;
        }
        Ok(true)
    }

    /// Both at once, where the gradients towards the log-probabilities are known before.
    pub fn both(
        &self,
        targets: &Targets,
        dlogprob: &[f32],
        dhidden: &mut CudaSlice<T>,
        dweight: &mut CudaViewMut<'_, f32>,
        arena: &mut Arena,
    ) -> Result<StatsThere, CudaError> {
        let (c, [h, vocab], n) = (self.c, self.sizes, targets.rows.len());
        let there = TargetsThere::new(c, targets)?;
        let dlogprob = c.upload(dlogprob)?;
        let mut out = StatsThere::new(c, n)?;
        c.fill_zero(dhidden)?;
        for span in self.chunks(n) {
            let m = span.len();
            let mut carver = arena.carve();
            let (mut x, mut dx) = (carver.take(m * h)?, carver.take(m * h)?);
            let (mut logits, mut dlogits) = (carver.take(m * vocab)?, carver.take(m * vocab)?);
            let rows = there.rows.slice(span.clone());
            self.logits(&rows, &mut x, &mut logits)?;
            let (labels, inv_temp) = (there.labels.slice(span.clone()), there.inv_temp.slice(span.clone()));
            let of = HeadRows { labels: &labels, inv_temp: &inv_temp };
            let dlogprob = dlogprob.slice(span.clone());
            let [mut logprob, mut entropy, mut logz] = out.rows(&span);
            c.head_stats([m, vocab], &logits, of, [&mut logprob, &mut entropy, &mut logz])?;
            c.head_gradient([m, vocab], &logits, of, [&logz, &entropy], &dlogprob, None, &mut dlogits)?;
            self.back(&rows, (&x, &dlogits, &mut dx), dhidden, dweight)?;
        }
        Ok(out)
    }
}

type Done = Result<(), CudaError>;
