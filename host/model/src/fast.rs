//! The kernels of prl-kernels over the module's own buffers. Owns the borrowing: parameters are read where burn keeps
//! them and gradients move into burn without a copy; must not compute anything itself.

use crate::host::Passes;
use crate::learner::{Rows, inverse};
use crate::sample::{CacheKind, answers, check_ids, check_no_adapter};
use crate::{
    Adapter, Answer, Cache, Decoder, Extend, ModelConfig, ModelError, Packed, ParamRef, Snapshot, Trained, names,
};
use burn::backend::Flex;
use burn::backend::flex::FlexTensor;
use burn::optim::GradientsParams;
use burn::tensor::{Device, Tensor, TensorData};
use prl_kernels::{
    Activations, AdapterLayer, AdapterView, Additions, Dims, Dropout, ExtendItem, Grads, HeadStats, KernelError,
    KvCache, LayerView, Meter, Rope, WeightsView,
};
use prl_types::TokenId;
use std::collections::BTreeSet;
use std::sync::Arc;

/// A decoder's parameters, shared with its tensors and kept alive by this.
#[derive(Clone)]
struct Weights {
    dims: Dims,
    rope: Rope,
    /// In the order of [`crate::names::parameters`], contiguous f32.
    tensors: Vec<FlexTensor>,
}

pub(crate) fn dims(config: &ModelConfig) -> Dims {
    Dims {
        layers: config.layers,
        hidden: config.hidden_size,
        heads: config.heads,
        kv_heads: config.kv_heads,
        head_dim: config.head_dim,
        ffn: config.intermediate_size,
        vocab: config.vocab_size,
        norm_eps: config.norm_eps,
        qk_norm: config.qk_norm(),
        qkv_bias: config.qkv_bias(),
        tied: config.tied,
    }
}

impl Weights {
    fn new(decoder: &Decoder) -> Result<Weights, ModelError> {
        let config = decoder.config();
        let (inv_freq, attention_factor) = config.rope.frequencies(config.head_dim);
        let tensors = decoder
            .parameters()
            .into_iter()
            .map(|p| match p {
                ParamRef::Vector(p) => contiguous(p.val()),
                ParamRef::Matrix(p) => contiguous(p.val()),
            })
            .collect::<Result<_, _>>()?;
        let weights = Weights { dims: dims(config), rope: Rope { inv_freq, attention_factor }, tensors };
        weights.view().validate().map_err(ModelError::execution)?;
        Ok(weights)
    }

    fn view(&self) -> WeightsView<'_> {
        let mut slices = self.tensors.iter().map(|t| t.as_slice::<f32>().unwrap_or_default());
        let mut next = || slices.next().unwrap_or_default();
        let (bias, norm) = (self.dims.qkv_bias, self.dims.qk_norm);
        let embed = next();
        let layers = (0..self.dims.layers)
            .map(|_| LayerView {
                input_norm: next(),
                q: next(),
                k: next(),
                v: next(),
                o: next(),
                q_bias: bias.then(&mut next),
                k_bias: bias.then(&mut next),
                v_bias: bias.then(&mut next),
                q_norm: norm.then(&mut next),
                k_norm: norm.then(&mut next),
                post_norm: next(),
                gate: next(),
                up: next(),
                down: next(),
            })
            .collect();
        let final_norm = next();
        let lm_head = (!self.dims.tied).then(next);
        WeightsView { dims: &self.dims, rope: &self.rope, embed, layers, final_norm, lm_head }
    }
}

/// The tensor's buffer itself if it is a contiguous f32 one, else a contiguous copy.
fn contiguous<const D: usize>(tensor: Tensor<D>) -> Result<FlexTensor, ModelError> {
    let device = format!("{:?}", tensor.device());
    let flex = tensor.try_into_primitive::<Flex>().map_err(|_| ModelError::Device {
        device,
        reason: "the CPU's kernels need the weights in main memory".into(),
    })?;
    Ok(if flex.as_slice::<f32>().is_some() { flex } else { flex.to_contiguous() })
}

