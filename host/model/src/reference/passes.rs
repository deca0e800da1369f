//! Training with the reference decoder. Owns the gradient sums; must not know what the gradients are for.

use super::body::Body;
use super::head;
use crate::host::Passes;
use crate::learner::Rows;
use crate::{ModelError, Packed, ParamRef, Trained};
use burn::module::Module;
use burn::optim::GradientsParams;
use burn::tensor::Tensor;
use prl_kernels::Dropout;

/// Gradients as tensors on the model's device, in the order of what is trained; `None` is 0.
#[derive(Default)]
struct Sums {
    vectors: Vec<Option<Tensor<1>>>,
    matrices: Vec<Option<Tensor<2>>>,
}

/// What backward needs of the last forward.
struct Tape {
    /// A copy of the model in which what is trained are leaves.
    leaves: Trained,
    /// `[tokens, hidden]`, part of the graph.
    hidden: Tensor<2>,
    stats: head::Stats,
}

/// Forward and backward passes in plain operations.
pub(crate) struct ReferencePasses {
    head_chunk: usize,
    sums: Sums,
    tape: Option<Tape>,
}

impl ReferencePasses {
    pub(crate) fn new(head_chunk: usize) -> Self {
        ReferencePasses { head_chunk, sums: Sums::default(), tape: None }
    }
}

impl Passes for ReferencePasses {
    fn forward(
        &mut self,
        model: &Trained,
        dropout: Option<Dropout>,
        batch: &Packed,
        rows: &Rows,
    ) -> Result<(Vec<f32>, Vec<f32>), ModelError> {
        self.tape = None;
        let leaves = model.clone().train();
        let hidden = Body::new(&leaves, dropout.as_ref()).forward(&batch.ids, &batch.doc_lens, None);
        let head = model.decoder.head().val();
        let (stats, out) = head::forward(head, hidden.clone().inner(), &rows.labels, &rows.inv_temp, self.head_chunk)?;
        self.tape = Some(Tape { leaves, hidden, stats });
        Ok(out)
    }

    fn backward(
        &mut self,
        model: &Trained,
        _rows: &Rows,
        dlogprob: Vec<f32>,
        dentropy: Option<Vec<f32>>,
    ) -> Result<(), ModelError> {
        let Some(Tape { leaves, hidden, stats }) = self.tape.take() else {
            return Err(ModelError::Input("backward needs a forward pass before it".into()));
        };
        let head = model.decoder.head();
        let trained = model.parameters().iter().any(|(_, parameter)| parameter.id() == head.id);
        let (dhidden, dhead) = head::backward(
            head.val(),
            hidden.clone().inner(),
            &stats,
            &dlogprob,
            dentropy.as_deref(),
            (self.head_chunk, trained),
        );
        let mut grads = (hidden * Tensor::from_inner(dhidden)).sum().backward();
        self.sums.add(model, GradientsParams::from_module(&mut grads, &leaves), dhead);
        Ok(())
    }

    fn norm(&self) -> Result<f64, ModelError> {
        let mut squares = 0.0f64;
        self.sums.each(|values| squares += values.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>())?;
        Ok(squares.sqrt())
    }

    fn scale(&mut self, factor: f32) {
        for v in self.sums.vectors.iter_mut().flatten() {
            v.inplace(|t| t.mul_scalar(factor));
        }
        for m in self.sums.matrices.iter_mut().flatten() {
            m.inplace(|t| t.mul_scalar(factor));
        }
    }

    fn zero_ratio(&self) -> Result<f64, ModelError> {
        let (mut zeros, mut count) = (0usize, 0usize);
        self.sums.each(|values| {
            count += values.len();
            zeros += values.iter().filter(|v| **v == 0.0).count();
        })?;
        Ok(if count == 0 { 1.0 } else { zeros as f64 / count as f64 })
    }

    fn zero(&mut self) {
        self.sums = Sums::default();
    }

    fn gradients(&self, model: &Trained) -> Result<Vec<Vec<f32>>, ModelError> {
        let (mut vectors, mut matrices) = (self.sums.vectors.iter(), self.sums.matrices.iter());
        let mut of = |parameter: ParamRef<'_>| match parameter {
            ParamRef::Vector(p) => match vectors.next().and_then(Option::as_ref) {
                Some(sum) => sum.try_to_vec_as::<f32>().map_err(ModelError::execution),
                None => Ok(vec![0.0; p.val().shape().num_elements()]),
            },
            ParamRef::Matrix(p) => match matrices.next().and_then(Option::as_ref) {
                Some(sum) => sum.try_to_vec_as::<f32>().map_err(ModelError::execution),
                None => Ok(vec![0.0; p.val().shape().num_elements()]),
            },
        };
        model.parameters().into_iter().map(|(_, parameter)| of(parameter)).collect()
    }

    fn take(&mut self, model: &Trained) -> GradientsParams {
        self.tape = None;
        let sums = std::mem::take(&mut self.sums);
        let (mut vectors, mut matrices) = (sums.vectors.into_iter(), sums.matrices.into_iter());
        let mut out = GradientsParams::new();
        for (_, parameter) in model.parameters() {
            match parameter {
                ParamRef::Vector(p) => {
                    let grad = vectors.next().flatten().unwrap_or_else(|| p.val().zeros_like());
                    out.register(p.id, grad);
                }
                ParamRef::Matrix(p) => {
                    let grad = matrices.next().flatten().unwrap_or_else(|| p.val().zeros_like());
                    out.register(p.id, grad);
                }
            }
        }
        out
    }
}

impl Sums {
    /// Adds the body's gradients and the head's.
    fn add(&mut self, model: &Trained, mut body: GradientsParams, mut dhead: Option<Tensor<2>>) {
        let head_id = model.decoder.head().id;
        let (mut v, mut m) = (0, 0);
        for (_, parameter) in model.parameters() {
            match parameter {
                ParamRef::Vector(p) => {
                    accumulate(&mut self.vectors, v, body.remove(p.id));
                    v += 1;
                }
                ParamRef::Matrix(p) => {
                    accumulate(&mut self.matrices, m, body.remove(p.id));
                    if p.id == head_id {
                        accumulate(&mut self.matrices, m, dhead.take());
                    }
                    m += 1;
                }
            }
        }
    }

    /// Shows every sum on the host, vectors first.
    fn each(&self, mut f: impl FnMut(&[f32])) -> Result<(), ModelError> {
        for v in self.vectors.iter().flatten() {
            f(&v.try_to_vec_as::<f32>().map_err(ModelError::execution)?);
        }
        for m in self.matrices.iter().flatten() {
            f(&m.try_to_vec_as::<f32>().map_err(ModelError::execution)?);
        }
        Ok(())
    }
}

fn accumulate<const D: usize>(sums: &mut Vec<Option<Tensor<D>>>, at: usize, grad: Option<Tensor<D>>) {
    if sums.len() <= at {
        sums.resize_with(at + 1, || None);
    }
    sums[at] = match (sums[at].take(), grad) {
        (Some(sum), Some(grad)) => Some(sum + grad),
        (sum, grad) => sum.or(grad),
    };
}
