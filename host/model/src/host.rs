//! A model that trains where burn has it, on the host or by burn on a GPU: [`HostLearner`]. Owns its passes and gradients, and what the
//! optimiser gets of them; must not know batches' labels or the optimiser's rule.

use crate::learner::{Kernels, Packed, Rows};
use crate::{ModelError, Trained, fast, reference};
use burn::optim::GradientsParams;
use prl_kernels::Dropout;

/// A forward and backward pass and the gradients it adds up. All lists are per row.
pub(crate) trait Passes: Send {
    /// Logprob and entropy of each row's label.
    fn forward(
        &mut self,
        model: &Trained,
        dropout: Option<Dropout>,
        batch: &Packed,
        rows: &Rows,
    ) -> Result<(Vec<f32>, Vec<f32>), ModelError>;
    /// Adds the gradient of Σ dlogprob·logprob + Σ dentropy·entropy of the last forward.
    fn backward(
        &mut self,
        model: &Trained,
        rows: &Rows,
        dlogprob: Vec<f32>,
        dentropy: Option<Vec<f32>>,
    ) -> Result<(), ModelError>;
    /// Both passes where `dlogprob` is known before; the logprobs of rows whose gradient is 0 say nothing.
    fn forward_backward(
        &mut self,
        model: &Trained,
        dropout: Option<Dropout>,
        batch: &Packed,
        rows: &Rows,
        dlogprob: Vec<f32>,
    ) -> Result<Vec<f32>, ModelError> {
        let (logprobs, _) = self.forward(model, dropout, batch, rows)?;
        self.backward(model, rows, dlogprob, None)?;
        Ok(logprobs)
    }
    /// L2 norm over all that is trained.
    fn norm(&self) -> Result<f64, ModelError>;
    /// Multiplies all gradients.
    fn scale(&mut self, factor: f32);
    /// Share of entries that are exactly 0.
    fn zero_ratio(&self) -> Result<f64, ModelError>;
    /// Sets all gradients to 0.
    fn zero(&mut self);
    /// A copy of every gradient, in the order of [`Trained::parameters`].
    fn gradients(&self, model: &Trained) -> Result<Vec<Vec<f32>>, ModelError>;
    /// Hands the gradients out and sets them to 0.
    fn take(&mut self, model: &Trained) -> GradientsParams;
}

/// A model whose weights are burn's and whose optimiser is the caller's.
pub struct HostLearner {
    pub(crate) model: Trained,
    pub(crate) kernels: Kernels,
    pub(crate) passes: Box<dyn Passes>,
    /// The run's seed, which dropout follows from.
    seed: u64,
    /// The step that passes are of; dropout is for steps.
    pub(crate) step: Option<u64>,
}

impl HostLearner {
    pub(crate) fn new(model: Trained, kernels: Kernels, head_chunk: usize, seed: u64) -> Result<Self, ModelError> {
        let head_chunk = head_chunk.max(1);
        let passes: Box<dyn Passes> = match kernels {
            Kernels::Fast => Box::new(fast::FastPasses::new(&model, head_chunk)?),
            Kernels::Reference => Box::new(reference::ReferencePasses::new(head_chunk)),
        };
        Ok(HostLearner { model, kernels, passes, seed, step: None })
    }

    /// The present weights.
    pub fn model(&self) -> &Trained {
        &self.model
    }

    /// What is dropped of a batch.
    ///
    /// # Errors
    /// A share that is out of range, which no plan has.
    pub(crate) fn dropout(&self, batch: &Packed) -> Result<Option<Dropout>, ModelError> {
        let rate = self.model.plan().map_or(0.0, |plan| plan.options().dropout as f32);
        let Some(step) = self.step.filter(|_| rate > 0.0) else { return Ok(None) };
        let dropout = Dropout::new(rate, (self.seed, step), &batch.ids, &batch.doc_lens);
        dropout.map(Some).map_err(|e| ModelError::Input(e.to_string()))
    }

    /// L2 norm of all gradients, summed in f64 in a fixed order.
    ///
    /// # Errors
    /// The device failed.
    pub fn grad_norm(&self) -> Result<f64, ModelError> {
        self.passes.norm()
    }

    /// Multiplies all gradients by `factor`.
    pub fn scale_grads(&mut self, factor: f32) {
        self.passes.scale(factor);
    }

    /// Sets all gradients to 0.
    pub fn zero_grads(&mut self) {
        self.passes.zero();
    }

    /// Share of gradient entries that are exactly 0.
    ///
    /// # Errors
    /// The device failed.
    pub fn zero_grad_ratio(&self) -> Result<f64, ModelError> {
        self.passes.zero_ratio()
    }

    /// A copy of every gradient.
    pub(crate) fn gradients(&self) -> Result<Vec<Vec<f32>>, ModelError> {
        self.passes.gradients(&self.model)
    }

    /// Lets `step` make the next weights out of the present ones and the gradients, which are 0 afterwards; every
    /// parameter that is trained has one. Snapshots keep the weights they were taken of.
    pub fn update(&mut self, step: impl FnOnce(Trained, GradientsParams) -> Trained) {
        use burn::module::Module;
        let grads = self.passes.take(&self.model);
        // burn's optimisers want parameters that are leaves of a graph; ours never are.
        self.model = step(self.model.clone().train(), grads).valid();
    }
}
