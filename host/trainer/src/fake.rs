//! Made-up documents and batches, so that training can be measured without data, environments or an engine.
//!
//! Owns what they look like. Must not know who trains on them. Everything is a pure function of settings, seed and number.

use crate::Document;
use prl_config::{FakeBatches, FakeData, FakeIds, FakeLength};
use prl_types::{Batch, BatchItem, FinishReason, PolicyVersion, Sample, SampleError, Sampled, Step, Streams, TokenId};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// Ids of a row that is one document lie below this; those of several documents below the other one.
const IDS_OF_ONE: usize = 100;
const IDS_OF_SEVERAL: usize = 120_000;

/// Document `n` of an endless supply. All tokens but the first are targets. `data.seq_len` must be at least 2.
pub fn fake_document(data: &FakeData, vocab_size: usize, n: u64) -> Document {
    let mut rng = stream(data.seed, n, 0);
    let len = match data.length {
        FakeLength::Fixed => data.seq_len,
        FakeLength::Variable => between(&mut rng, 2, data.seq_len),
    };
    let ids = match data.input_ids {
        FakeIds::Increasing => vec![(n % vocab_size as u64) as TokenId; len],
        FakeIds::Random => ids(&mut rng, vocab_size, len),
    };
    Document { ids, mask: vec![true; len] }
}

/// The batch of a step: `data.batch_size` rows of `seq_len` tokens, all of them sampled, with log-probabilities and
/// advantages drawn from the standard normal distribution. A row is one sample, or several of at most an eighth of it.
///
/// # Errors
/// None that the draws can bring about; those of [`BatchItem::new`] in type.
pub fn fake_batch(
    data: &FakeBatches,
    seq_len: usize,
    vocab_size: usize,
    seed: u64,
    step: Step,
) -> Result<Batch, SampleError> {
    let mut items = Vec::new();
    for row in 0..data.batch_size as u64 {
        let mut rng = stream(seed, step, row + 1);
        if data.generate_samples {
            let below = vocab_size.min(IDS_OF_SEVERAL);
            for len in lengths(&mut rng, seq_len) {
                items.push(item(&mut rng, below, len, step)?);
            }
        } else {
            items.push(item(&mut rng, vocab_size.min(IDS_OF_ONE), seq_len, step)?);
        }
    }
    Ok(Batch { step, items })
}

/// Lengths that fill a row: at least 2 tokens each, because the first of a document is predicted from nothing.
fn lengths(rng: &mut ChaCha8Rng, seq_len: usize) -> Vec<usize> {
    let mut lens = Vec::new();
    let mut left = seq_len;
    while left > 0 {
        let len = between(rng, 2, seq_len / 8).min(left);
        // A single token at the end would train nothing.
        let len = if left - len == 1 { left } else { len };
        lens.push(len);
        left -= len;
    }
    lens
}

fn item(rng: &mut ChaCha8Rng, below: usize, len: usize, step: Step) -> Result<BatchItem, SampleError> {
    let ids = ids(rng, below, len);
    let version = PolicyVersion(step.saturating_sub(1));
    let sampled = Sampled::from_engine(ids, normals(rng, len), (version, version), FinishReason::Length)?;
    let mut sample = Sample::from_prompt(&[], Vec::new(), 1.0);
    sample.push_sampled(&sampled);
    BatchItem::new("fake".into(), sample, Streams { advantages: Some(normals(rng, len)), ..Streams::default() })
}

fn stream(seed: u64, a: u64, b: u64) -> ChaCha8Rng {
    let mut key = [0u8; 32];
    for (slot, word) in key.chunks_exact_mut(8).zip([seed, a, b, u64::from_le_bytes(*b"fakedata")]) {
        slot.copy_from_slice(&word.to_le_bytes());
    }
    ChaCha8Rng::from_seed(key)
}

/// Uniform in 0..n up to n · 2^-64.
fn below(rng: &mut ChaCha8Rng, n: usize) -> usize {
    ((u128::from(rng.next_u64()) * n as u128) >> 64) as usize
}