/// Keys and values of one sequence, and the model they are of.
#[derive(Clone)]
pub(crate) struct Kv {
    pub(crate) cache: KvCache,
    /// Layers, key/value heads, head width.
    shape: [usize; 3],
}

impl Kv {
    pub(crate) fn len(&self) -> usize {
        self.cache.len()
    }
}

fn cache_shape(dims: &Dims) -> [usize; 3] {
    [dims.layers, dims.kv_heads, dims.head_dim]
}

/// Weights to sample from.
pub(crate) struct FastSnapshot {
    config: Arc<ModelConfig>,
    weights: Weights,
    /// What is added to them for everybody.
    own: Option<Adapter>,
}

impl FastSnapshot {
    pub(crate) fn new(model: &Trained) -> Result<Self, ModelError> {
        let own = model.lora.as_ref().map(|lora| lora.adapter());
        Ok(FastSnapshot { config: model.decoder.config().clone(), weights: Weights::new(&model.decoder)?, own })
    }
}

impl Snapshot for FastSnapshot {
    fn config(&self) -> &ModelConfig {
        &self.config
    }

    fn new_cache(&self, meter: &Meter) -> Cache {
        let dims = &self.weights.dims;
        Cache(CacheKind::Fast(Kv { cache: KvCache::new(dims, meter), shape: cache_shape(dims) }))
    }

    fn takes_adapters(&self) -> bool {
        self.own.is_none()
    }

    fn extend(&self, batch: &mut [Extend<'_>]) -> Result<Vec<Answer>, ModelError> {
        let mut items = Vec::with_capacity(batch.len());
        for item in batch {
            let CacheKind::Fast(Kv { cache, shape }) = &mut item.cache.0 else {
                return Err(ModelError::Input("a cache of another implementation".into()));
            };
            if *shape != cache_shape(&self.weights.dims) {
                return Err(ModelError::Input("a cache of another model".into()));
            }
            if item.ids.is_empty() {
                return Err(ModelError::Input("a sequence without new tokens".into()));
            }
            check_ids(item.ids, &self.config)?;
            if self.own.is_some() {
                check_no_adapter(item.adapter)?;
            }
            let adapter = item.adapter.or(self.own.as_ref()).map(Adapter::layers);
            let fits = |layers| AdapterView::new(layers, &self.weights.dims).map_err(unfit);
            let adapter = adapter.map(fits).transpose()?;
            items.push(ExtendItem { cache, ids: item.ids, logits: item.want.logits(item.ids.len()), adapter });
        }
        let logits = prl_kernels::extend(&self.weights.view(), &mut items);
        Ok(answers(&logits, self.config.vocab_size, items.iter().map(|item| item.logits)))
    }

    fn logprob(&self, logits: &[f32], id: TokenId, temperature: f32) -> f32 {
        prl_kernels::log_softmax_at(logits, inverse(temperature), id).logprob
    }
}

/// A forward pass up to the hidden states, and what it was of.
struct Body {
    weights: Weights,
    adapter: Vec<AdapterLayer>,
    scale: f32,
    dropout: Option<Dropout>,
    activations: Activations,
}

impl Body {
    fn forward(model: &Trained, dropout: Option<Dropout>, batch: &Packed) -> Result<Self, ModelError> {
        let weights = Weights::new(&model.decoder)?;
        let adapter = model.lora.as_ref().map(|lora| lora.layers()).unwrap_or_default();
        let scale = model.plan().map_or(1.0, |plan| plan.scale());
        let additions = additions(&weights, &adapter, scale, dropout.as_ref())?;
        let activations = prl_kernels::forward_with(&weights.view(), &additions, &batch.ids, &batch.doc_lens);
        Ok(Body { weights, adapter, scale, dropout, activations })
    }

