//! How one parameter takes a step, whichever rule it is under. Owns the way between a model's tensors and plain numbers;
//! must not know files or the parameters' order.

use super::adamw;
use super::memory::Slots;
use super::muon::{self, Muon};
use super::sgd::{self, Sgd, SignSgd};
use burn::optim::{AdamW, AdamWState, DynState, Optimizer as _};
use burn::tensor::{Device, Tensor, TensorData};

/// The rule of one parameter.
#[derive(Clone)]
pub(super) enum Rule {
    AdamW(AdamW),
    Sgd(Sgd),
    SignSgd(SignSgd),
    /// Of a matrix.
    Muon(Muon),
}

/// What is remembered of one parameter.
pub(super) enum State {
    /// burn's.
    AdamW(DynState),
    Momentum(Vec<f32>),
}

impl State {
    fn adamw(self) -> Option<DynState> {
        match self {
            State::AdamW(state) => Some(state),
            State::Momentum(_) => None,
        }
    }

    fn momentum(self) -> Option<Vec<f32>> {
        match self {
            State::Momentum(momentum) => Some(momentum),
            State::AdamW(_) => None,
        }
    }

    /// In plain numbers, of a parameter with `D` lengths.
    ///
    /// # Errors
    /// The device's word.
    pub fn slots<const D: usize>(&self) -> Result<Slots, String> {
        match self {
            State::AdamW(state) => adamw::slots::<D>(state),
            State::Momentum(momentum) => Ok(vec![momentum.clone()]),
        }
    }
}

impl Rule {
    /// Names of what is remembered of a parameter.
    pub fn slots(&self) -> &'static [&'static str] {
        match self {
            Rule::AdamW(_) => &adamw::SLOTS,
            Rule::Sgd(_) => &[sgd::SLOT],
            Rule::SignSgd(_) => &[],
            Rule::Muon(_) => &[muon::SLOT],
        }
    }

    /// What is remembered, out of plain numbers in the order of [`Rule::slots`]; none where they are none.
    pub fn state<const D: usize>(
        &self,
        updates: usize,
        slots: Slots,
        shape: [usize; D],
        device: &Device,
    ) -> Option<State> {
        match self {
            Rule::AdamW(_) => {
                let moments = <[_; 2]>::try_from(slots).ok()?;
                Some(State::AdamW(adamw::state(updates, moments, shape, device)))
            }
            Rule::Sgd(_) | Rule::Muon(_) => slots.into_iter().next().map(State::Momentum),
            Rule::SignSgd(_) => None,
        }
    }

    /// The next weights and what is to be remembered.
    ///
    /// # Errors
    /// The device's word.
    pub fn step<const D: usize>(
        &self,
        lr: f64,
        value: Tensor<D>,
        grad: Tensor<D>,
        state: Option<State>,
    ) -> Result<(Tensor<D>, Option<State>), String> {
        if let Rule::AdamW(rule) = self {
            let state = state.and_then(State::adamw).map(DynState::downcast::<AdamWState<D>>);
            let (value, state) = rule.step(lr, value, grad, state);
            return Ok((value, state.map(|state| State::AdamW(DynState::create(state, D)))));
        }
        let (device, shape) = (value.device(), value.dims());
        let mut weights = value.try_into_vec_as::<f32>().map_err(|e| e.to_string())?;
        let grad = grad.try_into_vec_as::<f32>().map_err(|e| e.to_string())?;
        let mut buffer = state.and_then(State::momentum);
        match self {
            Rule::AdamW(_) => {}
            Rule::Sgd(sgd) => sgd.step(lr, &mut weights, &grad, &mut buffer),
            Rule::SignSgd(sign) => sign.step(lr, &mut weights, &grad),
            Rule::Muon(muon) => {
                let columns = shape.last().copied().unwrap_or(1).max(1);
                muon.step(lr, [weights.len() / columns, columns], &mut weights, &grad, &mut buffer);
            }
        }
        Ok((Tensor::from_data(TensorData::new(weights, shape), &device), buffer.map(State::Momentum)))
    }
}
