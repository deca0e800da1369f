//! A decoder being trained on one GPU: weights, moments and gradients in flat f32 buffers, activations as planned.
//!
//! Owns the order of layers, the optimiser's step and what is copied to the host. Must not know losses, files or
//! schedules.

use std::sync::Arc;

use rayon::prelude::*;

use crate::cuda::{AdamStep, Context, CudaError, CudaSlice, CudaView, Element, NormGrads, Tiles, check};
use crate::weights::{Dims, Rope};

use super::head::{Head, RowGrads, RowStats, Targets};
use super::layer::{Keep, Pass};
use super::layout::Layout;
use super::memory::{self, LayerParts, Memory, Recompute};
use super::prepare;
use super::rotation::Rotation;
use super::weights::{Copies, LayerWeights, Weights};

/// Elements that one thread converts at a time.
const CONVERT: usize = 1 << 16;
/// Memory is planned for a multiple of so many tokens.
const TOKENS: usize = 256;

/// How a decoder is trained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrainingOptions {
    /// What the backward pass computes again.
    pub recompute: Recompute,
    /// Rows of logits that exist at a time.
    pub head_chunk: usize,
    /// Tokens of a pass that memory is planned for at the start; more are planned when they come.
    pub tokens: usize,
}

/// Most rows that one launch of the head's gradient takes.
const HEAD_CHUNK_MOST: usize = 65535;

/// AdamW's numbers, and the largest norm of the gradients; none is no limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepNumbers {
    /// The optimiser's; its `step` is counted here and ignored.
    pub adam: AdamStep,
    /// Gradients of a larger norm are scaled down to it.
    pub max_norm: Option<f32>,
}

/// What became of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stepped {
    /// L2 norm of all gradients, before clipping.
    pub grad_norm: f32,
    /// Gradient entries that were exactly 0.
    pub zeros: u64,
    /// False if the norm was not finite; nothing but the gradients has changed then.
    pub applied: bool,
}

/// A batch on the GPU.
struct Batch {
    ids: Vec<u32>,
    tiles: Tiles,
    positions: CudaSlice<i32>,
}

/// What the backward pass needs of the last forward pass.
struct Tape {
    batch: Batch,
    targets: Targets,
    stats: RowStats,
}

/// The decoder.
pub struct Training<T: Element> {
    c: Arc<Context>,
    layout: Layout,
    rope: Rope,
    options: TrainingOptions,
    rotation: Rotation,
    master: CudaSlice<f32>,
    /// First and second moments.
    moments: [CudaSlice<f32>; 2],
    grad: CudaSlice<f32>,
    /// The master in the type that products take.
    copy: CudaSlice<T>,
    updates: u32,
    /// Of the norms' weight gradients.
    scratch: CudaSlice<f32>,
    memory: Option<Memory<T>>,
    tape: Option<Tape>,
    copies: Copies<T>,
}

impl<T: Element> Training<T> {
    /// Takes in the parameters, each in Hugging Face's layout, in the order of [`crate::Grads::iter_mut`].
    ///
    /// # Errors
    /// A shape that the kernels cannot take, a parameter of another length, not enough memory.
    pub fn new(
        c: Arc<Context>,
        dims: &Dims,
        rope: Rope,
        options: TrainingOptions,
        parameters: &[&[f32]],
    ) -> Result<Self, CudaError> {
        let layout = Layout::new(dims)?;
        check("decoder", parameters.len() == layout.parameters.len(), || {
            format!("{} parameters are given and {} needed", parameters.len(), layout.parameters.len())
        })?;
        for (i, (given, span)) in parameters.iter().zip(&layout.parameters).enumerate() {
            check("decoder", given.len() == span.len(), || {
                format!("parameter {i} has {} elements and needs {}", given.len(), span.len())
            })?;
        }
        prepare::<T>(&c, dims.head_dim)?;
        let mut master = c.alloc::<f32>(layout.total)?;
        let mut copy = c.alloc::<T>(layout.total)?;
        for (values, span) in parameters.iter().zip(&layout.parameters) {
            c.upload_into(values, &mut master.slice_mut(span.clone()))?;
            let mut converted = vec![T::from_f32(0.0); values.len()];
            converted.par_chunks_mut(CONVERT).zip(values.par_chunks(CONVERT)).for_each(|(to, from)| {
                to.iter_mut().zip(from).for_each(|(to, from)| *to = T::from_f32(*from));
            });
            c.upload_into(&converted, &mut copy.slice_mut(span.clone()))?;
        }
        let widest = dims.hidden.max(layout.qkv_width()).max(2 * dims.head_dim);
        let scratch = c.alloc(c.norm_scratch(widest))?;
        let grad = c.zeros(layout.total)?;
        let moments = [c.zeros(layout.total)?, c.zeros(layout.total)?];
        let options = TrainingOptions { head_chunk: options.head_chunk.clamp(1, HEAD_CHUNK_MOST), ..options };
        let (rotation, memory, tape) = (Rotation::default(), None, None);
        let mut training = Self {
            c,
            layout,
            rope,
            options,
            rotation,
            master,
            moments,
            grad,
            copy,
            updates: 0,
            scratch,
            memory,
            tape,
            copies: Copies::default(),
        };
        training.reserve(options.tokens)?;
        Ok(training)
    }

