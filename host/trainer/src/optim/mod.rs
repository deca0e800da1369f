//! The optimiser over what is trained of a model: clip, step, save, load.
//!
//! Owns which rule is whose and what is remembered of a model on the host. A model on a GPU keeps AdamW's moments and
//! computes its steps itself, and knows no other rule. Must not know losses or data.

mod adamw;
mod memory;
mod muon;
mod rule;
mod sgd;
#[cfg(test)]
mod tests;

pub(crate) use memory::SavedOptimizer;

use crate::{Schedule, TrainerError};
use burn::module::{Module, ModuleMapper, Param};
use burn::optim::GradientsParams;
use burn::tensor::Tensor;
use memory::{FILE, Layout, Memory};
use muon::Muon;
use prl_config::Optim;
use prl_model::names::{Kind, ParameterInfo};
use prl_model::{AdamWNumbers, FusedStep, HostLearner, Learner, ModelError, ParamRef, Stepper};
use rule::{Rule, State};
use sgd::{Sgd, SignSgd};
use std::collections::BTreeMap;
use std::path::Path;

/// A rule and what it remembers.
pub(crate) struct Optimizer {
    /// `optim.type`.
    name: &'static str,
    /// Of the matrices in the layers.
    matrices: Rule,
    /// Of embedding, head and vectors.
    others: Rule,
    max_norm: Option<f64>,
    /// AdamW in numbers, but for the learning rate, which every step brings; none of another rule.
    fused: Option<AdamWNumbers>,
    /// Steps taken by a model on the host.
    updates: usize,
    /// By parameter id; empty before the first update, and for a model that keeps its own.
    states: BTreeMap<u64, State>,
}

/// The rule's settings in terms of the configuration, and the schedule they imply.
pub(crate) fn build(
    optim: &Optim,
    scheduler: &prl_config::Scheduler,
    max_steps: Option<u64>,
) -> Result<(Optimizer, Schedule), TrainerError> {
    let mut fused = None;
    let (lr, max_norm, matrices, others) = match optim {
        Optim::AdamW(c) => {
            check_betas([c.betas1, c.betas2])?;
            let numbers = adamw::numbers(c.lr, [c.weight_decay, c.betas1, c.betas2], c.max_norm);
            fused = Some(numbers);
            let rule = Rule::AdamW(adamw::rule(&numbers));
            (c.lr, c.max_norm, rule.clone(), rule)
        }
        Optim::Muon(c) => {
            check_betas([c.betas1, c.betas2])?;
            let numbers = adamw::numbers(c.lr, [c.weight_decay, c.betas1, c.betas2], c.max_norm);
            let muon = Rule::Muon(Muon { mu: c.mu, weight_decay: c.weight_decay });
            (c.lr, c.max_norm, muon, Rule::AdamW(adamw::rule(&numbers)))
        }
        Optim::Sgd(c) => {
            let sgd = Sgd { momentum: c.momentum, nesterov: c.nesterov, weight_decay: c.weight_decay };
            if sgd.nesterov && sgd.momentum == 0.0 {
                let reason = "= true needs `optim.momentum` above 0".into();
                return Err(TrainerError::Setting { key: "optim.nesterov", reason });
            }
            (c.lr, c.max_norm, Rule::Sgd(sgd), Rule::Sgd(sgd))
        }
        Optim::SignSgd(c) => {
            // Clipping changes no sign.
            let rule = Rule::SignSgd(SignSgd { weight_decay: c.weight_decay });
            (c.lr, None, rule.clone(), rule)
        }
    };
    let schedule = Schedule::new(lr, scheduler.clone(), max_steps)?;
    let name = optim.tag();
    let optimizer = Optimizer { name, matrices, others, max_norm, fused, updates: 0, states: BTreeMap::new() };
    Ok((optimizer, schedule))
}

fn check_betas(betas: [f64; 2]) -> Result<(), TrainerError> {
    for (key, beta) in ["optim.betas1", "optim.betas2"].into_iter().zip(betas) {
        // In f32, as it is used: 1 - 1e-9 would be 1.
        if !(0.0..1.0).contains(&(beta as f32)) {
            return Err(TrainerError::Setting { key, reason: format!("= {beta} must be at least 0 and below 1") });
        }
    }
    Ok(())
}

