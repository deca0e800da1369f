//! The columns of a packed micro-batch, borrowed: the host hands out the trainer's lists, test harnesses made-up numbers,
//! neither with a copy. Knows which column has which type and axis, and nothing of what the numbers mean.

use crate::ids::{axis, col, dtype};
use crate::{Batch, Column};
use alloc::vec::Vec;
use core::marker::PhantomData;

/// Columns of one micro-batch, one list per column that `prl.h` names at `prl_batch`. Token lists have one entry a token,
/// `token_start` one more than there are samples.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)] // one field per column, documented in prl.h under the same name
pub struct BatchColumns<'a> {
    pub normalizer: f64,
    pub token_start: &'a [u64],
    pub temperature: &'a [f32],
    pub version_min: &'a [u64],
    pub version_max: &'a [u64],
    pub token_id: &'a [u32],
    pub mask: &'a [u8],
    pub trainer_logprob: &'a [f32],
    pub sampling_logprob: &'a [f32],
    pub ref_logprob: Option<&'a [f32]>,
    pub advantage: &'a [f32],
    pub rl_weight: &'a [f32],
    pub entropy: Option<&'a [f32]>,
}

impl<'a> BatchColumns<'a> {
    /// The first list whose length does not fit the number of tokens or samples, as its name, length and due length.
    pub fn misfit(&self) -> Option<(&'static str, usize, usize)> {
        let (tokens, samples) = (self.token_id.len(), self.temperature.len());
        let optional = |list: Option<&[f32]>| list.map_or(tokens, <[f32]>::len);
        [
            ("token_start", self.token_start.len(), samples + 1),
            ("version_min", self.version_min.len(), samples),
            ("version_max", self.version_max.len(), samples),
            ("mask", self.mask.len(), tokens),
            ("trainer_logprob", self.trainer_logprob.len(), tokens),
            ("sampling_logprob", self.sampling_logprob.len(), tokens),
            ("ref_logprob", optional(self.ref_logprob), tokens),
            ("advantage", self.advantage.len(), tokens),
            ("rl_weight", self.rl_weight.len(), tokens),
            ("entropy", optional(self.entropy), tokens),
        ]
        .into_iter()
        .find(|(_, len, due)| len != due)
    }

    /// The columns as they cross the border. The lists must fit, see [`BatchColumns::misfit`].
    pub fn view(&self) -> BatchView<'a> {
        let mut columns = Vec::with_capacity(12);
        let mut push = |id, dtype, axis, len, ptr| columns.push(Column { id, dtype, axis, width: 1, len, ptr });
        macro_rules! column {
            ($id:ident, $dtype:ident, $axis:ident, $list:expr) => {
                push(col::$id, dtype::$dtype, axis::$axis, $list.len(), $list.as_ptr().cast())
            };
        }
        column!(TOKEN_START, U64, SAMPLE, self.token_start);
        column!(TEMPERATURE, F32, SAMPLE, self.temperature);
        column!(VERSION_MIN, U64, SAMPLE, self.version_min);
        column!(VERSION_MAX, U64, SAMPLE, self.version_max);
        column!(TOKEN_ID, U32, TOKEN, self.token_id);
        column!(MASK, U8, TOKEN, self.mask);
        column!(TRAINER_LOGPROB, F32, TOKEN, self.trainer_logprob);
        column!(SAMPLING_LOGPROB, F32, TOKEN, self.sampling_logprob);
        if let Some(list) = self.ref_logprob {
            column!(REF_LOGPROB, F32, TOKEN, list);
        }
        column!(ADVANTAGE, F32, TOKEN, self.advantage);
        column!(RL_WEIGHT, F32, TOKEN, self.rl_weight);
        if let Some(list) = self.entropy {
            column!(ENTROPY, F32, TOKEN, list);
        }
        let raw = Batch {
            struct_size: size_of::<Batch>() as u32,
            n_columns: columns.len() as u32,
            columns: columns.as_ptr(),
            n_samples: self.temperature.len(),
            n_tokens: self.token_id.len(),
            normalizer: self.normalizer,
        };
        BatchView { raw, _columns: columns, _data: PhantomData }
    }
}

/// A [`Batch`] whose pointers are valid while this lives.
pub struct BatchView<'a> {
    raw: Batch,
    _columns: Vec<Column>,
    _data: PhantomData<&'a ()>,
}

impl BatchView<'_> {
    /// What a plug-in gets.
    pub fn raw(&self) -> &Batch {
        &self.raw
    }
}
