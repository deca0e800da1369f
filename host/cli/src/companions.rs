//! The files beside saved weights: what turns text into the tokens that were trained on. Owns which folder each is from and
//! what a chat template of the run's own takes the place of; must not know what weights are saved or when.

use crate::assets;
use crate::failure::{Failure, input};
use prl_config::{Loaded, Tokenizer};
use prl_model::{SaveOptions, Trained};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

const GENERATION: &str = "generation_config.json";
const TOKENIZER: &str = "tokenizer_config.json";
/// The key of a template in [`TOKENIZER`].
const TEMPLATE: &str = "chat_template";
const TEMPLATE_FILE: &str = "chat_template.jinja";
/// The template of a processor, from before there was [`TEMPLATE_FILE`].
const OLD_TEMPLATE_FILE: &str = "chat_template.json";

/// Where they come from.
#[derive(Clone, Debug)]
pub struct Companions {
    /// The folder of the model that the run began with.
    pub model: PathBuf,
    /// The folder of the tokenizer, where it is another one.
    tokenizer: Option<PathBuf>,
    /// The chat template in place of the tokenizer's.
    template: Option<String>,
}

impl Companions {
    /// What the section `key` says of the tokenizer of the model called `name`, which is in the folder `model`.
    ///
    /// # Errors
    /// A tokenizer that is not found; a template that cannot be read.
    pub fn open<C>(
        loaded: &Loaded<C>,
        (key, section): (&str, &Tokenizer),
        (name, model): (&str, &Path),
    ) -> Result<Self, Failure> {
        let tokenizer = section.name.as_deref().filter(|own| *own != name);
        let tokenizer = tokenizer.map(|own| assets::model_dir(loaded, &format!("{key}.name"), own)).transpose()?;
        let template = section.chat_template.as_deref().map(prl_render::chat_template).transpose();
        let template = template.map_err(input(format!("`{key}.chat_template`")))?;
        Ok(Companions { model: model.to_path_buf(), tokenizer, template })
    }

    /// Those of a model as it is.
    pub fn of_model(model: &Path) -> Self {
        Companions { model: model.to_path_buf(), tokenizer: None, template: None }
    }

    /// The folder that the tokenizer is in.
    pub fn tokenizer(&self) -> &Path {
        self.tokenizer.as_deref().unwrap_or(&self.model)
    }

    /// Writes a model with these beside it into a folder that is there.
    ///
    /// # Errors
    /// A text that names the file.
    pub fn save(&self, model: &Trained, dir: &Path) -> Result<(), String> {
        let options = SaveOptions { companions: Some(self.tokenizer().to_path_buf()), ..SaveOptions::default() };
        model.save_hf(dir, &options).map_err(|e| e.to_string())?;
        self.complete(dir)
    }

    /// What the tokenizer's folder lacks, and the run's own template.
    fn complete(&self, dir: &Path) -> Result<(), String> {
        let (from, to) = (self.model.join(GENERATION), dir.join(GENERATION));
        if self.tokenizer.is_some() && from.exists() && !to.exists() {
            write(&to, &read(&from)?)?;
        }
        let Some(template) = &self.template else { return Ok(()) };
        write(&dir.join(TEMPLATE_FILE), template.as_bytes())?;
        let old = dir.join(OLD_TEMPLATE_FILE);
        if old.exists() {
            fs::remove_file(&old).map_err(|e| format!("cannot remove `{}`: {e}", old.display()))?;
        }
        let path = dir.join(TOKENIZER);
        if path.exists() {
            let bad = |e: serde_json::Error| format!("`{}`: {e}", path.display());
            let mut config: Value = serde_json::from_slice(&read(&path)?).map_err(bad)?;
            if config.as_object_mut().is_some_and(|keys| keys.remove(TEMPLATE).is_some()) {
                write(&path, &serde_json::to_vec_pretty(&config).map_err(bad)?)?;
            }
        }
        Ok(())
    }
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    fs::read(path).map_err(|e| format!("cannot read `{}`: {e}", path.display()))
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), String> {
    fs::write(path, bytes).map_err(|e| format!("cannot write `{}`: {e}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_of_the_runs_own_is_the_only_one() {
        let [model, tokenizer, dir] = std::array::from_fn(|_| tempfile::tempdir().unwrap());
        fs::write(model.path().join(GENERATION), "{}").unwrap();
        for (name, text) in
            [(TOKENIZER, r#"{"a": 1, "chat_template": "old"}"#), (TEMPLATE_FILE, "older"), (OLD_TEMPLATE_FILE, "{}")]
        {
            fs::write(dir.path().join(name), text).unwrap();
        }
        let companions = Companions {
            model: model.path().to_path_buf(),
            tokenizer: Some(tokenizer.path().to_path_buf()),
            template: Some("{{ new }}\n".into()),
        };
        companions.complete(dir.path()).unwrap();
        let text = |name: &str| fs::read_to_string(dir.path().join(name)).unwrap();
        assert_eq!((text(TEMPLATE_FILE).as_str(), text(GENERATION).as_str()), ("{{ new }}\n", "{}"));
        assert_eq!(serde_json::from_str::<Value>(&text(TOKENIZER)).unwrap(), serde_json::json!({"a": 1}));
        assert!(!dir.path().join(OLD_TEMPLATE_FILE).exists());
        fs::write(dir.path().join(TOKENIZER), "no JSON").unwrap();
        assert!(companions.complete(dir.path()).unwrap_err().contains(TOKENIZER));
    }
}
