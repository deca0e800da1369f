//! The head's softmax over a chunk of logits, the gradients' norm and AdamW.
//!
//! Owns the arguments of the kernels in `step.cu`. Must not know losses, schedules or parameters' names.

use super::compile::Source;
use super::context::{Context, In, Out, args, grid, int};
use super::element::Element;
use super::{CudaError, check, holds};

/// Partial sums that one buffer's squares are cut into. Part of the definition of the norm's bits.
const NORM_PARTS: usize = 1024;

/// What each row of a chunk of logits stands for.
#[derive(Clone, Copy)]
pub struct HeadRows<'a> {
    /// The label's id; outside the vocabulary gives NaN.
    pub labels: In<'a, i32>,
    /// One over the temperature.
    pub inv_temp: In<'a, f32>,
}

/// One AdamW step's numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamStep {
    /// Learning rate.
    pub lr: f32,
    /// Decay of the first moment.
    pub beta1: f32,
    /// Decay of the second moment.
    pub beta2: f32,
    /// Added to the root of the second moment.
    pub eps: f32,
    /// Weight decay, times the learning rate.
    pub decay: f32,
    /// Number of this step, from 1.
    pub step: u32,
}

/// As `Adam` in `step.cu`.
#[repr(C)]
struct AdamArgs {
    lr: f32,
    beta1: f32,
    beta2: f32,
    eps: f32,
    decay: f32,
    correct1: f32,
    correct2: f32,
}

