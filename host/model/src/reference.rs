//! The decoder in plain burn operations: any device, autodiff for the body, the head differentiated by hand in chunks.
//! Owns being easy to check; must not know speed.

mod body;
mod head;
mod passes;

pub(crate) use passes::ReferencePasses;

use crate::sample::{CacheKind, answers, check_ids};
use crate::{Answer, Cache, Decoder, Extend, ModelConfig, ModelError, Snapshot, Want};
use body::{Body, Past};
use burn::tensor::Tensor;
use prl_types::TokenId;

/// Keys and values of one sequence: per layer a pair of `[kv_heads, len, head_dim]`.
#[derive(Clone, Default)]
pub(crate) struct Kv {
    layers: Vec<(Tensor<3>, Tensor<3>)>,
    len: usize,
}

impl Kv {
    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

/// Weights to sample from.
pub(crate) struct ReferenceSnapshot {
    decoder: Decoder,
}

impl ReferenceSnapshot {
    pub(crate) fn new(decoder: &Decoder) -> Self {
        ReferenceSnapshot { decoder: decoder.clone() }
    }
}

impl Snapshot for ReferenceSnapshot {
    fn config(&self) -> &ModelConfig {
        self.decoder.config()
    }

    fn new_cache(&self) -> Cache {
        Cache(CacheKind::Reference(Kv::default()))
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
            ids.extend_from_slice(item.ids);
            lens.push(item.ids.len());
            pasts.push(Past { layers: kv.layers.clone(), len: kv.len });
        }
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let body = Body::new(&self.decoder);
        let hidden = body.forward(&ids, &lens, Some(&mut pasts));

        let mut last = Vec::new();
        let mut end = 0;
        for (item, past) in batch.iter_mut().zip(pasts) {
            end += item.ids.len();
            if item.want != Want::Nothing {
                last.push((end - 1) as i32);
            }
            item.cache.0 = CacheKind::Reference(Kv { layers: past.layers, len: past.len });
        }
        if last.is_empty() {
            return Ok(Vec::new());
        }
        let rows = hidden.select(0, Tensor::from_ints(&last[..], &self.decoder.device()));
        let logits = rows.matmul(self.decoder.head().val().transpose());
        let logits = logits.try_into_vec_as::<f32>().map_err(ModelError::execution)?;
        Ok(answers(&logits, self.config().vocab_size))
    }

    fn logprob(&self, logits: &[f32], id: TokenId, temperature: f32) -> f32 {
        head::logprob(logits, id, temperature)
    }
}
