//! AdamW where the model itself keeps the moments and takes the step. Owns the terms; must not know schedules or files.

use crate::ModelError;

/// A model that keeps weights, gradients and moments on its device and takes AdamW's steps itself.
pub trait FusedAdamW: Send {
    /// Clips the gradients and takes a step; the gradients are 0 afterwards.
    ///
    /// # Errors
    /// The device failed.
    fn step(&mut self, numbers: &AdamWNumbers) -> Result<FusedStep, ModelError>;

    /// Steps taken, and the moments of every parameter in the order of [`crate::names::parameters`]; none before the
    /// first step.
    ///
    /// # Errors
    /// The device failed.
    fn moments(&self) -> Result<Option<Moments>, ModelError>;

    /// Replaces what [`FusedAdamW::moments`] gives.
    ///
    /// # Errors
    /// Lists of other lengths; the device failed.
    fn set_moments(&mut self, moments: Option<Moments>) -> Result<(), ModelError>;
}

/// AdamW's numbers for one step; see [`FusedAdamW::step`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamWNumbers {
    /// Learning rate.
    pub lr: f64,
    /// Decay of the first and of the second moment.
    pub betas: [f64; 2],
    /// Added to the root of the second moment.
    pub eps: f64,
    /// Weight decay, times the learning rate.
    pub weight_decay: f64,
    /// Largest norm of the gradients; larger ones are scaled down.
    pub max_norm: Option<f64>,
}

/// What became of a fused step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FusedStep {
    /// L2 norm of all gradients before clipping.
    pub grad_norm: f64,
    /// Share of gradient entries that were exactly 0.
    pub zero_grad_ratio: f64,
    /// False when the norm was not finite; weights and moments are as before then.
    pub applied: bool,
}

/// AdamW's state in the order of [`crate::names::parameters`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Moments {
    /// Steps taken.
    pub updates: usize,
    /// First moments.
    pub first: Vec<Vec<f32>>,
    /// Second moments.
    pub second: Vec<Vec<f32>>,
}
