//! LoRA adapters in PEFT's layout: `adapter_config.json` and `adapter_model.safetensors`. Owns reading them and what is
//! refused; what they do to a forward pass is prl-kernels' business.

use crate::fast::dims;
use crate::folder::{each_float, map_file};
use crate::{ModelConfig, ModelError};
use prl_kernels::{AdapterLayer, LowRank, Projection};
use safetensors::SafeTensors;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;
#[cfg(feature = "cuda")]
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The settings' file.
pub const SETTINGS: &str = "adapter_config.json";
/// The weights' file.
pub(crate) const WEIGHTS: &str = "adapter_model.safetensors";

/// Low-rank additions to a model's matrices, for some of the sequences of a batch.
#[derive(Debug)]
pub struct Adapter {
    id: u64,
    rank: usize,
    layers: Vec<AdapterLayer>,
    /// For who keeps something for it.
    #[cfg(feature = "cuda")]
    alive: Arc<()>,
}

#[derive(Deserialize)]
pub(crate) struct Settings {
    peft_type: Option<String>,
    pub r: usize,
    pub lora_alpha: f64,
    #[serde(default)]
    use_rslora: bool,
    #[serde(default)]
    use_dora: bool,
    #[serde(default)]
    fan_in_fan_out: bool,
    bias: Option<String>,
    #[serde(default)]
    rank_pattern: Option<BTreeMap<String, serde_json::Value>>,
    #[serde(default)]
    alpha_pattern: Option<BTreeMap<String, serde_json::Value>>,
    modules_to_save: Option<Vec<String>>,
}

impl Settings {
    /// Reads the file in a folder.
    pub fn load(dir: &Path) -> Result<Self, ModelError> {
        let path = dir.join(SETTINGS);
        let text = std::fs::read_to_string(&path).map_err(ModelError::io("read", &path))?;
        serde_json::from_str(&text).map_err(|e| ModelError::Json { path, reason: e.to_string() })
    }
}

impl Adapter {
    /// Of additions by layer, those of layers behind the last one being none.
    pub fn new(layers: Vec<AdapterLayer>) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let ranks = layers.iter().flat_map(AdapterLayer::iter).map(|(_, pair)| pair.rank);
        let rank = ranks.max().unwrap_or(0);
        Adapter {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            rank,
            layers,
            #[cfg(feature = "cuda")]
            alive: Arc::default(),
        }
    }

    /// Loads a folder as PEFT writes it, for a model of this shape.
    ///
    /// # Errors
    /// Names the file and what is wrong with it: no LoRA, an option that is not supported, a tensor that is missing, of
    /// another shape, or of a matrix that the model does not have.
    pub fn load(dir: &Path, config: &ModelConfig) -> Result<Adapter, ModelError> {
        let (path, settings) = (dir.join(SETTINGS), Settings::load(dir)?);
        let refuse =
            |key: &str, reason: String| Err(ModelError::Config { path: path.clone(), key: key.into(), reason });
        let some = |map: &Option<BTreeMap<_, _>>| map.as_ref().is_some_and(|map| !map.is_empty());
        if settings.peft_type.as_deref().is_some_and(|kind| kind != "LORA") {
            return refuse(
                "peft_type",
                format!("is {}; only LORA is supported", settings.peft_type.unwrap_or_default()),
            );
        }
        for (key, set) in [
            ("use_dora", settings.use_dora),
            ("fan_in_fan_out", settings.fan_in_fan_out),
            ("bias", settings.bias.as_deref().is_some_and(|bias| bias != "none")),
            ("rank_pattern", some(&settings.rank_pattern)),
            ("alpha_pattern", some(&settings.alpha_pattern)),
            ("modules_to_save", settings.modules_to_save.as_ref().is_some_and(|modules| !modules.is_empty())),
        ] {
            if set {
                return refuse(key, "is not supported".into());
            }
        }
        if settings.r == 0 || !settings.lora_alpha.is_finite() {
            return refuse("r", format!("is {} with lora_alpha {}", settings.r, settings.lora_alpha));
        }
        let r = settings.r as f64;
        let scale = (settings.lora_alpha / if settings.use_rslora { r.sqrt() } else { r }) as f32;
        if !scale.is_finite() {
            return refuse("lora_alpha", format!("is {:e}: too large to scale by", settings.lora_alpha));
        }
        read(&dir.join(WEIGHTS), config, settings.r, scale).map(Adapter::new)
    }

    /// A number that no other adapter of this process has.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Upgrades as long as the adapter is there.
    #[cfg(feature = "cuda")]
    pub(crate) fn alive(&self) -> std::sync::Weak<()> {
        Arc::downgrade(&self.alive)
    }

    /// Its largest rank.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Additions by layer.
    pub(crate) fn layers(&self) -> &[AdapterLayer] {
        &self.layers
    }
}