    fn backward(self, dhidden: &[f32], grads: &mut Grads) -> Result<(), ModelError> {
        let additions = additions(&self.weights, &self.adapter, self.scale, self.dropout.as_ref())?;
        prl_kernels::backward_with(&self.weights.view(), &additions, self.activations, dhidden, grads);
        Ok(())
    }
}

/// What training adds to `weights`.
fn additions<'a>(
    weights: &'a Weights,
    adapter: &'a [AdapterLayer],
    scale: f32,
    dropout: Option<&'a Dropout>,
) -> Result<Additions<'a>, ModelError> {
    let adapter = AdapterView::new(adapter, &weights.dims);
    adapter.and_then(|adapter| Additions::new(adapter, scale, dropout)).map_err(unfit)
}

fn unfit(error: KernelError) -> ModelError {
    ModelError::Input(error.to_string())
}

/// What backward needs of the last forward.
struct Tape {
    body: Body,
    stats: HeadStats,
}

/// Forward and backward passes with the fused kernels.
pub(crate) struct FastPasses {
    head_chunk: usize,
    grads: Grads,
    tape: Option<Tape>,
}

/// No gradient yet of anything that is trained.
fn zeros(model: &Trained) -> Grads {
    let config = model.decoder.config();
    let Some(lora) = &model.lora else { return Grads::zeros(&dims(config)) };
    let infos = names::parameters(config);
    let trained = infos.iter().enumerate().filter(|(i, _)| lora.plan.saves(*i)).map(|(_, info)| info.name.as_str());
    let trained: BTreeSet<&str> = trained.collect();
    Grads::of(&dims(config), |name| trained.contains(name), &lora.layers())
}

impl FastPasses {
    pub(crate) fn new(model: &Trained, head_chunk: usize) -> Result<Self, ModelError> {
        // Tells weights that the kernels cannot take.
        Weights::new(&model.decoder)?;
        Ok(FastPasses { grads: zeros(model), head_chunk, tape: None })
    }
}

impl Passes for FastPasses {
    fn forward(
        &mut self,
        model: &Trained,
        dropout: Option<Dropout>,
        batch: &Packed,
        rows: &Rows,
    ) -> Result<(Vec<f32>, Vec<f32>), ModelError> {
        self.tape = None;
        let body = Body::forward(model, dropout, batch)?;
        let (view, hidden) = (body.weights.view(), body.activations.hidden());
        let stats = prl_kernels::head_stats(&view, hidden, &rows.labels, &rows.inv_temp, self.head_chunk);
        let out = (stats.logprob.clone(), stats.entropy.clone());
        self.tape = Some(Tape { body, stats });
        Ok(out)
    }

    fn backward(
        &mut self,
        _: &Trained,
        rows: &Rows,
        dlogprob: Vec<f32>,
        dentropy: Option<Vec<f32>>,
    ) -> Result<(), ModelError> {
        let Some(Tape { body, stats }) = self.tape.take() else {
            return Err(ModelError::Input("backward needs a forward pass before it".into()));
        };
        let dhidden = prl_kernels::head_backward(
            &body.weights.view(),
            body.activations.hidden(),
            &rows.labels,
            &rows.inv_temp,
            &stats,
            &dlogprob,
            dentropy.as_deref(),
            self.head_chunk,
            &mut self.grads,
        );
        body.backward(&dhidden, &mut self.grads)
    }

    fn forward_backward(
        &mut self,
        model: &Trained,
        dropout: Option<Dropout>,
        batch: &Packed,
        rows: &Rows,
        dlogprob: Vec<f32>,
    ) -> Result<Vec<f32>, ModelError> {
        self.tape = None;
        let body = Body::forward(model, dropout, batch)?;
        let (logprobs, dhidden) = prl_kernels::head_forward_backward(
            &body.weights.view(),
            body.activations.hidden(),
            &rows.labels,
            &rows.inv_temp,
            &dlogprob,
            self.head_chunk,
            &mut self.grads,
        );
        body.backward(&dhidden, &mut self.grads)?;
        Ok(logprobs)
    }

    fn norm(&self) -> Result<f64, ModelError> {
        Ok(self.grads.norm())
    }

    fn scale(&mut self, factor: f32) {
        self.grads.scale(factor);
    }

