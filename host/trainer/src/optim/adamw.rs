//! AdamW, whose arithmetic is burn's. Owns its settings and what it remembers of a parameter in plain numbers; must not
//! know which parameters it is for.

use super::memory::Slots;
use burn::optim::{AdamW, AdamWConfig, AdamWState, AdaptiveMomentumState, DynState};
use burn::tensor::{Device, Tensor, TensorData};
use prl_model::{AdamWNumbers, Moments};

/// First and second moment in the file.
pub(super) const SLOTS: [&str; 2] = ["exp_avg", "exp_avg_sq"];

/// Outside the root.
const EPSILON: f64 = 1e-8;

/// The settings of a configuration in numbers.
pub(super) fn numbers(lr: f64, [weight_decay, beta1, beta2]: [f64; 3], max_norm: Option<f64>) -> AdamWNumbers {
    AdamWNumbers { lr, betas: [beta1, beta2], eps: EPSILON, weight_decay, max_norm }
}

/// AdamW as torch has it: decoupled weight decay of lr·wd, bias-corrected moments.
pub(super) fn rule(numbers: &AdamWNumbers) -> AdamW {
    AdamWConfig::new()
        .with_beta_1(numbers.betas[0] as f32)
        .with_beta_2(numbers.betas[1] as f32)
        .with_epsilon(EPSILON as f32)
        .with_weight_decay(numbers.weight_decay as f32)
        .build()
}

/// Both moments of a parameter with `D` lengths.
///
/// # Errors
/// The device's word.
pub(super) fn slots<const D: usize>(state: &DynState) -> Result<Slots, String> {
    let momentum = &state.downcast_ref::<AdamWState<D>>().momentum;
    let read = |t: &Tensor<D>| t.clone().try_into_vec_as::<f32>().map_err(|e| e.to_string());
    Ok(vec![read(&momentum.moment_1)?, read(&momentum.moment_2)?])
}

/// burn's state of a parameter after so many updates.
pub(super) fn state<const D: usize>(
    updates: usize,
    [first, second]: [Vec<f32>; 2],
    shape: [usize; D],
    device: &Device,
) -> DynState {
    let tensor = |values| Tensor::<D>::from_data(TensorData::new(values, shape), device);
    let momentum =
        AdaptiveMomentumState { time: updates, moment_1: tensor(first), moment_2: tensor(second), max_moment_2: None };
    DynState::create(AdamWState { momentum }, D)
}

/// What a model that takes its own steps remembers, by parameter.
pub(super) fn of_fused(moments: Moments) -> (usize, Vec<Slots>) {
    let Moments { updates, first, second } = moments;
    (updates, first.into_iter().zip(second).map(|(first, second)| vec![first, second]).collect())
}

/// The way back; none before the first update.
pub(super) fn to_fused(updates: usize, parameters: Vec<Slots>) -> Option<Moments> {
    let mut moments = Moments { updates, ..Moments::default() };
    for mut slots in parameters {
        moments.second.extend(slots.pop());
        moments.first.extend(slots.pop());
    }
    (updates > 0).then_some(moments)
}