impl Context {
    /// ln p(label), entropy and ln Σ exp(logit · inv_temp) of each row of f32 logits `[rows, vocab]`.
    ///
    /// # Errors
    /// If a buffer is too short.
    pub fn head_stats(
        &self,
        [rows, vocab]: [usize; 2],
        logits: In<'_, f32>,
        of: HeadRows<'_>,
        [logprob, entropy, logz]: [Out<'_, f32>; 3],
    ) -> Result<(), CudaError> {
        const OP: &str = "head's softmax";
        holds(OP, "logits", logits.len(), rows * vocab)?;
        for (name, len) in [
            ("labels", of.labels.len()),
            ("temperatures", of.inv_temp.len()),
            ("logprob", logprob.len()),
            ("entropy", entropy.len()),
            ("logz", logz.len()),
        ] {
            holds(OP, name, len, rows)?;
        }
        check(OP, vocab > 0, || "the vocabulary is empty".to_owned())?;
        // SAFETY: arguments are those of `head_stats`; buffers were checked and the kernel checks labels.
        unsafe {
            self.launch(
                (self.either(Source::Step), "head_stats"),
                (grid(OP, rows)?, 1),
                (512, 1),
                0,
                args![
                    self.address(logits),
                    self.address(of.labels),
                    self.address(of.inv_temp),
                    self.address_mut(logprob),
                    self.address_mut(entropy),
                    self.address_mut(logz),
                    int(OP, vocab)?
                ],
            )
        }
    }

    /// Gradient of Σ dlogprob · logprob + Σ dentropy · entropy towards the logits:
    /// `inv_temp · (dlogprob · (1[label] − p) − dentropy · p · (ln p + entropy))`. `stats` are logz and entropy.
    ///
    /// # Errors
    /// If a buffer is too short.
    pub fn head_gradient<T: Element>(
        &self,
        [rows, vocab]: [usize; 2],
        logits: In<'_, f32>,
        of: HeadRows<'_>,
        stats: [In<'_, f32>; 2],
        dlogprob: In<'_, f32>,
        dentropy: Option<In<'_, f32>>,
        dlogits: Out<'_, T>,
    ) -> Result<(), CudaError> {
        const OP: &str = "head's gradient";
        holds(OP, "logits", logits.len().min(dlogits.len()), rows * vocab)?;
        for (name, len) in [
            ("labels", of.labels.len()),
            ("temperatures", of.inv_temp.len()),
            ("logz", stats[0].len()),
            ("entropy", stats[1].len()),
            ("dlogprob", dlogprob.len()),
            ("dentropy", dentropy.map_or(rows, |d| d.len())),
        ] {
            holds(OP, name, len, rows)?;
        }
        check(OP, rows <= 65535, || format!("a chunk of {rows} rows; at most 65535 are supported"))?;
        // SAFETY: arguments are those of `head_gradient`; buffers were checked.
        unsafe {
            self.launch(
                (Source::Step(T::PRECISION), "head_gradient"),
                (grid(OP, vocab.div_ceil(1024))?, grid(OP, rows)?),
                (256, 1),
                0,
                args![
                    self.address(logits),
                    self.address(of.labels),
                    self.address(of.inv_temp),
                    self.address(stats[0]),
                    self.address(stats[1]),
                    self.address(dlogprob),
                    dentropy.map_or(0, |d| self.address(d)),
                    self.address_mut(dlogits),
                    int(OP, vocab)?
                ],
            )
        }
    }

    /// Elements of scratch that [`Context::grad_norm`] needs for so many buffers.
    pub fn grad_norm_scratch(&self, buffers: usize) -> usize {
        2 * buffers * NORM_PARTS
    }

    /// Writes `{norm, factor}`: the norm of all gradients together, summed in f64 in a fixed order, and
    /// `min(1, max_norm / (norm + 1e-6))` for [`Context::adamw`], or NaN if the norm is not finite. An
    /// infinite `max_norm` is no limit. `zeros` becomes the number of elements that are exactly zero.
    ///
    /// # Errors
    /// If a buffer is too short.
    pub fn grad_norm(
        &self,
        grads: &[In<'_, f32>],
        max_norm: f32,
        scratch: Out<'_, f64>,
        out: Out<'_, f32>,
        zeros: Out<'_, u64>,
    ) -> Result<(), CudaError> {
        const OP: &str = "gradients' norm";
        let count = grads.len() * NORM_PARTS;
        holds(OP, "scratch", scratch.len(), self.grad_norm_scratch(grads.len()))?;
        holds(OP, "out", out.len(), 2)?;
        holds(OP, "zeros", zeros.len(), 1)?;
        let partial = self.address_mut(scratch);
        // Counts follow the sums.
        let counts = partial + (count * size_of::<f64>()) as u64;
        for (i, g) in grads.iter().enumerate() {
            let at = (i * NORM_PARTS * size_of::<f64>()) as u64;
            // SAFETY: arguments are those of `square_sum`; each buffer has its own part of the scratch.
            unsafe {
                self.launch(
                    (self.either(Source::Step), "square_sum"),
                    (NORM_PARTS as u32, 1),
                    (256, 1),
                    0,
                    args![self.address(*g), partial + at, counts + at, g.len() as i64],
                )?;
            }
        }
        // SAFETY: arguments are those of `clip`; `count` partial sums were written above.
        unsafe {
            self.launch(
                (self.either(Source::Step), "clip"),
                (1, 1),
                (256, 1),
                0,
                args![partial, counts, self.address_mut(out), self.address_mut(zeros), int(OP, count)?, max_norm],
            )
        }
    }

    /// One AdamW step (Loshchilov & Hutter 2019) of f32 `master` with moments `m` and `v`; `copy` becomes the master in
    /// the storage type. `clipped` is what [`Context::grad_norm`] wrote; where its factor is NaN nothing changes.
    ///
    /// # Errors
    /// If a buffer is too short.
    pub fn adamw<T: Element>(
        &self,
        step: AdamStep,
        [master, m, v]: [Out<'_, f32>; 3],
        grad: In<'_, f32>,
        copy: Out<'_, T>,
        clipped: In<'_, f32>,
    ) -> Result<(), CudaError> {
        const OP: &str = "AdamW";
        let n = master.len();
        for (name, len) in [("m", m.len()), ("v", v.len()), ("the gradient", grad.len()), ("the copy", copy.len())] {
            holds(OP, name, len, n)?;
        }
        holds(OP, "the clip factor", clipped.len(), 2)?;
        check(OP, step.step > 0, || "steps count from 1".to_owned())?;
        let correct = |beta: f32| (1.0 / (1.0 - f64::from(beta).powf(f64::from(step.step)))) as f32;
        let a = AdamArgs {
            lr: step.lr,
            beta1: step.beta1,
            beta2: step.beta2,
            eps: step.eps,
            decay: step.decay,
            correct1: correct(step.beta1),
            correct2: correct(step.beta2),
        };
        // SAFETY: arguments are those of `adamw`; buffers were checked.
        unsafe {
            self.launch(
                (Source::Step(T::PRECISION), "adamw"),
                (grid(OP, (n / 4 + n % 4).div_ceil(256))?, 1),
                (256, 1),
                0,
                args![
                    self.address_mut(master),
                    self.address_mut(m),
                    self.address_mut(v),
                    self.address(grad),
                    self.address_mut(copy),
                    self.address(clipped),
                    n as i64,
                    a
                ],
            )
        }
    }
}
