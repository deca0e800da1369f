//! AdamW over a decoder's parameters: clip, step, save, load.
//!
//! Owns the rule by which a gradient may change weights, the moments of a model on the host (whose arithmetic is burn's),
//! and their file. A model on a GPU keeps its moments and computes its steps itself. Must not know losses or data.

use crate::{Schedule, TrainerError};
use burn::module::{Module, ModuleMapper, Param};
use burn::optim::{AdamW, AdamWConfig, AdamWState, AdaptiveMomentumState, DynState, GradientsParams, Optimizer as _};
use burn::tensor::{Device, Tensor, TensorData};
use prl_config::Optim;
use prl_model::names::ParameterInfo;
use prl_model::{AdamWNumbers, Decoder, FusedStep, HostLearner, Learner, ModelError, Moments, ParamRef, Stepper};
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
    /// The same rule in numbers, but for the learning rate, which every step brings.
    numbers: AdamWNumbers,
    /// By parameter id; empty before the first update, and for a model that keeps its own.
    states: BTreeMap<u64, DynState>,
}

const EPSILON: f64 = 1e-8;

/// The rule's settings in terms of the configuration, and the schedule they imply.
pub(crate) fn build(
    optim: &Optim,
    scheduler: &prl_config::Scheduler,
    max_steps: Option<u64>,
) -> Result<(Optimizer, Schedule), TrainerError> {
    let Optim::AdamW(adamw) = optim;
    for (key, beta) in [("optim.betas1", adamw.betas1), ("optim.betas2", adamw.betas2)] {
        // In f32, as it is used: 1 - 1e-9 would be 1.
        if !(0.0..1.0).contains(&(beta as f32)) {
            return Err(TrainerError::Setting { key, reason: format!("= {beta} must be at least 0 and below 1") });
        }
    }
    let rule = AdamWConfig::new()
        .with_beta_1(adamw.betas1 as f32)
        .with_beta_2(adamw.betas2 as f32)
        .with_epsilon(EPSILON as f32)
        .with_weight_decay(adamw.weight_decay as f32)
        .build();
    let schedule = Schedule::new(adamw.lr, scheduler.clone(), max_steps)?;
    let numbers = AdamWNumbers {
        lr: adamw.lr,
        betas: [adamw.betas1, adamw.betas2],
        eps: EPSILON,
        weight_decay: adamw.weight_decay,
        max_norm: adamw.max_norm,
    };
    Ok((Optimizer { rule, numbers, states: BTreeMap::new() }, schedule))
}

impl Optimizer {
    /// Clips the learner's gradients to the largest norm and applies them. The gradients are 0 afterwards, whatever
    /// happens.
    pub fn apply(&mut self, learner: &mut Learner, lr: f64) -> Result<FusedStep, TrainerError> {
        let step = self.step(learner.stepper(), lr);
        if step.is_err() {
            // Should this fail too, the first error is the one to tell.
            let _ = learner.zero_grads();
        }
        step
    }

    fn step(&mut self, stepper: Stepper<'_>, lr: f64) -> Result<FusedStep, TrainerError> {
        match stepper {
            Stepper::Host(host) => self.step_here(host, lr),
            Stepper::Fused(fused) => Ok(fused.step(&AdamWNumbers { lr, ..self.numbers })?),
        }
    }

    fn step_here(&mut self, host: &mut HostLearner, lr: f64) -> Result<FusedStep, TrainerError> {
        let grad_norm = host.grad_norm()?;
        let zero_grad_ratio = host.zero_grad_ratio()?;
        if !grad_norm.is_finite() {
            host.zero_grads();
            return Ok(FusedStep { grad_norm, zero_grad_ratio, applied: false });
        }
        if let Some(max_norm) = self.numbers.max_norm {
            let factor = max_norm / (grad_norm + 1e-6);
            if factor < 1.0 {
                host.scale_grads(factor as f32);
            }
        }
        host.update(|decoder, grads| decoder.map(&mut Mapper { optimizer: self, grads, lr }));
        Ok(FusedStep { grad_norm, zero_grad_ratio, applied: true })
    }

    /// What [`Optimizer::load`] takes back once it is written.
    pub fn saved(&self, learner: &mut Learner) -> Result<SavedMoments, TrainerError> {
        let infos = prl_model::names::parameters(learner.config());
        Ok(SavedMoments { infos, moments: self.moments(learner.stepper())? })
    }

    /// Reads what [`SavedMoments::write`] wrote for a model of the same shape; replaces all moments, or none on an error.
    pub fn load(&mut self, dir: &Path, learner: &mut Learner) -> Result<(), TrainerError> {
        let path = dir.join(FILE);
        let infos = prl_model::names::parameters(learner.config());
        let moments = read(&path, &infos).map_err(|e| TrainerError::file("read", &path, e))?;
        self.set_moments(learner.stepper(), moments)
    }

