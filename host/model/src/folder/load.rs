//! Reading weights. Owns the check that a file holds exactly the tensors the config asks for.

use super::weight_files;
use crate::names::{self, ParameterInfo};
use crate::{Decoder, ModelConfig, ModelError};
use burn::tensor::Device;
use half::{bf16, f16};
use memmap2::Mmap;
use rayon::prelude::*;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};

impl Decoder {
    /// Loads a model folder: `config.json` and safetensors in one file or several with an index, in f32, bf16 or f16,
    /// widened to f32.
    ///
    /// # Errors
    /// Names the file and the tensor: a folder or file that is missing, damaged or cut short, a tensor that is
    /// missing, superfluous, of another shape or of a type that is not supported.
    pub fn load_hf(dir: &Path, device: &Device) -> Result<Decoder, ModelError> {
        let config = ModelConfig::load(dir)?;
        let files: Vec<(PathBuf, Mmap)> = weight_files(dir)?
            .into_iter()
            .map(|path| map_file(&path).map(|map| (path, map)))
            .collect::<Result<_, _>>()?;
        let mut tensors: HashMap<String, (&Path, TensorView<'_>)> = HashMap::new();
        for (path, bytes) in &files {
            let parsed = SafeTensors::deserialize(bytes).map_err(|e| {
                ModelError::weights(path, format!("damaged or cut short, no valid safetensors file ({e})"))
            })?;
            for (name, view) in parsed.tensors() {
                tensors.insert(name, (path.as_path(), view));
            }
        }

        let infos = names::parameters(&config);
        let listed = |name: &str| infos.iter().any(|info| info.name == name);
        let mut extra: Vec<_> =
            tensors.iter().filter(|(name, _)| !listed(name) && !is_redundant(name, &config)).collect();
        extra.sort_by_key(|(name, _)| name.as_str());
        if let Some((name, (path, _))) = extra.first() {
            let reason = format!("tensor `{name}` is not part of the {} model in config.json", config.family);
            return Err(ModelError::weights(path, reason));
        }
        let whole = if let [(path, _)] = &files[..] { path.as_path() } else { dir };
        let views: Vec<(&Path, &TensorView<'_>, &ParameterInfo)> = infos
            .iter()
            .map(|info| match tensors.get(&info.name) {
                Some((path, view)) => Ok((*path, view, info)),
                None => Err(ModelError::weights(whole, format!("tensor `{}` is missing", info.name))),
            })
            .collect::<Result<_, _>>()?;
        let values: Vec<Vec<f32>> =
            views.par_iter().map(|(path, view, info)| widen(path, view, info)).collect::<Result<_, _>>()?;
        let shapes = infos.iter().map(|info| info.shape.clone());
        Ok(Decoder::assemble(config.clone(), shapes.zip(values), device))
    }
}

pub(crate) fn map_file(path: &Path) -> Result<Mmap, ModelError> {
    let file = File::open(path).map_err(ModelError::io("read", path))?;
    let len = file.metadata().map_err(ModelError::io("read", path))?.len();
    if len == 0 {
        return Err(ModelError::weights(path, "is empty"));
    }
    // SAFETY: the bytes are only read, and only until loading returns. Another process that shortens the file within
    // that time ends this one with SIGBUS, as with every reader of mapped weights.
    unsafe { Mmap::map(&file) }.map_err(ModelError::io("read", path))
}

/// Tensors some files carry that say nothing new: the head of a tied model, and rotary tables.
fn is_redundant(name: &str, config: &ModelConfig) -> bool {
    (config.tied && name == names::HEAD) || name.ends_with(".rotary_emb.inv_freq")
}

fn widen(path: &Path, view: &TensorView<'_>, info: &ParameterInfo) -> Result<Vec<f32>, ModelError> {
    let name = &info.name;
    if view.shape() != info.shape {
        let (got, want) = (view.shape(), &info.shape);
        return Err(ModelError::weights(
            path,
            format!("tensor `{name}` has shape {got:?}, config.json asks for {want:?}"),
        ));
    }
    each_float(path, name, view)
}

/// The values as f32.
pub(crate) fn each_float(path: &Path, name: &str, view: &TensorView<'_>) -> Result<Vec<f32>, ModelError> {
    let bytes = view.data();
    match view.dtype() {
        Dtype::F32 => Ok(each(bytes, f32::from_le_bytes)),
        Dtype::BF16 => Ok(each(bytes, |b| bf16::from_le_bytes(b).to_f32())),
        Dtype::F16 => Ok(each(bytes, |b| f16::from_le_bytes(b).to_f32())),
        other => {
            Err(ModelError::weights(path, format!("tensor `{name}` is {other:?}; supported are F32, BF16 and F16")))
        }
    }
}

fn each<const N: usize>(bytes: &[u8], read: impl Fn([u8; N]) -> f32) -> Vec<f32> {
    let (numbers, _) = bytes.as_chunks::<N>();
    numbers.iter().map(|b| read(*b)).collect()
}