fn read(path: &Path, config: &ModelConfig, rank: usize, scale: f32) -> Result<Vec<AdapterLayer>, ModelError> {
    let file = map_file(path)?;
    let wrong = |reason: String| ModelError::weights(path, reason);
    let tensors = SafeTensors::deserialize(&file)
        .map_err(|e| wrong(format!("damaged or cut short, no valid safetensors file ({e})")))?;
    let dims = dims(config);
    let mut factors: BTreeMap<(usize, Projection), [Option<Vec<f32>>; 2]> = BTreeMap::new();
    for (name, view) in tensors.tensors() {
        let Some(place) = place(&name).filter(|place| place.layer < config.layers) else {
            return Err(wrong(format!("tensor `{name}` belongs to no matrix that the model has")));
        };
        let [out, input] = place.which.shape(&dims);
        let shape = if place.is_b { [out, rank] } else { [rank, input] };
        if view.shape() != shape {
            return Err(wrong(format!("tensor `{name}` has shape {:?} and must have {shape:?}", view.shape())));
        }
        let mut values = each_float(path, &name, &view)?;
        if let Some(bad) = values.iter().find(|value| !value.is_finite()) {
            return Err(wrong(format!("tensor `{name}` holds {bad}: the adapter's training went wrong")));
        }
        if place.is_b {
            values.iter_mut().for_each(|x| *x *= scale);
        }
        factors.entry((place.layer, place.which)).or_default()[usize::from(place.is_b)] = Some(values);
    }
    if factors.is_empty() {
        return Err(wrong("holds no tensors, and so no adapter".into()));
    }
    let mut layers = vec![AdapterLayer::default(); config.layers];
    for ((layer, which), factors) in factors {
        let [Some(a), Some(b)] = factors else {
            let module = which.module();
            return Err(wrong(format!("layer {layer} has one factor of {module} only, lora_A or lora_B")));
        };
        *layers[layer].slot(which) = Some(LowRank { a, b, rank });
    }
    Ok(layers)
}

/// Which factor a tensor is.
struct Place {
    layer: usize,
    which: Projection,
    /// Whether it is B rather than A.
    is_b: bool,
}

/// The place of a name such as `base_model.model.model.layers.3.self_attn.q_proj.lora_A.weight`.
fn place(name: &str) -> Option<Place> {
    let (_, rest) = name.split_once("layers.")?;
    let parts: Vec<&str> = rest.split('.').collect();
    let [layer, block, matrix, factor @ ..] = parts.as_slice() else { return None };
    let module = format!("{block}.{matrix}");
    let is_b = match factor {
        ["lora_A", "weight"] | ["lora_A", "default", "weight"] => false,
        ["lora_B", "weight"] | ["lora_B", "default", "weight"] => true,
        _ => return None,
    };
    let which = Projection::ALL.into_iter().find(|which| which.module() == module)?;
    Some(Place { layer: layer.parse().ok()?, which, is_b })
}