impl Optimizer {
    /// Clips the learner's gradients to the largest norm and applies them. The gradients are 0 afterwards, whatever
    /// happens.
    ///
    /// # Errors
    /// A failing device, a rule that a model on a GPU does not know.
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
            Stepper::Fused(fused) => Ok(fused.step(&AdamWNumbers { lr, ..self.of_gpu()? })?),
        }
    }

    /// The only rule that a GPU knows.
    fn of_gpu(&self) -> Result<AdamWNumbers, TrainerError> {
        self.fused.ok_or_else(|| {
            let reason = format!("= \"{}\" is for the CPU; a GPU has \"adamw\" alone", self.name);
            TrainerError::Setting { key: "optim.type", reason }
        })
    }

    fn step_here(&mut self, host: &mut HostLearner, lr: f64) -> Result<FusedStep, TrainerError> {
        let grad_norm = host.grad_norm()?;
        let zero_grad_ratio = host.zero_grad_ratio()?;
        if !grad_norm.is_finite() {
            host.zero_grads();
            return Ok(FusedStep { grad_norm, zero_grad_ratio, applied: false });
        }
        if let Some(max_norm) = self.max_norm {
            let factor = max_norm / (grad_norm + 1e-6);
            if factor < 1.0 {
                host.scale_grads(factor as f32);
            }
        }
        let rules = self.rules(host);
        let mut failed = None;
        host.update(|model, grads| {
            model.map(&mut Mapper { rules, states: &mut self.states, grads, lr, failed: &mut failed })
        });
        if let Some(reason) = failed {
            return Err(TrainerError::Model(ModelError::Execution(reason)));
        }
        self.updates += 1;
        Ok(FusedStep { grad_norm, zero_grad_ratio, applied: true })
    }

    /// Matrices of the layers have a rule of their own under Muon.
    fn rule(&self, info: &ParameterInfo) -> &Rule {
        let of_layer = info.kind == Kind::Matrix && info.name.starts_with("model.layers.");
        if of_layer { &self.matrices } else { &self.others }
    }

    fn rules(&self, host: &HostLearner) -> BTreeMap<u64, Rule> {
        let rule = |(info, parameter): (ParameterInfo, ParamRef<'_>)| (parameter.id().val(), self.rule(&info).clone());
        host.model().parameters().into_iter().map(rule).collect()
    }

    fn layout(&self, learner: &Learner) -> Layout {
        let infos = learner.trained();
        let slots = |info: ParameterInfo| {
            let slots = self.rule(&info).slots();
            (info, slots)
        };
        // Without momentum there is nothing to remember, and momentum may begin later.
        let optional = matches!(self.others, Rule::Sgd(_));
        Layout { rule: self.name, parameters: infos.into_iter().map(slots).collect(), optional }
    }

    /// What [`Optimizer::load`] takes back once it is written.
    ///
    /// # Errors
    /// The device failed.
    pub fn saved(&self, learner: &mut Learner) -> Result<SavedOptimizer, TrainerError> {
        let layout = self.layout(learner);
        Ok(SavedOptimizer { layout, memory: self.memory(learner.stepper())? })
    }

    /// Reads what [`SavedOptimizer::write`] wrote for a model of the same shape; replaces all that is remembered, or
    /// nothing on an error.
    ///
    /// # Errors
    /// A file that is missing, damaged, of another rule or another model; a failing device.
    pub fn load(&mut self, dir: &Path, learner: &mut Learner) -> Result<(), TrainerError> {
        let memory = memory::read(&dir.join(FILE), &self.layout(learner))?;
        self.remember(learner.stepper(), memory)
    }

    fn remember(&mut self, stepper: Stepper<'_>, memory: Memory) -> Result<(), TrainerError> {
        let Memory { updates, parameters } = memory;
        match stepper {
            Stepper::Host(host) => {
                let device = host.model().decoder.device();
                let rules = self.rules(host);
                let state = |((_, parameter), slots): ((ParameterInfo, ParamRef<'_>), memory::Slots)| {
                    let id = parameter.id().val();
                    let rule = rules.get(&id)?;
                    let state = match parameter {
                        ParamRef::Vector(p) => rule.state::<1>(updates, slots, p.val().dims(), &device),
                        ParamRef::Matrix(p) => rule.state::<2>(updates, slots, p.val().dims(), &device),
                    };
                    Some((id, state?))
                };
                self.states = host.model().parameters().into_iter().zip(parameters).filter_map(state).collect();
                self.updates = updates;
            }
            Stepper::Fused(fused) => {
                self.of_gpu()?;
                fused.set_moments(adamw::to_fused(updates, parameters))?;
            }
        }
        Ok(())
    }

    /// What is remembered, wherever it is kept; nothing before the first update.
    fn memory(&self, stepper: Stepper<'_>) -> Result<Memory, TrainerError> {
        let model = match stepper {
            Stepper::Host(host) => host.model(),
            Stepper::Fused(fused) => {
                self.of_gpu()?;
                let (updates, parameters) = adamw::of_fused(fused.moments()?.unwrap_or_default());
                return Ok(Memory { updates, parameters });
            }
        };
        let slots =
            |(_, parameter): (ParameterInfo, ParamRef<'_>)| match (self.states.get(&parameter.id().val()), parameter) {
                (None, _) => Ok(Vec::new()),
                (Some(state), ParamRef::Vector(_)) => state.slots::<1>(),
                (Some(state), ParamRef::Matrix(_)) => state.slots::<2>(),
            };
        let parameters = model.parameters().into_iter().map(slots).collect::<Result<_, _>>();
        let parameters = parameters.map_err(|e| TrainerError::Model(ModelError::Execution(e)))?;
        Ok(Memory { updates: self.updates, parameters })
    }
}

/// Takes one step of every parameter; of a device that fails, the first word is kept.
struct Mapper<'a> {
    /// By parameter id.
    rules: BTreeMap<u64, Rule>,
    states: &'a mut BTreeMap<u64, State>,
    grads: GradientsParams,
    lr: f64,
    failed: &'a mut Option<String>,
}

impl ModuleMapper for Mapper<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let (id, value, mapper) = param.consume();
        let Some((rule, grad)) = self.rules.get(&id.val()).zip(self.grads.remove::<D>(id)) else {
            return Param::from_mapped_value(id, value, mapper);
        };
        let state = self.states.remove(&id.val());
        match rule.step(self.lr, value.clone(), grad, state) {
            Ok((value, state)) => {
                if let Some(state) = state {
                    self.states.insert(id.val(), state);
                }
                Param::from_mapped_value(id, value, mapper)
            }
            Err(reason) => {
                self.failed.get_or_insert(reason);
                Param::from_mapped_value(id, value, mapper)
            }
        }
    }
}
