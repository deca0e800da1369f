//! Every operation against its reference, stored as bf16 and as f32, on odd sizes, one token and many short documents.
//!
//! Owns which checks there are. Must not know their shapes.

mod attention;
mod buffers;
mod decode;
mod draws;
mod exact;
mod far;
mod products;
mod rows;
mod steps;

use std::path::Path;

use prl_kernels::cuda::{Context, CudaError, Element, bf16};

use crate::bench::{Random, Table};

type Done = Result<(), CudaError>;

/// Head dimensions that attention is checked with.
pub const HEAD_DIMS: [usize; 6] = [16, 32, 64, 80, 96, 128];

/// What to check: everything, or less.
#[derive(Clone, Copy)]
pub struct Only<'a> {
    /// One topic.
    pub topic: Option<&'a str>,
    /// One head dimension of attention.
    pub dim: Option<usize>,
    /// Attention over few tokens.
    pub small: bool,
    /// Folder of compiled kernels.
    pub cache: Option<&'a Path>,
}

impl Only<'_> {
    fn dims(self) -> impl Iterator<Item = usize> {
        HEAD_DIMS.into_iter().filter(move |d| self.dim.is_none_or(|only| only == *d))
    }
}

pub fn all(c: &Context, r: &mut Random, t: &mut Table, only: Only<'_>) -> Done {
    if only.topic.is_none_or(|t| t == "buffers") {
        buffers::all(c, t)?;
    }
    if only.topic.is_none_or(|t| t == "draws") {
        draws::draws(c, r, t)?;
    }
    if only.topic.is_none_or(|t| t == "exact") {
        exact::exact(only.cache, r, t, only)?;
    }
    of::<bf16>(c, r, t, only)?;
    of::<f32>(c, r, t, only)
}

fn of<T: Element>(c: &Context, r: &mut Random, t: &mut Table, only: Only<'_>) -> Done {
    let wanted = |name: &str| only.topic.is_none_or(|t| t == name);
    if wanted("products") {
        products::products::<T>(c, r, t)?;
        products::few::<T>(c, r, t)?;
    }
    if wanted("rows") {
        rows::norms::<T>(c, r, t)?;
        rows::ropes::<T>(c, r, t)?;
        rows::swiglu::<T>(c, r, t)?;
        rows::embeddings::<T>(c, r, t)?;
        rows::biases::<T>(c, r, t)?;
    }
    if wanted("steps") {
        steps::head::<T>(c, r, t)?;
        steps::steps::<T>(c, r, t)?;
    }
    if wanted("attention") {
        attention::attentions::<T>(c, r, t, only)?;
    }
    if wanted("far") {
        for dim in only.dims().filter(|d| matches!(d, 64 | 128)) {
            far::far::<T>(c, r, t, &[65_536], dim)?;
            far::far::<T>(c, r, t, &[20_001, 2, 45_533], dim)?;
        }
    }
    if wanted("decode") {
        decode::caches::<T>(c, r, t, only)?;
    }
    Ok(())
}
