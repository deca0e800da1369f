//! A call whose passes are enqueued: what it holds until they are done, and its answers.
//!
//! Owns the page-locked memory that a pass is read from and to. Must not know what is computed.

use std::sync::{Arc, PoisonError};

use cudarc::driver::CudaEvent;
use rayon::prelude::*;

use crate::cuda::context::driver;
use crate::cuda::{Context, CudaError, Pinned};

use super::pass::{Pass, Place};
use super::sampling::{Answer, Score, Workspace};
use super::weights::Weights;

/// Page-locked memory of one pass.
#[derive(Default)]
pub(super) struct Slot {
    pub inputs: Option<Pinned<u8>>,
    /// Pairs of a token and the bits of its log-probability.
    pub drawn: Option<Pinned<i32>>,
    pub logits: Option<Pinned<f32>>,
    pub scores: Option<Pinned<i32>>,
}

/// Page-locked memory for `len` elements, the old one if it suffices.
pub(super) fn room<'a, T>(
    c: &Context,
    memory: &'a mut Option<Pinned<T>>,
    len: usize,
) -> Result<&'a mut Pinned<T>, CudaError>
where
    T: cudarc::driver::DeviceRepr + cudarc::driver::ValidAsZeroBits,
{
    match memory.take().filter(|m| m.len() >= len) {
        Some(enough) => Ok(memory.insert(enough)),
        None => Ok(memory.insert(c.pinned(len.next_power_of_two())?)),
    }
}

/// A pass that is enqueued.
pub(super) struct Part {
    pub pass: Pass,
    pub slot: Slot,
}

/// A call whose answers are not there yet.
pub struct Underway<T> {
    pub(super) parts: Vec<Part>,
    pub(super) items: usize,
    pub(super) vocab: usize,
    pub(super) done: CudaEvent,
    pub(super) work: Workspace,
    /// Which may be freed on another stream, but not before it is done.
    pub(super) _weights: Arc<Weights<T>>,
}

impl<T> Drop for Underway<T> {
    fn drop(&mut self) {
        // What fails here has failed, or will fail, in the operation itself.
        let _ = self.done.synchronize();
    }
}

impl<T> Underway<T> {
    /// Waits for the answers of those items that want something, in order.
    ///
    /// # Errors
    /// If an operation failed on the GPU.
    pub fn finish(mut self) -> Result<Vec<Answer>, CudaError> {
        self.done.synchronize().map_err(driver("waiting for the GPU"))?;
        let mut answers: Vec<Option<Answer>> = (0..self.items).map(|_| None).collect();
        for Part { pass, slot } in &mut self.parts {
            for (item, answer) in given(pass, slot, self.vocab)? {
                answers[item] = Some(answer);
            }
        }
        let mut work = self.work.0.lock().unwrap_or_else(PoisonError::into_inner);
        work.slots.extend(self.parts.drain(..).map(|part| part.slot));
        Ok(answers.into_iter().flatten().collect())
    }
}

/// Items of a pass that is done, and their answers.
fn given(pass: &Pass, slot: &mut Slot, vocab: usize) -> Result<Vec<(usize, Answer)>, CudaError> {
    let drawn: &[i32] = contents(&mut slot.drawn)?;
    let logits: &[f32] = contents(&mut slot.logits)?;
    let scores: &[i32] = contents(&mut slot.scores)?;
    let words = Context::score_words(pass.most);
    let answer = |(item, place): &(usize, Place)| {
        let answer = match place {
            Place::Token(i) => Answer::Token(drawn[2 * i] as u32, bits(drawn[2 * i + 1])),
            Place::Logits(rows) => Answer::Logits(logits[rows.start * vocab..rows.end * vocab].to_vec()),
            Place::Scores(rows, most) => {
                let rows = scores[rows.start * words..rows.end * words].chunks_exact(words);
                Answer::Scores(rows.map(|row| score(row, *most)).collect())
            }
        };
        (*item, answer)
    };
    // Rows of logits are large.
    let much = pass.places.iter().any(|(_, place)| !matches!(place, Place::Token(_)));
    Ok(if much { pass.places.par_iter().map(answer).collect() } else { pass.places.iter().map(answer).collect() })
}

fn contents<T: cudarc::driver::ValidAsZeroBits>(memory: &mut Option<Pinned<T>>) -> Result<&[T], CudaError> {
    memory.as_mut().map_or(Ok(&[]), Pinned::as_slice)
}

fn bits(x: i32) -> f32 {
    f32::from_bits(x as u32)
}

/// A row of what [`Context::score`] writes.
fn score(row: &[i32], most: usize) -> Score {
    let top = row[2..].chunks_exact(2).take(most).map(|pair| (pair[0] as u32, bits(pair[1]))).collect();
    Score { logprob: bits(row[0]), rank: row[1] as u32, top }
}
