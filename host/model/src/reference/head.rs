//! The output projection in two passes over chunks of rows, so that no buffer of [tokens × vocab] exists: statistics
//! first, gradients once the caller knows what it wants of them. Owns these formulas; must not know the body.

use crate::ModelError;
use crate::learner::inverse;
use burn::tensor::{Device, IndexingUpdateOp, Int, Tensor, TensorData};
use prl_types::TokenId;

/// Per row, on the device, as `[rows, 1]`.
pub(super) struct Stats {
    labels: Tensor<2, Int>,
    inv_temp: Tensor<2>,
    /// log Σ exp(logits / temperature).
    log_z: Tensor<2>,
    /// Entropy of softmax(logits / temperature).
    entropy: Tensor<2>,
}

/// Logprob of each row's label and entropy: l = inv_temp · (h·Wᵀ), log p = l[label] - log Σ exp l,
/// H = log Σ exp l - Σ p·l.
pub(super) fn forward(
    weight: Tensor<2>,
    hidden: Tensor<2>,
    labels: &[TokenId],
    inv_temp: &[f32],
    chunk: usize,
) -> Result<(Stats, (Vec<f32>, Vec<f32>)), ModelError> {
    let device = weight.device();
    let n = labels.len();
    let labels: Vec<i32> = labels.iter().map(|l| *l as i32).collect();
    let labels = Tensor::<2, Int>::from_data(TensorData::new(labels, [n, 1]), &device);
    let inv_temp = column(inv_temp, &device);
    let (mut logprobs, mut log_zs, mut entropies) = (Vec::new(), Vec::new(), Vec::new());
    for (start, len) in chunks(n, chunk) {
        let l = scaled_logits(&weight, &hidden, &inv_temp, start, len);
        let max = l.clone().max_dim(1);
        let exp = (l.clone() - max.clone()).exp();
        let sum = exp.clone().sum_dim(1);
        let log_z = max + sum.clone().log();
        logprobs.push(l.clone().gather(1, labels.clone().narrow(0, start, len)) - log_z.clone());
        entropies.push(log_z.clone() - (exp * l).sum_dim(1) / sum);
        log_zs.push(log_z);
    }
    let (logprobs, log_z, entropy) = (Tensor::cat(logprobs, 0), Tensor::cat(log_zs, 0), Tensor::cat(entropies, 0));
    let out = (
        logprobs.try_into_vec_as::<f32>().map_err(ModelError::execution)?,
        entropy.try_to_vec_as::<f32>().map_err(ModelError::execution)?,
    );
    Ok((Stats { labels, inv_temp, log_z, entropy }, out))
}

/// Gradients of Σ g·log p + e·H with respect to the hidden states and, where it is `trained`, the weight:
/// dl = g·(onehot - p) - e·p·(log p + H), dlogits = inv_temp · dl.
pub(super) fn backward(
    weight: Tensor<2>,
    hidden: Tensor<2>,
    stats: &Stats,
    dlogprob: &[f32],
    dentropy: Option<&[f32]>,
    (chunk, trained): (usize, bool),
) -> (Tensor<2>, Option<Tensor<2>>) {
    let device = weight.device();
    let g = column(dlogprob, &device);
    let e = dentropy.map(|e| column(e, &device));
    let mut dhidden = Vec::new();
    let mut dweight = trained.then(|| weight.zeros_like());
    for (start, len) in chunks(dlogprob.len(), chunk) {
        let part = |x: &Tensor<2>| x.clone().narrow(0, start, len);
        let log_p = scaled_logits(&weight, &hidden, &stats.inv_temp, start, len) - part(&stats.log_z);
        let p = log_p.clone().exp();
        let mut dl = (p.clone() * part(&g)).neg();
        if let Some(e) = &e {
            dl = dl - p * (log_p + part(&stats.entropy)) * part(e);
        }
        let dl = dl.scatter(1, stats.labels.clone().narrow(0, start, len), part(&g), IndexingUpdateOp::Add);
        let dlogits = dl * part(&stats.inv_temp);
        dweight = dweight.map(|sum| sum + dlogits.clone().transpose().matmul(part(&hidden)));
        dhidden.push(dlogits.matmul(weight.clone()));
    }
    (Tensor::cat(dhidden, 0), dweight)
}

/// log softmax(logits / temperature)[id] on the host.
pub(super) fn logprob(logits: &[f32], id: TokenId, temperature: f32) -> f32 {
    let scale = inverse(temperature);
    let max = logits.iter().fold(f32::NEG_INFINITY, |m, l| m.max(l * scale));
    let sum: f32 = logits.iter().map(|l| (l * scale - max).exp()).sum();
    logits[id as usize] * scale - (max + sum.ln())
}

fn scaled_logits(weight: &Tensor<2>, hidden: &Tensor<2>, inv_temp: &Tensor<2>, start: usize, len: usize) -> Tensor<2> {
    let rows = hidden.clone().narrow(0, start, len);
    rows.matmul(weight.clone().transpose()) * inv_temp.clone().narrow(0, start, len)
}

fn column(values: &[f32], device: &Device) -> Tensor<2> {
    Tensor::from_data(TensorData::new(values.to_vec(), [values.len(), 1]), device)
}

fn chunks(n: usize, chunk: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..n).step_by(chunk).map(move |start| (start, chunk.min(n - start)))
}