    fn set_moments(&mut self, stepper: Stepper<'_>, moments: Moments) -> Result<(), TrainerError> {
        match stepper {
            Stepper::Host(host) => self.states = states(host.decoder(), moments),
            Stepper::Fused(fused) => fused.set_moments((moments.updates > 0).then_some(moments))?,
        }
        Ok(())
    }

    /// The moments, wherever they are kept; none before the first update.
    fn moments(&self, stepper: Stepper<'_>) -> Result<Moments, TrainerError> {
        let decoder = match stepper {
            Stepper::Host(host) => host.decoder(),
            Stepper::Fused(fused) => return Ok(fused.moments()?.unwrap_or_default()),
        };
        let mut out = Moments::default();
        for parameter in decoder.parameters() {
            let Some(state) = self.states.get(&parameter.id().val()) else { continue };
            let (updates, first, second) = match parameter {
                ParamRef::Vector(_) => moments_of::<1>(state)?,
                ParamRef::Matrix(_) => moments_of::<2>(state)?,
            };
            out.updates = updates;
            out.first.push(first);
            out.second.push(second);
        }
        Ok(out)
    }
}

/// The moments of all parameters at one time.
pub(crate) struct SavedMoments {
    infos: Vec<ParameterInfo>,
    moments: Moments,
}

impl SavedMoments {
    /// Writes `optimizer.safetensors`: `<parameter>.exp_avg` and `<parameter>.exp_avg_sq`.
    pub fn write(&self, dir: &Path) -> Result<(), TrainerError> {
        let path = dir.join(FILE);
        write(&path, &self.infos, &self.moments).map_err(|e| TrainerError::file("write", &path, e))
    }
}

fn write(path: &Path, infos: &[ParameterInfo], moments: &Moments) -> Result<(), String> {
    let mut tensors = Vec::new();
    for ((info, first), second) in infos.iter().zip(&moments.first).zip(&moments.second) {
        for (moment, values) in [(FIRST, first), (SECOND, second)] {
            let view = TensorView::new(Dtype::F32, info.shape.clone(), bytemuck::cast_slice(values));
            tensors.push((format!("{}.{moment}", info.name), view.map_err(|e| e.to_string())?));
        }
    }
    let metadata = HashMap::from([(UPDATES.to_string(), moments.updates.to_string())]);
    safetensors::serialize_to_file(tensors, Some(metadata), path).map_err(|e| e.to_string())
}

fn read(path: &Path, infos: &[ParameterInfo]) -> Result<Moments, String> {
    let bytes = std::fs::read(path).map_err(|e| e.to_string())?;
    let file = SafeTensors::deserialize(&bytes).map_err(|e| e.to_string())?;
    let (_, header) = SafeTensors::read_metadata(&bytes).map_err(|e| e.to_string())?;
    let updates: usize = header
        .metadata()
        .as_ref()
        .and_then(|m| m.get(UPDATES)?.parse().ok())
        .ok_or_else(|| format!("its metadata has no `{UPDATES}`"))?;
    let mut moments = Moments { updates, ..Moments::default() };
    if updates == 0 {
        return match file.is_empty() {
            true => Ok(moments),
            false => Err(format!("it holds {} tensors after 0 updates", file.len())),
        };
    }
    if file.len() != 2 * infos.len() {
        return Err(format!("it holds {} tensors, the model needs {}", file.len(), 2 * infos.len()));
    }
    for info in infos {
        moments.first.push(values(&file, &format!("{}.{FIRST}", info.name), &info.shape)?);
        moments.second.push(values(&file, &format!("{}.{SECOND}", info.name), &info.shape)?);
    }
    Ok(moments)
}

/// burn's states by parameter id.
fn states(decoder: &Decoder, moments: Moments) -> BTreeMap<u64, DynState> {
    let device = decoder.device();
    let Moments { updates, first, second } = moments;
    let pairs = decoder.parameters().into_iter().zip(first.into_iter().zip(second));
    pairs
        .map(|(parameter, (first, second))| {
            let state = match parameter {
                ParamRef::Vector(p) => restore::<1>(updates, first, second, p.val().dims(), &device),
                ParamRef::Matrix(p) => restore::<2>(updates, first, second, p.val().dims(), &device),
            };
            (parameter.id().val(), state)
        })
        .collect()
}

/// Number of updates, first and second moment.
fn moments_of<const D: usize>(state: &DynState) -> Result<(usize, Vec<f32>, Vec<f32>), TrainerError> {
    let momentum = &state.downcast_ref::<AdamWState<D>>().momentum;
    let read = |t: &Tensor<D>| {
        t.clone().try_into_vec_as::<f32>().map_err(|e| TrainerError::Model(ModelError::Execution(e.to_string())))
    };
    Ok((momentum.time, read(&momentum.moment_1)?, read(&momentum.moment_2)?))
}

