//! Model folders in Hugging Face layout. Owns the files' names and formats; must not know where a folder comes from or
//! what the weights are used for.

mod load;
mod save;

pub(crate) use load::{each_float, map_file};
pub use save::{Precision, SaveOptions};
pub(crate) use save::{Saved, write_json, write_tensors};

use crate::ModelError;
use prl_hub::is_plain_name;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Weights in one file.
pub(crate) const SINGLE_FILE: &str = "model.safetensors";
/// Which tensor is in which of several files.
pub(crate) const INDEX_FILE: &str = "model.safetensors.index.json";

/// Everything beside weights and config that belongs to a model: tokenizer, chat template, generation defaults.
pub const COMPANION_FILES: [&str; 10] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
];

/// `weight_map` of an index file: tensor names and the file each is in, in the order of the file.
pub(crate) fn read_index(path: &Path) -> Result<Vec<(String, String)>, ModelError> {
    let json = |reason: &str| ModelError::Json { path: path.to_path_buf(), reason: reason.to_string() };
    let text = std::fs::read_to_string(path).map_err(ModelError::io("read", path))?;
    let value: Value = serde_json::from_str(&text).map_err(|e| json(&e.to_string()))?;
    let map = value.get("weight_map").and_then(Value::as_object).ok_or_else(|| json("it has no `weight_map`"))?;
    let mut out = Vec::with_capacity(map.len());
    for (tensor, file) in map {
        let file = file.as_str().filter(|f| is_plain_name(f));
        let file = file.ok_or_else(|| json(&format!("`weight_map` gives no file name for tensor `{tensor}`")))?;
        out.push((tensor.clone(), file.to_string()));
    }
    Ok(out)
}

/// The weight files of a folder; those that an index names are not checked to exist.
pub(crate) fn weight_files(dir: &Path) -> Result<Vec<PathBuf>, ModelError> {
    let (single, index) = (dir.join(SINGLE_FILE), dir.join(INDEX_FILE));
    if single.exists() {
        return Ok(vec![single]);
    }
    if !index.exists() {
        return Err(ModelError::NotAModel {
            dir: dir.to_path_buf(),
            missing: "model.safetensors or model.safetensors.index.json",
        });
    }
    let mut files: Vec<PathBuf> = Vec::new();
    for (_, file) in read_index(&index)? {
        let path = dir.join(file);
        if !files.contains(&path) {
            files.push(path);
        }
    }
    Ok(files)
}