/// Uniform in low..=high; `low` where that is empty.
fn between(rng: &mut ChaCha8Rng, low: usize, high: usize) -> usize {
    low + below(rng, high.saturating_sub(low) + 1)
}

fn ids(rng: &mut ChaCha8Rng, n: usize, len: usize) -> Vec<TokenId> {
    (0..len).map(|_| below(rng, n) as TokenId).collect()
}

/// Box–Muller.
fn normals(rng: &mut ChaCha8Rng, len: usize) -> Vec<f32> {
    // In (0, 1], so that the logarithm is finite.
    let mut unit = || ((rng.next_u64() >> 11) + 1) as f64 / (1u64 << 53) as f64;
    let mut out = Vec::with_capacity(len + 1);
    while out.len() < len {
        let (radius, angle) = ((-2.0 * unit().ln()).sqrt(), std::f64::consts::TAU * unit());
        out.extend([(radius * angle.cos()) as f32, (radius * angle.sin()) as f32]);
    }
    out.truncate(len);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_are_as_asked_for() {
        let document = |data: &FakeData, n| fake_document(data, 50, n);
        let fixed = FakeData { seq_len: 8, ..FakeData::default() };
        assert_eq!(document(&fixed, 53), Document { ids: vec![3; 8], mask: vec![true; 8] });
        let random = FakeData { input_ids: FakeIds::Random, length: FakeLength::Variable, ..fixed };
        let all: Vec<Document> = (0..200).map(|n| document(&random, n)).collect();
        let lens: Vec<usize> = all.iter().map(|d| d.ids.len()).collect();
        assert_eq!((lens.iter().min(), lens.iter().max()), (Some(&2), Some(&8)));
        assert!(all.iter().flat_map(|d| &d.ids).all(|id| *id < 50));
        assert_eq!(all[7], document(&random, 7));
        assert_ne!(all[7].ids, document(&FakeData { seed: 1, ..random }, 7).ids);
    }

    #[test]
    fn batches_fill_their_rows_with_noise() {
        let data = FakeBatches { batch_size: 3, generate_samples: false };
        let batch = fake_batch(&data, 1000, 5000, 7, 4).unwrap();
        assert_eq!(batch.items.len(), 3);
        assert_ne!(batch.items[0].sample, batch.items[1].sample);
        for item in &batch.items {
            assert!(item.sample.len() == 1000 && item.sample.mask().iter().all(|m| *m));
            assert!(item.sample.token_ids().iter().all(|id| *id < 100));
            for values in [item.sample.logprobs(), item.streams.advantages.as_ref().unwrap()] {
                let mean = values.iter().sum::<f32>() / 1000.0;
                let variance = values.iter().map(|v| v * v).sum::<f32>() / 1000.0;
                assert!(mean.abs() < 0.15 && (variance - 1.0).abs() < 0.2, "{mean} {variance}");
            }
        }
        assert_eq!(batch, fake_batch(&data, 1000, 5000, 7, 4).unwrap());
        assert_ne!(batch.items, fake_batch(&data, 1000, 5000, 7, 5).unwrap().items);
        assert!(fake_batch(&data, 10, 4, 0, 1).unwrap().items[0].sample.token_ids().iter().all(|id| *id < 4));
    }

    #[test]
    fn rows_of_several_documents_are_as_full() {
        let data = FakeBatches { batch_size: 2, generate_samples: true };
        for seq_len in [2, 3, 9, 17, 100, 512] {
            for step in 1..20 {
                let batch = fake_batch(&data, seq_len, 5000, 0, step).unwrap();
                let lens: Vec<usize> = batch.items.iter().map(|i| i.sample.len()).collect();
                assert_eq!(lens.iter().sum::<usize>(), 2 * seq_len);
                assert!(lens.iter().all(|len| (2..=(seq_len / 8).max(2) + 1).contains(len)), "{lens:?}");
            }
        }
    }
}
