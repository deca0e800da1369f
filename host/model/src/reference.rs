//! The decoder in plain burn operations: any device, autodiff for the body, the head differentiated by hand in chunks.
//! Owns being easy to check; must not know speed.

mod body;
mod head;
mod passes;

pub(crate) use passes::ReferencePasses;

use crate::sample::{CacheKind, answers, check_ids, check_no_adapter};
use crate::{Answer, Cache, Extend, ModelConfig, ModelError, Snapshot, Trained};
use body::{Body, Past};
use burn::tensor::Tensor;
use prl_kernels::{Held, Meter};
use prl_types::TokenId;

/// Keys and values of one sequence: per layer a pair of `[kv_heads, len, head_dim]`. A clone counts anew: tensors are made
/// anew with every token.
#[derive(Clone)]
pub(crate) struct Kv {
    layers: Vec<(Tensor<3>, Tensor<3>)>,
    len: usize,
    /// Bytes of a token.
    width: usize,
    meter: Meter,
    held: Held,
}

impl Kv {
    fn new(config: &ModelConfig, meter: &Meter) -> Self {
        let width = 2 * config.layers * config.kv_heads * config.head_dim * size_of::<f32>();
        Kv { layers: Vec::new(), len: 0, width, meter: meter.clone(), held: meter.hold(0) }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn truncate(&mut self, len: usize) {
        if len < self.len {
            let cut = |x: &Tensor<3>| x.clone().narrow(1, 0, len);
            let layers =
                if len == 0 { Vec::new() } else { self.layers.iter().map(|(k, v)| (cut(k), cut(v))).collect() };
            self.set(layers, len);
        }
    }

    pub(crate) fn growth(&self, more: usize) -> usize {
        more * self.width
    }

    fn set(&mut self, layers: Vec<(Tensor<3>, Tensor<3>)>, len: usize) {
        (self.layers, self.len, self.held) = (layers, len, self.meter.hold(len * self.width));
    }
}

/// Weights to sample from.
pub(crate) struct ReferenceSnapshot {
    model: Trained,
}

impl ReferenceSnapshot {
    pub(crate) fn new(model: &Trained) -> Self {
        ReferenceSnapshot { model: model.clone() }
    }
}

impl Snapshot for ReferenceSnapshot {
    fn config(&self) -> &ModelConfig {
        self.model.decoder.config()
    }

    fn new_cache(&self, meter: &Meter) -> Cache {
        Cache(CacheKind::Reference(Kv::new(self.config(), meter)))
    }

    fn extend(&self, batch: &mut [Extend<'_>]) -> Result<Vec<Answer>, ModelError> {
        let layers = self.config().layers;
        let mut ids = Vec::new();
        let mut lens = Vec::new();
        let mut pasts = Vec::new();
        for item in batch.iter() {
            let CacheKind::Reference(kv) = &item.cache.0 else {
                return Err(ModelError::Input("a cache of another implementation".into()));
            };
            if kv.len > 0 && kv.layers.len() != layers {
                return Err(ModelError::Input(format!("a cache of {} layers for {layers}", kv.layers.len())));
            }
            if item.ids.is_empty() {
                return Err(ModelError::Input("a sequence without new tokens".into()));
            }
            check_ids(item.ids, self.config())?;
            check_no_adapter(item.adapter)?;
            ids.extend_from_slice(item.ids);
            lens.push(item.ids.len());
            pasts.push(Past { layers: kv.layers.clone(), len: kv.len });
        }
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let body = Body::new(&self.model, None);
        let hidden = body.forward(&ids, &lens, Some(&mut pasts));

        let mut last = Vec::new();
        let mut end = 0;
        for (item, past) in batch.iter_mut().zip(pasts) {
            end += item.ids.len();
            last.extend((end - item.want.logits(item.ids.len())..end).map(|row| row as i32));
            if let CacheKind::Reference(kv) = &mut item.cache.0 {
                kv.set(past.layers, past.len);
            }
        }
        if last.is_empty() {
            return Ok(Vec::new());
        }
        let rows = hidden.select(0, Tensor::from_ints(&last[..], &self.model.decoder.device()));
        let logits = rows.matmul(self.model.decoder.head().val().transpose());
        let logits = logits.try_into_vec_as::<f32>().map_err(ModelError::execution)?;
        let rows = batch.iter().map(|item| item.want.logits(item.ids.len()));
        Ok(answers(&logits, self.config().vocab_size, rows))
    }

    fn logprob(&self, logits: &[f32], id: TokenId, temperature: f32) -> f32 {
        head::logprob(logits, id, temperature)
    }
}
