//! AdamW over a decoder's parameters: clip, step, save, load.
//!
//! Owns the moments and the rule by which a gradient may change weights. The arithmetic of one parameter is burn's. Must
//! not know losses or data.

use crate::{Schedule, TrainerError};
use burn::module::{Module, ModuleMapper, Param};
use burn::optim::{AdamW, AdamWConfig, AdamWState, AdaptiveMomentumState, DynState, GradientsParams, Optimizer as _};
use burn::tensor::{Device, Tensor, TensorData};
use prl_config::Optim;
use prl_model::{Decoder, Learner};
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use std::collections::{BTreeMap, HashMap};
use std::path::Path;

const FILE: &str = "optimizer.safetensors";
const FIRST: &str = "exp_avg";
const SECOND: &str = "exp_avg_sq";
const UPDATES: &str = "updates";

/// AdamW as torch has it: decoupled weight decay of lr·wd on every parameter, bias-corrected moments, ε = 1e-8 outside
/// the root.
pub(crate) struct Optimizer {
    rule: AdamW,
    max_norm: Option<f64>,
    /// By parameter id; empty before the first update.
    states: BTreeMap<u64, DynState>,
}

/// What became of a gradient.
pub(crate) struct Applied {
    pub grad_norm: f64,
    pub zero_grad_ratio: f64,
    /// False when the norm was not finite; then weights and moments are as before.
    pub applied: bool,
}

/// The rule's settings in terms of the configuration, and the schedule they imply.
pub(crate) fn build(
    optim: &Optim,
    scheduler: &prl_config::Scheduler,
    max_steps: Option<u64>,
) -> Result<(Optimizer, Schedule), TrainerError> {
    let Optim::AdamW(adamw) = optim;
    for (key, beta) in [("optim.betas1", adamw.betas1), ("optim.betas2", adamw.betas2)] {
        if !(0.0..1.0).contains(&beta) {
            return Err(TrainerError::Setting { key, reason: format!("= {beta} must be at least 0 and below 1") });
        }
    }
    let rule = AdamWConfig::new()
        .with_beta_1(adamw.betas1 as f32)
        .with_beta_2(adamw.betas2 as f32)
        .with_epsilon(1e-8)
        .with_weight_decay(adamw.weight_decay as f32)
        .build();
    let schedule = Schedule::new(adamw.lr, scheduler.clone(), max_steps)?;
    Ok((Optimizer { rule, max_norm: adamw.max_norm, states: BTreeMap::new() }, schedule))
}

impl Optimizer {
    /// Clips the learner's gradients to the largest norm and applies them. The gradients are 0 afterwards.
    pub fn apply(&mut self, learner: &mut Learner, lr: f64) -> Result<Applied, TrainerError> {
        let grad_norm = learner.grad_norm()?;
        if !grad_norm.is_finite() {
            learner.zero_grads();
            return Ok(Applied { grad_norm, zero_grad_ratio: 0.0, applied: false });
        }
        let zero_grad_ratio = learner.zero_grad_ratio()?;
        if let Some(max_norm) = self.max_norm {
            let factor = max_norm / (grad_norm + 1e-6);
            if factor < 1.0 {
                learner.scale_grads(factor as f32);
            }
        }
        learner.update(|decoder, grads| decoder.map(&mut Mapper { optimizer: self, grads, lr }));
        Ok(Applied { grad_norm, zero_grad_ratio, applied: true })
    }

    /// Writes the moments to `optimizer.safetensors`, as `<parameter>.exp_avg` and `<parameter>.exp_avg_sq`.
    pub fn save(&self, dir: &Path, decoder: &Decoder) -> Result<(), TrainerError> {
        let path = dir.join(FILE);
        let failed = |e: String| TrainerError::file("write", &path, e);
        let mut tensors: Vec<(String, Vec<usize>, Vec<f32>)> = Vec::new();
        let mut updates = 0;
        for (info, parameter) in decoder.infos().into_iter().zip(decoder.parameters()) {
            let Some(state) = self.states.get(&parameter.id().val()) else { continue };
            let (time, first, second) = match info.shape.len() {
                1 => moments::<1>(state),
                _ => moments::<2>(state),
            }
            .map_err(failed)?;
            updates = time;
            tensors.push((format!("{}.{FIRST}", info.name), info.shape.clone(), first));
            tensors.push((format!("{}.{SECOND}", info.name), info.shape, second));
        }
        let views = tensors
            .iter()
            .map(|(name, shape, values)| {
                let view = TensorView::new(Dtype::F32, shape.clone(), bytemuck::cast_slice(values));
                view.map(|v| (name.as_str(), v)).map_err(|e| failed(e.to_string()))
            })
            .collect::<Result<Vec<_>, _>>()?;
        let metadata = HashMap::from([(UPDATES.to_string(), updates.to_string())]);
        safetensors::serialize_to_file(views, Some(metadata), &path).map_err(|e| failed(e.to_string()))
    }