    /// The GPU.
    pub fn context(&self) -> &Arc<Context> {
        &self.c
    }

    /// Plans memory for passes over so many tokens, unless it is there already.
    fn reserve(&mut self, tokens: usize) -> Result<(), CudaError> {
        if tokens == 0 || self.memory.as_ref().is_some_and(|m| m.tokens >= tokens) {
            return Ok(());
        }
        let tokens = tokens.next_multiple_of(TOKENS);
        // The old block goes first, and its memory really back to the driver.
        if self.memory.take().is_some() {
            self.c.synchronize()?;
        }
        let need = memory::bytes::<T>(&self.c, &self.layout, self.options.recompute, self.options.head_chunk, tokens);
        let (free, total) = self.c.memory_bytes()?;
        if need > free {
            return Err(CudaError::Memory { tokens, need, free, total });
        }
        self.memory =
            Some(Memory::new(&self.c, &self.layout, self.options.recompute, self.options.head_chunk, tokens)?);
        Ok(())
    }

    /// Log-probability and entropy of each target. Documents are packed one after another; ids are below the vocabulary
    /// and lengths above 0.
    ///
    /// # Errors
    /// Not enough memory, or a failing GPU.
    pub fn forward(&mut self, ids: &[u32], doc_lens: &[usize], targets: Targets) -> Result<RowStats, CudaError> {
        self.tape = None;
        let batch = self.body(ids, doc_lens)?;
        let Some(memory) = &mut self.memory else { return Err(missing("memory")) };
        let head = head(&self.c, &self.layout, &self.copy, &memory.hidden, ids.len(), self.options.head_chunk);
        let stats = head.stats(&targets, &mut memory.arena)?;
        self.tape = Some(Tape { batch, targets, stats: stats.clone() });
        Ok(stats)
    }

    /// Adds the gradient of Σ dlogprob · logprob + Σ dentropy · entropy over the targets of the last forward pass, which
    /// it uses up.
    ///
    /// # Errors
    /// No forward pass before, lists of another length, a failing GPU.
    pub fn backward(&mut self, dlogprob: &[f32], dentropy: Option<&[f32]>) -> Result<(), CudaError> {
        let Tape { batch, targets, stats } =
            self.tape.take().ok_or_else(|| missing("a forward pass before the backward pass"))?;
        let want = targets.rows.len();
        check("backward", dlogprob.len() == want && dentropy.is_none_or(|d| d.len() == want), || {
            format!("gradients of {} rows for {want}", dlogprob.len())
        })?;
        let Some(memory) = &mut self.memory else { return Err(missing("memory")) };
        let n = batch.ids.len();
        let head = head(&self.c, &self.layout, &self.copy, &memory.hidden, n, self.options.head_chunk);
        let of = RowGrads { targets: &targets, stats: &stats, dlogprob, dentropy };
        let mut dweight = self.grad.slice_mut(self.layout.head.clone());
        if !head.backward(of, &mut memory.rows.dy, &mut dweight, &mut memory.arena)? {
            return Ok(());
        }
        self.body_backward(&batch)
    }

    /// Both passes at once where the gradients towards the log-probabilities are known before: one product with the
    /// head's weight less than [`Training::forward`] and [`Training::backward`].
    ///
    /// # Errors
    /// As for these.
    pub fn forward_backward(
        &mut self,
        ids: &[u32],
        doc_lens: &[usize],
        targets: &Targets,
        dlogprob: &[f32],
    ) -> Result<RowStats, CudaError> {
        self.tape = None;
        let want = targets.rows.len();
        check("backward", dlogprob.len() == want, || format!("gradients of {} rows for {want}", dlogprob.len()))?;
        if want == 0 {
            return Ok(RowStats::default());
        }
        let batch = self.body(ids, doc_lens)?;
        let Some(memory) = &mut self.memory else { return Err(missing("memory")) };
        let head = head(&self.c, &self.layout, &self.copy, &memory.hidden, ids.len(), self.options.head_chunk);
        let mut dweight = self.grad.slice_mut(self.layout.head.clone());
        let stats = head.both(targets, dlogprob, &mut memory.rows.dy, &mut dweight, &mut memory.arena)?;
        self.body_backward(&batch)?;
        stats.read(&self.c)
    }

