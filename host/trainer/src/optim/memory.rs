//! What an optimiser remembers, in plain numbers, and its file. Owns the format of `optimizer.safetensors`; must not know
//! what the numbers mean.

use crate::TrainerError;
use prl_model::names::ParameterInfo;
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use std::collections::HashMap;
use std::path::Path;

pub(super) const FILE: &str = "optimizer.safetensors";
const UPDATES: &str = "updates";

/// The lists of one parameter, each as long as the parameter.
pub(super) type Slots = Vec<Vec<f32>>;

/// What is remembered of all parameters at one time.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Memory {
    /// Steps taken.
    pub updates: usize,
    /// In the order of [`prl_model::Learner::trained`]; empty where nothing is remembered.
    pub parameters: Vec<Slots>,
}

/// How a file is to be read and written: whose it is, and what stands in it.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    /// `optim.type`.
    pub rule: &'static str,
    /// By parameter: its name, its shape, and the names of its slots.
    pub parameters: Vec<(ParameterInfo, &'static [&'static str])>,
    /// Whether a file may leave all slots out.
    pub optional: bool,
}

impl Layout {
    /// The key of the number of updates, the only one of the metadata, so that the same state is the same bytes. It says
    /// whose file it is; AdamW's has always been without a name.
    fn key(&self) -> String {
        if self.rule == ADAMW { UPDATES.into() } else { format!("{}.{UPDATES}", self.rule) }
    }

    fn tensors(&self) -> usize {
        self.parameters.iter().map(|(_, slots)| slots.len()).sum()
    }
}

const ADAMW: &str = "adamw";

/// The state of an optimiser, ready to be written.
pub(crate) struct SavedOptimizer {
    pub(super) layout: Layout,
    pub(super) memory: Memory,
}

impl SavedOptimizer {
    /// Writes `optimizer.safetensors`: `<parameter>.<slot>` for all, `updates` or `<rule>.updates` in the metadata.
    pub fn write(&self, dir: &Path) -> Result<(), TrainerError> {
        let path = dir.join(FILE);
        self.write_to(&path).map_err(|e| TrainerError::file("write", &path, e))
    }

    fn write_to(&self, path: &Path) -> Result<(), String> {
        let mut tensors = Vec::new();
        for ((info, names), slots) in self.layout.parameters.iter().zip(&self.memory.parameters) {
            for (name, values) in names.iter().zip(slots) {
                let view = TensorView::new(Dtype::F32, info.shape.clone(), bytemuck::cast_slice(values));
                tensors.push((format!("{}.{name}", info.name), view.map_err(|e| e.to_string())?));
            }
        }
        let metadata = HashMap::from([(self.layout.key(), self.memory.updates.to_string())]);
        safetensors::serialize_to_file(tensors, Some(metadata), path).map_err(|e| e.to_string())
    }
}

/// Reads what [`SavedOptimizer::write`] wrote for the same rule and a model of the same shape.
///
/// # Errors
/// A file that is missing, damaged, of another rule or another model.
pub(super) fn read(path: &Path, layout: &Layout) -> Result<Memory, TrainerError> {
    let failed = |reason: String| TrainerError::file("read", path, reason);
    let bytes = std::fs::read(path).map_err(|e| failed(e.to_string()))?;
    let file = SafeTensors::deserialize(&bytes).map_err(|e| failed(e.to_string()))?;
    let (_, header) = SafeTensors::read_metadata(&bytes).map_err(|e| failed(e.to_string()))?;
    let none = HashMap::new();
    let metadata = header.metadata().as_ref().unwrap_or(&none);
    let key = layout.key();
    let Some(updates) = metadata.get(&key) else {
        let other = metadata.keys().find_map(|key| match key.strip_suffix(UPDATES)? {
            "" => Some(ADAMW.to_owned()),
            named => named.strip_suffix('.').map(str::to_owned),
        });
        return Err(match other {
            Some(saved) => TrainerError::OtherOptimizer { path: path.to_path_buf(), saved, run: layout.rule },
            None => failed(format!("its metadata has no `{key}`")),
        });
    };
    let updates = updates.parse().map_err(|_| failed(format!("`{key}` in its metadata is no number: `{updates}`")))?;
    slots(&file, updates, layout).map_err(failed)
}

fn slots(file: &SafeTensors<'_>, updates: usize, layout: &Layout) -> Result<Memory, String> {
    let mut memory = Memory { updates, parameters: Vec::new() };
    if updates == 0 {
        return match file.is_empty() {
            true => Ok(memory),
            false => Err(format!("it holds {} tensors after 0 updates", file.len())),
        };
    }
    if layout.optional && file.is_empty() {
        return Ok(memory);
    }
    if file.len() != layout.tensors() {
        return Err(format!("it holds {} tensors, the model needs {}", file.len(), layout.tensors()));
    }
    for (info, names) in &layout.parameters {
        let one = |slot: &&str| values(file, &format!("{}.{slot}", info.name), &info.shape);
        memory.parameters.push(names.iter().map(one).collect::<Result<_, _>>()?);
    }
    Ok(memory)
}

fn values(file: &SafeTensors<'_>, name: &str, shape: &[usize]) -> Result<Vec<f32>, String> {
    let view = file.tensor(name).map_err(|e| format!("`{name}`: {e}"))?;
    if view.dtype() != Dtype::F32 || view.shape() != shape {
        return Err(format!("`{name}` is {:?} {:?}, the model needs F32 {shape:?}", view.dtype(), view.shape()));
    }
    Ok(bytemuck::pod_collect_to_vec(view.data()))
}
