//! Writing a model folder that the transformers library loads. Owns sharding and number formats; whoever calls makes
//! the folder appear at once or not at all.

use super::{COMPANION_FILES, INDEX_FILE, SINGLE_FILE};
use crate::{CONFIG_FILE, Decoder, ModelError};
use half::bf16;
use safetensors::Dtype;
use safetensors::tensor::View;
use serde_json::{Map, Value, json};
use std::borrow::Cow;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// Number format of saved weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Precision {
    /// Exact.
    #[default]
    F32,
    /// Half the size, rounded to nearest even.
    Bf16,
}

impl Precision {
    fn bytes(self) -> usize {
        match self {
            Precision::F32 => 4,
            Precision::Bf16 => 2,
        }
    }

    fn dtype(self) -> Dtype {
        match self {
            Precision::F32 => Dtype::F32,
            Precision::Bf16 => Dtype::BF16,
        }
    }

    fn torch_name(self) -> &'static str {
        match self {
            Precision::F32 => "float32",
            Precision::Bf16 => "bfloat16",
        }
    }
}

/// How to save.
#[derive(Clone, Debug)]
pub struct SaveOptions {
    /// Number format.
    pub precision: Precision,
    /// The folder the model came from: its tokenizer, chat template and generation defaults are copied.
    pub companions: Option<PathBuf>,
    /// Weights above this are split into several files, bytes.
    pub max_shard_bytes: usize,
}

impl Default for SaveOptions {
    fn default() -> Self {
        SaveOptions { precision: Precision::F32, companions: None, max_shard_bytes: 5_000_000_000 }
    }
}

impl Decoder {
    /// Writes `config.json` as it was read (unknown keys included, the number format updated), the weights, and the
    /// companion files into `dir`, which must exist.
    ///
    /// # Errors
    /// Names the file that could not be written or copied.
    pub fn save_hf(&self, dir: &Path, options: &SaveOptions) -> Result<(), ModelError> {
        self.save_with(dir, options, |_, _| ())
    }

    /// As [`Decoder::save_hf`], with `change` applied to every parameter's name and values on the way.
    pub(crate) fn save_with(
        &self,
        dir: &Path,
        options: &SaveOptions,
        change: impl Fn(&str, &mut [f32]),
    ) -> Result<(), ModelError> {
        let shards = self.shards(options);
        let mut weight_map = Map::new();
        for (i, shard) in shards.iter().enumerate() {
            let file = match shards.len() {
                1 => SINGLE_FILE.to_string(),
                n => format!("model-{:05}-of-{n:05}.safetensors", i + 1),
            };
            for name in self.write_shard(&dir.join(&file), shard, options.precision, &change)? {
                weight_map.insert(name, Value::String(file.clone()));
            }
        }
        if shards.len() > 1 {
            let total = self.config().parameters() * options.precision.bytes();
            let index = json!({ "metadata": { "total_size": total }, "weight_map": weight_map });
            write_json(&dir.join(INDEX_FILE), &index)?;
        }
        if let Some(source) = &options.companions {
            copy_companions(source, dir)?;
        }
        let mut config = self.config().raw.clone();
        let key = if config.contains_key("dtype") { "dtype" } else { "torch_dtype" };
        config.insert(key.into(), options.precision.torch_name().into());
        write_json(&dir.join(CONFIG_FILE), &Value::Object(config))
    }

    /// Indices of parameters, split greedily in order.
    fn shards(&self, options: &SaveOptions) -> Vec<Vec<usize>> {
        let mut shards: Vec<Vec<usize>> = vec![Vec::new()];
        let mut size = 0;
        for (i, info) in self.infos().iter().enumerate() {
            let bytes = info.shape.iter().product::<usize>() * options.precision.bytes();
            if size > 0 && size + bytes > options.max_shard_bytes {
                shards.push(Vec::new());
                size = 0;
            }
            size += bytes;
            shards[..].last_mut().expect("starts with one").push(i);
        }
        shards
    }

    fn write_shard(
        &self,
        path: &Path,
        shard: &[usize],
        precision: Precision,
        change: &impl Fn(&str, &mut [f32]),
    ) -> Result<Vec<String>, ModelError> {
        let (infos, parameters) = (self.infos(), self.parameters());
        let mut tensors = Vec::with_capacity(shard.len());
        for i in shard {
            let mut values = parameters[*i].to_vec()?;
            change(&infos[*i].name, &mut values);
            tensors.push((infos[*i].name.clone(), Saved { values, shape: infos[*i].shape.clone(), precision }));
        }
        write_tensors(path, tensors)?;
        Ok(shard.iter().map(|i| infos[*i].name.clone()).collect())
    }
}

/// Writes a safetensors file as torch's users expect it.
pub(crate) fn write_tensors(path: &Path, tensors: Vec<(String, Saved)>) -> Result<(), ModelError> {
    let metadata = HashMap::from([("format".to_string(), "pt".to_string())]);
    safetensors::serialize_to_file(tensors, Some(metadata), path).map_err(|e| match e {
        safetensors::SafeTensorError::IoError(source) => ModelError::io("write", path)(source),
        other => ModelError::weights(path, format!("cannot be written ({other})")),
    })
}

/// A tensor to be written.
#[derive(Clone)]
pub(crate) struct Saved {
    pub values: Vec<f32>,
    pub shape: Vec<usize>,
    pub precision: Precision,
}

impl View for Saved {
    fn dtype(&self) -> Dtype {
        self.precision.dtype()
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        match self.precision {
            Precision::F32 if cfg!(target_endian = "little") => Cow::Borrowed(bytemuck::cast_slice(&self.values)),
            Precision::F32 => Cow::Owned(self.values.iter().flat_map(|v| v.to_le_bytes()).collect()),
            Precision::Bf16 => Cow::Owned(self.values.iter().flat_map(|v| bf16::from_f32(*v).to_le_bytes()).collect()),
        }
    }

    fn data_len(&self) -> usize {
        self.values.len() * self.precision.bytes()
    }
}

fn copy_companions(source: &Path, dir: &Path) -> Result<(), ModelError> {
    for name in COMPANION_FILES {
        let from = source.join(name);
        if from.exists() {
            // Contents only: a file of a read-only cache must not stay read-only.
            let bytes = std::fs::read(&from).map_err(ModelError::io("read", &from))?;
            let to = dir.join(name);
            std::fs::write(&to, bytes).map_err(ModelError::io("write", &to))?;
        }
    }
    Ok(())
}

pub(crate) fn write_json(path: &Path, value: &Value) -> Result<(), ModelError> {
    let mut text = serde_json::to_string_pretty(value)
        .map_err(|e| ModelError::Json { path: path.to_path_buf(), reason: e.to_string() })?;
    text.push('\n');
    std::fs::write(path, text).map_err(ModelError::io("write", path))
}