    /// Embedding, layers and final norm.
    fn body(&mut self, ids: &[u32], doc_lens: &[usize]) -> Result<Batch, CudaError> {
        let n = ids.len();
        self.reserve(n)?;
        let Some(memory) = &mut self.memory else { return Err(missing("memory")) };
        let (c, layout) = (&*self.c, &self.layout);
        let table = self.rotation.table(c, &self.rope, doc_lens.iter().copied().max().unwrap_or(0))?;
        let positions: Vec<i32> = doc_lens.iter().flat_map(|len| 0..*len as i32).collect();
        let (tiles, positions) = (c.tiles(doc_lens)?, c.upload(&positions)?);
        let ids_there = c.upload(&ids.iter().map(|id| *id as i32).collect::<Vec<i32>>())?;
        let (matrices, vectors) = halves(layout, &self.copy, &self.master);
        let x = memory.first().ok_or_else(|| missing("layers"))?;
        c.embed(layout.dims.hidden, &matrices.slice(layout.embed.clone()), &ids_there, x)?;
        let scratch = &mut self.scratch;
        let pass = Pass { c, layout, tiles: &tiles, positions: positions.as_view(), table, scratch };
        for (i, spans) in layout.layers.iter().enumerate() {
            let w = LayerWeights::new(layout, spans, &matrices, &vectors);
            let LayerParts { mut slots, next, rows, arena } =
                memory.layer(layout, i, n).ok_or_else(|| missing("activations"))?;
            pass.fill(&w, &mut slots, Keep::NONE, &mut rows.y, arena)?;
            pass.finish(&w, &slots, next, arena)?;
        }
        let norm = layout.vector(&vectors, &layout.final_norm);
        pass.norm(&memory.last, &norm, &mut memory.hidden, &mut memory.rstd)?;
        Ok(Batch { ids: ids.to_vec(), tiles, positions })
    }

    /// From the gradient towards the hidden states, in `rows.dy`, to those of all weights but the head's.
    fn body_backward(&mut self, batch: &Batch) -> Result<(), CudaError> {
        let (Some(memory), Some(table)) = (&mut self.memory, self.rotation.last()) else {
            return Err(missing("memory"));
        };
        let (c, layout, n) = (&*self.c, &self.layout, batch.ids.len());
        let dims = &layout.dims;
        let (matrices, vectors) = halves(layout, &self.copy, &self.master);
        let norm = layout.vector(&vectors, &layout.final_norm);
        let mut dw = self.grad.slice_mut(layout.final_norm.clone());
        let grads = NormGrads { dw: &mut dw, scratch: &mut self.scratch };
        let rows = &mut memory.rows;
        let at = (&memory.last as _, &memory.rstd as _);
        c.rms_norm_backward([n, dims.hidden], at, &norm, &rows.dy, None, &mut rows.dx, None, grads)?;
        let (tiles, scratch) = (&batch.tiles, &mut self.scratch);
        let mut pass = Pass { c, layout, tiles, positions: batch.positions.as_view(), table, scratch };
        for (i, spans) in layout.layers.iter().enumerate().rev() {
            let w = LayerWeights::new(layout, spans, &matrices, &vectors);
            let LayerParts { mut slots, rows, arena, .. } =
                memory.layer(layout, i, n).ok_or_else(|| missing("activations"))?;
            pass.fill(&w, &mut slots, self.options.recompute.of(i), &mut rows.y, arena)?;
            pass.backward(&w, &slots, spans, rows, &mut self.grad, arena)?;
        }
        let order = c.embed_order(&batch.ids, dims.vocab)?;
        let mut dw = self.grad.slice_mut(layout.embed.clone());
        c.embed_backward(dims.hidden, &order, &memory.rows.dx, &mut dw)
    }