fn restore<const D: usize>(
    updates: usize,
    first: Vec<f32>,
    second: Vec<f32>,
    shape: [usize; D],
    device: &Device,
) -> DynState {
    let tensor = |values| Tensor::<D>::from_data(TensorData::new(values, shape), device);
    let momentum =
        AdaptiveMomentumState { time: updates, moment_1: tensor(first), moment_2: tensor(second), max_moment_2: None };
    DynState::create(AdamWState { momentum }, D)
}

fn values(file: &SafeTensors<'_>, name: &str, shape: &[usize]) -> Result<Vec<f32>, String> {
    let view = file.tensor(name).map_err(|e| format!("`{name}`: {e}"))?;
    if view.dtype() != Dtype::F32 || view.shape() != shape {
        return Err(format!("`{name}` is {:?} {:?}, the model needs F32 {shape:?}", view.dtype(), view.shape()));
    }
    Ok(bytemuck::pod_collect_to_vec(view.data()))
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
    use prl_model::FusedAdamW;
    use prl_model::names::Kind;

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

    /// A model that takes its own steps: notes what it is asked, and fails when told to.
    #[derive(Default)]
    struct Fused {
        asked: Vec<AdamWNumbers>,
        moments: Option<Moments>,
        fails: bool,
    }

    impl FusedAdamW for Fused {
        fn step(&mut self, numbers: &AdamWNumbers) -> Result<FusedStep, ModelError> {
            self.asked.push(*numbers);
            if self.fails {
                return Err(ModelError::Execution("out of order".into()));
            }
            Ok(FusedStep { grad_norm: f64::INFINITY, zero_grad_ratio: 0.5, applied: false })
        }

        fn moments(&self) -> Result<Option<Moments>, ModelError> {
            Ok(self.moments.clone())
        }

        fn set_moments(&mut self, moments: Option<Moments>) -> Result<(), ModelError> {
            self.moments = moments;
            Ok(())
        }
    }

    fn rule(settings: prl_config::AdamW) -> Optimizer {
        build(&Optim::AdamW(settings), &Scheduler::Constant(ConstantScheduler {}), None).unwrap().0
    }

    #[test]
    fn a_model_that_steps_itself_gets_the_rule_and_keeps_its_moments() {
        let mut optimizer = rule(prl_config::AdamW { max_norm: Some(0.0), betas1: 0.8, ..Default::default() });
        let mut fused = Fused::default();
        let step = optimizer.step(Stepper::Fused(&mut fused), 0.5).unwrap();
        assert!(!step.applied && step.zero_grad_ratio == 0.5);
        let want = AdamWNumbers { lr: 0.5, betas: [0.8, 0.999], eps: 1e-8, weight_decay: 0.01, max_norm: Some(0.0) };
        assert_eq!(fused.asked, [want]);
        fused.fails = true;
        assert!(optimizer.step(Stepper::Fused(&mut fused), 0.5).is_err());

        let info = |name: &str, shape: &[usize], kind| ParameterInfo { name: name.into(), shape: shape.to_vec(), kind };
        let infos = [info("w", &[2, 2], Kind::Matrix), info("n", &[2], Kind::Norm)];
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE);
        for updates in [0, 7] {
            let values = |x: f32| vec![vec![x; 4], vec![2.0 * x; 2]];
            let full = Moments { updates, first: values(0.5), second: values(0.25) };
            fused.moments = (updates > 0).then_some(full);
            let moments = optimizer.moments(Stepper::Fused(&mut fused)).unwrap();
            write(&path, &infos, &moments).unwrap();
            let read = read(&path, &infos).unwrap();
            assert_eq!(read, moments);
            let kept = fused.moments.take();
            optimizer.set_moments(Stepper::Fused(&mut fused), read).unwrap();
            assert_eq!(fused.moments, kept);
        }
        let other = [info("w", &[2, 2], Kind::Matrix), info("n", &[3], Kind::Norm)];
        assert!(read(&path, &other).unwrap_err().contains("`n.exp_avg`"));
    }

    #[test]
    fn betas_out_of_range_are_named() {
        let settings = prl_config::AdamW { betas2: 1.0 - 1e-9, ..Default::default() };
        let constant = Scheduler::Constant(ConstantScheduler {});
        let error = build(&Optim::AdamW(settings), &constant, None).err().unwrap().to_string();
        assert_eq!(error, "`optim.betas2` = 0.999999999 must be at least 0 and below 1");
    }
}