    fn zero_ratio(&self) -> Result<f64, ModelError> {
        Ok(self.grads.zeros_count() as f64 / self.grads.len().max(1) as f64)
    }

    fn zero(&mut self) {
        self.grads.zero();
    }

    fn gradients(&self, _model: &Trained) -> Result<Vec<Vec<f32>>, ModelError> {
        Ok(self.grads.slices().into_iter().filter(|g| !g.is_empty()).map(<[f32]>::to_vec).collect())
    }

    fn take(&mut self, model: &Trained) -> GradientsParams {
        self.tape = None;
        let mut grads = std::mem::replace(&mut self.grads, zeros(model));
        let device = model.decoder.device();
        let mut out = GradientsParams::new();
        // Those of what is frozen are empty.
        let trained = grads.iter_mut().map(|(_, values)| values).filter(|values| !values.is_empty());
        for ((_, parameter), values) in model.parameters().into_iter().zip(trained) {
            let values = std::mem::take(values);
            match parameter {
                ParamRef::Vector(p) => out.register(p.id, tensor::<1>(values, p.val().dims(), &device)),
                ParamRef::Matrix(p) => out.register(p.id, tensor::<2>(values, p.val().dims(), &device)),
            }
        }
        out
    }
}

fn tensor<const D: usize>(values: Vec<f32>, shape: [usize; D], device: &Device) -> Tensor<D> {
    Tensor::from_data(TensorData::new(values, shape), device)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is frozen is where it was after an update, for training and for all that sample; only an adapter is copied.
    #[test]
    fn snapshots_of_an_adapter_share_what_is_frozen() {
        let text = r#"{"model_type": "qwen3", "vocab_size": 19, "hidden_size": 16, "num_hidden_layers": 1,
            "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "intermediate_size": 24,
            "tie_word_embeddings": true}"#;
        let config = ModelConfig::parse(text, std::path::Path::new("config.json")).unwrap();
        let decoder = Decoder::init(config.clone(), 3, &crate::Device::Cpu.open().unwrap());
        let names = ["q_proj", "norm"].map(|name| vec![name.to_owned()]);
        let [target_modules, modules_to_save] = names;
        let options = crate::LoraOptions { rank: 2, alpha: 4.0, dropout: 0.0, target_modules, modules_to_save };
        let plan = crate::LoraPlan::new(options, &config).unwrap();
        let mut host = crate::HostLearner::new(Trained::adapter(decoder, plan, 1), crate::Kernels::Fast, 4, 1).unwrap();
        let snapshot = |host: &crate::HostLearner| FastSnapshot::new(host.model()).unwrap();
        let before = snapshot(&host);
        let mut sgd = burn::optim::SgdConfig::new().init();
        host.update(|model, grads| sgd.step(0.1, model, grads));
        let after = snapshot(&host);
        let place = |t: &FlexTensor| t.as_slice::<f32>().unwrap().as_ptr();
        for ((info, a), b) in names::parameters(&config).iter().zip(&before.weights.tensors).zip(&after.weights.tensors)
        {
            assert_eq!(place(a) == place(b), info.name != "model.norm.weight", "{}", info.name);
        }
        // And its checksum is that of the run: what comes later knows it.
        let checksum = host.model().frozen_checksum().unwrap();
        host.update(|model, grads| sgd.step(0.1, model, grads));
        let known = host.model().clone().lora.unwrap().frozen.get().copied();
        assert!(known.is_some() && known == checksum);
    }

    #[test]
    fn weights_are_read_where_burn_keeps_them_and_gradients_move_without_a_copy() {
        let device = crate::Device::Cpu.open().unwrap();
        let values = vec![1.0f32; 12];
        let address = values.as_ptr();
        let grad = tensor::<2>(values, [3, 4], &device);
        let flex = contiguous(grad.clone()).unwrap();
        assert_eq!(flex.as_slice::<f32>().unwrap().as_ptr(), address);
        // A view in another order is copied, not misread.
        let turned = contiguous(grad.transpose()).unwrap();
        assert_eq!(turned.as_slice::<f32>().unwrap().len(), 12);
    }
}