    /// Clips the gradients and takes a step of AdamW; the gradients are 0 afterwards.
    ///
    /// # Errors
    /// Not enough memory, or a failing GPU, now or in a pass before.
    pub fn step(&mut self, numbers: StepNumbers) -> Result<Stepped, CudaError> {
        self.tape = None;
        let c = &*self.c;
        let mut partial = c.alloc::<f64>(c.grad_norm_scratch(1))?;
        let (mut clipped, mut zeros) = (c.alloc::<f32>(2)?, c.alloc::<u64>(1)?);
        let max_norm = numbers.max_norm.unwrap_or(f32::INFINITY);
        c.grad_norm(&[&self.grad], max_norm, &mut partial, &mut clipped, &mut zeros)?;
        let [m, v] = &mut self.moments;
        let adam = AdamStep { step: self.updates + 1, ..numbers.adam };
        c.adamw(adam, [&mut self.master, m, v], &self.grad, &mut self.copy, &clipped)?;
        c.fill_zero(&mut self.grad)?;
        let (clipped, zeros) = (c.download(&clipped)?, c.download(&zeros)?);
        let applied = clipped[1].is_finite();
        self.updates += u32::from(applied);
        Ok(Stepped { grad_norm: clipped[0], zeros: zeros[0], applied })
    }

    /// Sets all gradients to 0.
    ///
    /// # Errors
    /// A failing GPU.
    pub fn zero(&mut self) -> Result<(), CudaError> {
        self.c.fill_zero(&mut self.grad)
    }

    /// Number of parameters' elements.
    pub fn len(&self) -> usize {
        self.layout.total
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All gradients, in the parameters' order, on the host.
    ///
    /// # Errors
    /// A failing GPU.
    pub fn gradients(&self) -> Result<Vec<Vec<f32>>, CudaError> {
        self.read(&self.grad)
    }

    /// All parameters, in their order, on the host.
    ///
    /// # Errors
    /// A failing GPU.
    pub fn parameters(&self) -> Result<Vec<Vec<f32>>, CudaError> {
        self.read(&self.master)
    }

    fn read(&self, from: &CudaSlice<f32>) -> Result<Vec<Vec<f32>>, CudaError> {
        self.layout.parameters.iter().map(|span| self.c.download(&from.slice(span.clone()))).collect()
    }

    /// Number of steps taken, and first and second moments in the parameters' order; none before the first step.
    ///
    /// # Errors
    /// A failing GPU.
    pub fn moments(&self) -> Result<Option<(u32, [Vec<Vec<f32>>; 2])>, CudaError> {
        if self.updates == 0 {
            return Ok(None);
        }
        let [m, v] = &self.moments;
        Ok(Some((self.updates, [self.read(m)?, self.read(v)?])))
    }

    /// Replaces what [`Training::moments`] gives.
    ///
    /// # Errors
    /// Lists of other lengths; not enough memory.
    pub fn set_moments(&mut self, moments: Option<(u32, [Vec<Vec<f32>>; 2])>) -> Result<(), CudaError> {
        let (updates, values) = moments.map_or((0, None), |(updates, values)| (updates, Some(values)));
        for values in values.iter().flatten() {
            let fits = values.len() == self.layout.parameters.len()
                && values.iter().zip(&self.layout.parameters).all(|(v, span)| v.len() == span.len());
            check("moments", fits, || "they are of another model".to_owned())?;
        }
        for (i, to) in self.moments.iter_mut().enumerate() {
            match &values {
                None => self.c.fill_zero(to)?,
                Some(values) => {
                    for (values, span) in values[i].iter().zip(&self.layout.parameters) {
                        self.c.upload_into(values, &mut to.slice_mut(span.clone()))?;
                    }
                }
            }
        }
        self.updates = updates;
        Ok(())
    }

    /// A copy of the present weights, complete when this returns.
    ///
    /// # Errors
    /// Not enough memory, or a failing GPU.
    pub fn weights(&self) -> Result<Weights<T>, CudaError> {
        let (matrices, vectors) = halves(&self.layout, &self.copy, &self.master);
        self.copies.of(&self.c, self.layout.clone(), self.rope.clone(), &matrices, &vectors)
    }
}

/// The head over the hidden states of `n` tokens.
fn head<'a, T: Element>(
    c: &'a Context,
    layout: &Layout,
    copy: &'a CudaSlice<T>,
    hidden: &'a CudaSlice<T>,
    n: usize,
    chunk: usize,
) -> Head<'a, T> {
    let sizes = [layout.dims.hidden, layout.dims.vocab];
    Head { c, sizes, weight: copy.slice(layout.head.clone()), hidden: hidden.slice(..n * sizes[0]), chunk }
}

fn missing(what: &str) -> CudaError {
    CudaError::Shape { op: "training", what: format!("{what} is missing") }
}

/// The matrices in the type of products, and norms and biases in f32.
fn halves<'a, T>(
    layout: &Layout,
    copy: &'a CudaSlice<T>,
    master: &'a CudaSlice<f32>,
) -> (CudaView<'a, T>, CudaView<'a, f32>) {
    (copy.slice(..layout.matrices), master.slice(layout.matrices..))
}