    /// Reads what [`Optimizer::save`] wrote for a model of the same shape; replaces all moments, or none on an error.
    pub fn load(&mut self, dir: &Path, decoder: &Decoder) -> Result<(), TrainerError> {
        let path = dir.join(FILE);
        let failed = |e: String| TrainerError::file("read", &path, e);
        let bytes = std::fs::read(&path).map_err(|e| failed(e.to_string()))?;
        let file = SafeTensors::deserialize(&bytes).map_err(|e| failed(e.to_string()))?;
        let (_, header) = SafeTensors::read_metadata(&bytes).map_err(|e| failed(e.to_string()))?;
        let updates: usize = header
            .metadata()
            .as_ref()
            .and_then(|m| m.get(UPDATES)?.parse().ok())
            .ok_or_else(|| failed(format!("its metadata has no `{UPDATES}`")))?;
        let mut states = BTreeMap::new();
        if updates > 0 {
            let device = decoder.device();
            let infos = decoder.infos();
            if file.len() != 2 * infos.len() {
                let reason = format!("it holds {} tensors, the model needs {}", file.len(), 2 * infos.len());
                return Err(failed(reason));
            }
            for (info, parameter) in infos.into_iter().zip(decoder.parameters()) {
                let read = |moment| read(&file, &format!("{}.{moment}", info.name), &info.shape).map_err(failed);
                let (first, second) = (read(FIRST)?, read(SECOND)?);
                let state = match info.shape.len() {
                    1 => restore::<1>(updates, first, second, &device),
                    _ => restore::<2>(updates, first, second, &device),
                };
                states.insert(parameter.id().val(), state);
            }
        } else if !file.is_empty() {
            return Err(failed(format!("it holds {} tensors after 0 updates", file.len())));
        }
        self.states = states;
        Ok(())
    }
}

/// Number of updates, first and second moment.
fn moments<const D: usize>(state: &DynState) -> Result<(usize, Vec<f32>, Vec<f32>), String> {
    let momentum = &state.downcast_ref::<AdamWState<D>>().momentum;
    let read = |t: &Tensor<D>| t.clone().try_into_vec_as::<f32>().map_err(|e| e.to_string());
    Ok((momentum.time, read(&momentum.moment_1)?, read(&momentum.moment_2)?))
}

fn restore<const D: usize>(updates: usize, first: TensorData, second: TensorData, device: &Device) -> DynState {
    let tensor = |data| Tensor::<D>::from_data(data, device);
    let momentum =
        AdaptiveMomentumState { time: updates, moment_1: tensor(first), moment_2: tensor(second), max_moment_2: None };
    DynState::create(AdamWState { momentum }, D)
}

fn read(file: &SafeTensors<'_>, name: &str, shape: &[usize]) -> Result<TensorData, String> {
    let view = file.tensor(name).map_err(|e| format!("`{name}`: {e}"))?;
    if view.dtype() != Dtype::F32 || view.shape() != shape {
        return Err(format!("`{name}` is {:?} {:?}, the model needs F32 {shape:?}", view.dtype(), view.shape()));
    }
    let values: Vec<f32> = bytemuck::pod_collect_to_vec(view.data());
    Ok(TensorData::new(values, shape.to_vec()))
}

struct Mapper<'a> {
    optimizer: &'a mut Optimizer,
    grads: GradientsParams,
    lr: f64,
}

impl ModuleMapper for Mapper<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let (id, value, mapper) = param.consume();
        let Some(grad) = self.grads.remove::<D>(id) else { return Param::from_mapped_value(id, value, mapper) };
        let state = self.optimizer.states.remove(&id.val()).map(DynState::downcast::<AdamWState<D>>);
        let (value, state) = self.optimizer.rule.step(self.lr, value, grad, state);
        if let Some(state) = state {
            self.optimizer.states.insert(id.val(), DynState::create(state, D));
        }
        Param::from_mapped_value(id, value, mapper)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prl_config::{ConstantScheduler, Scheduler};

    /// Three updates of one parameter against torch's AdamW written out in f64.
    #[test]
    fn the_rule_is_that_of_torch() {
        let (lr, decay, b1, b2) = (0.05, 0.1, 0.8, 0.95);
        let settings = prl_config::AdamW { lr, weight_decay: decay, betas1: b1, betas2: b2, ..Default::default() };
        let constant = Scheduler::Constant(ConstantScheduler {});
        let (optimizer, _) = build(&Optim::AdamW(settings), &constant, None).unwrap();
        let device = Device::flex();
        let (mut value, mut state) = (Tensor::<1>::from_floats([1.0, -2.0, 1e-3], &device), None);
        let mut want = [1.0f64, -2.0, 1e-3];
        let (mut m, mut v) = ([0.0f64; 3], [0.0f64; 3]);
        for (t, grad) in (1..).zip([[0.5f32, -3.0, 1e-6], [-0.25, 2.0, 2e-6], [0.0, 1.0, -1e-6]]) {
            (value, state) = optimizer.rule.step(lr, value, Tensor::from_floats(grad, &device), state);
            for i in 0..3 {
                let g = f64::from(grad[i]);
                want[i] *= 1.0 - lr * decay;
                m[i] = b1 * m[i] + (1.0 - b1) * g;
                v[i] = b2 * v[i] + (1.0 - b2) * g * g;
                let root = (v[i] / (1.0 - b2.powi(t))).sqrt();
                want[i] -= lr * (m[i] / (1.0 - b1.powi(t))) / (root + 1e-8);
            }
        }
        for (got, want) in value.try_into_vec_as::<f32>().unwrap().into_iter().zip(want) {
            assert!((f64::from(got) - want).abs() < 1e-5 * want.abs().max(1e-2), "{got} is not {want}");
        }
    }

    #[test]
    fn betas_out_of_range_are_named() {
        let settings = prl_config::AdamW { betas2: 1.0, ..Default::default() };
        let constant = Scheduler::Constant(ConstantScheduler {});
        let error = build(&Optim::AdamW(settings), &constant, None).err().unwrap().to_string();
        assert_eq!(error, "`optim.betas2` = 1 must be at least 0 and below 1");
    }
}
