//! A trained adapter in PEFT's layout, and back to go on training. Owns the names in the files; whoever calls makes a folder appear
//! at once or not at all.

use crate::adapter::{SETTINGS, Settings, WEIGHTS};
use crate::folder::{Precision, Saved, each_float, map_file, write_json, write_tensors};
use crate::names::{HEAD, is_tied_embedding};
use crate::{ModelError, Trained};
use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{Tensor, TensorData};
use safetensors::SafeTensors;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;

/// What PEFT puts before the names of a model's parameters.
const PREFIX: &str = "base_model.model.";

impl Trained {
    /// Writes `adapter_config.json` and `adapter_model.safetensors` into `dir`, which must exist: the factors, and the modules that
    /// are trained whole. `base` is the name of the model below.
    ///
    /// # Errors
    /// Nothing but the whole model is trained; a file cannot be written.
    pub fn save_adapter(&self, dir: &Path, base: &str) -> Result<(), ModelError> {
        let Some(plan) = self.plan() else { return Err(ModelError::Input("there is no adapter".into())) };
        let config = self.decoder.config();
        let mut tensors = Vec::new();
        for (info, parameter) in self.parameters() {
            let saved = Saved { values: parameter.to_vec()?, shape: info.shape, precision: Precision::F32 };
            if is_tied_embedding(config, &info.name) {
                // PEFT reads both ends of the tie.
                tensors.push((format!("{PREFIX}{HEAD}"), saved.clone()));
            }
            tensors.push((format!("{PREFIX}{}", info.name), saved));
        }
        write_tensors(&dir.join(WEIGHTS), tensors)?;
        let options = plan.options();
        let saved = plan.saved_names(config);
        let mut settings = json!({
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "base_model_name_or_path": base,
            "r": options.rank,
            "lora_alpha": number(options.alpha),
            "lora_dropout": options.dropout,
            "target_modules": plan.target_names(config),
            "modules_to_save": if saved.is_empty() { Value::Null } else { json!(saved) },
            "bias": "none",
            "fan_in_fan_out": false,
            "inference_mode": true,
            "init_lora_weights": true,
            "use_dora": false,
            "use_rslora": false,
        });
        if self.parameters().iter().any(|(info, _)| is_tied_embedding(config, &info.name)) {
            // The head goes on being the embedding.
            settings["ensure_weight_tying"] = true.into();
        }
        write_json(&dir.join(SETTINGS), &settings)
    }

    /// Takes over what [`Trained::save_adapter`] wrote of the same adapter to the same model, to the bit.
    ///
    /// # Errors
    /// A file that is missing, damaged, or of an adapter with other settings; nothing has changed then.
    pub fn load_adapter(&mut self, dir: &Path) -> Result<(), ModelError> {
        let Some(plan) = self.plan() else { return Err(ModelError::Input("there is no adapter".into())) };
        let path = dir.join(SETTINGS);
        let settings = Settings::load(dir)?;
        let own = (plan.rank(), plan.options().alpha);
        if (settings.r, settings.lora_alpha) != own {
            let reason = format!(
                "is {} with `lora_alpha` {}; this run has rank {} and alpha {}",
                settings.r, settings.lora_alpha, own.0, own.1
            );
            return Err(ModelError::config(&path, "r", reason));
        }
        let path = dir.join(WEIGHTS);
        let file = map_file(&path)?;
        let wrong = |reason: String| ModelError::weights(&path, reason);
        let tensors = SafeTensors::deserialize(&file)
            .map_err(|e| wrong(format!("damaged or cut short, no valid safetensors file ({e})")))?;
        let (mut values, mut twice) = (BTreeMap::new(), 0);
        for (info, parameter) in self.parameters() {
            twice += usize::from(is_tied_embedding(self.decoder.config(), &info.name));
            let name = format!("{PREFIX}{}", info.name);
            let view = tensors.tensor(&name).map_err(|_| {
                wrong(format!("tensor `{name}` is missing: this run trains other modules than those of the checkpoint"))
            })?;
            if view.shape() != info.shape {
                let shapes = (view.shape(), &info.shape);
                return Err(wrong(format!("tensor `{name}` has shape {:?}, this run has {:?}", shapes.0, shapes.1)));
            }
            values.insert(parameter.id().val(), each_float(&path, &name, &view)?);
        }
        if tensors.len() != values.len() + twice {
            let (has, wants) = (tensors.len(), values.len() + twice);
            return Err(wrong(format!("it holds {has} tensors, this run trains {wants}: other modules")));
        }
        let mut fill = Fill(values);
        *self = self.clone().map(&mut fill);
        Ok(())
    }
}

/// Replaces the values of parameters by id.
struct Fill(BTreeMap<u64, Vec<f32>>);

impl ModuleMapper for Fill {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let Some(values) = self.0.remove(&param.id.val()) else { return param };
        param.map(|old| Tensor::from_data(TensorData::new(values, old.dims()), &old.device()))
    }
}

/// Whole numbers without a point, as PEFT writes them.
fn number(x: f64) -> Value {
    if x.fract() == 0.0 && x.abs() < 1e15 { json!(x as i64) } else { json!(x) }
}
