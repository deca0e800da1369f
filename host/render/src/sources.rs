//! Reads what a model folder says about chat: the template, the special tokens, the stop ids. Owns file names and
//! their precedence; renders nothing.

use crate::RenderError;
use prl_types::TokenId;
use serde_json::{Map, Value};
use std::path::Path;

/// A chat template and where it came from.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    pub text: String,
    pub origin: String,
}

/// The templates of a model: some folders carry a second one for conversations with tools.
pub(crate) struct Templates {
    pub default: Source,
    pub tool_use: Option<Source>,
}

/// `tokenizer_config.json`, empty when there is none.
pub(crate) fn tokenizer_config(dir: &Path) -> Result<Map<String, Value>, RenderError> {
    object(&dir.join("tokenizer_config.json"))
}

/// The option if it is given (a file, or the template itself), else `chat_template.jinja`, else `chat_template` in
/// `tokenizer_config.json`.
pub(crate) fn templates(
    dir: &Path,
    config: &Map<String, Value>,
    option: Option<&str>,
) -> Result<Templates, RenderError> {
    if let Some(value) = option {
        return Ok(Templates { default: given(value)?, tool_use: None });
    }
    let file = dir.join("chat_template.jinja");
    if file.is_file() {
        let source = Source { text: read(&file)?, origin: file.display().to_string() };
        return Ok(Templates { default: source, tool_use: None });
    }
    let path = dir.join("tokenizer_config.json");
    let named = |text: &str, name: &str| Source {
        text: text.to_string(),
        origin: if name.is_empty() { path.display().to_string() } else { format!("{} ({name})", path.display()) },
    };
    match config.get("chat_template") {
        None | Some(Value::Null) => Err(RenderError::NoTemplate { dir: dir.to_path_buf() }),
        Some(Value::String(text)) => Ok(Templates { default: named(text, ""), tool_use: None }),
        Some(Value::Array(list)) => {
            let pick = |want: &str| {
                list.iter()
                    .find(|entry| entry["name"] == want)
                    .and_then(|e| e["template"].as_str())
                    .map(|t| named(t, want))
            };
            let default = pick("default").ok_or_else(|| RenderError::Json {
                path: path.clone(),
                reason: "`chat_template` is a list without an entry named `default`".into(),
            })?;
            Ok(Templates { default, tool_use: pick("tool_use") })
        }
        Some(_) => {
            Err(RenderError::Json { path: path.clone(), reason: "`chat_template` is neither text nor a list".into() })
        }
    }
}

/// The text of a template that is given in place of a model's: of a file, or the template itself.
///
/// # Errors
/// It is neither, or the file cannot be read.
pub fn chat_template(value: &str) -> Result<String, RenderError> {
    given(value).map(|source| source.text)
}

fn given(value: &str) -> Result<Source, RenderError> {
    let path = Path::new(value);
    if !value.contains('\n') && path.is_file() {
        Ok(Source { text: read(path)?, origin: path.display().to_string() })
    } else if value.contains("{{") || value.contains("{%") {
        Ok(Source { text: value.to_string(), origin: "the chat_template option".into() })
    } else {
        Err(RenderError::TemplateOption { value: value.to_string() })
    }
}

/// The special tokens a template may refer to, by name (`bos_token`, `eos_token`, ...).
pub(crate) fn special_tokens(config: &Map<String, Value>) -> Map<String, Value> {
    let mut found = Map::new();
    for (key, value) in config {
        if !key.ends_with("_token") {
            continue;
        }
        let text = value.as_str().or_else(|| value.get("content").and_then(Value::as_str));
        if let Some(text) = text {
            found.insert(key.clone(), Value::from(text));
        }
    }
    found
}

/// `eos_token_id` of `generation_config.json`, or of `config.json` where that has none: a number or a list.
pub(crate) fn eos_ids(dir: &Path) -> Result<Vec<TokenId>, RenderError> {
    for name in ["generation_config.json", "config.json"] {
        let path = dir.join(name);
        let bad = || RenderError::Json {
            path: path.clone(),
            reason: "`eos_token_id` is neither a token id nor a list of token ids".into(),
        };
        let id = |value: &Value| value.as_u64().and_then(|id| TokenId::try_from(id).ok()).ok_or_else(bad);
        match object(&path)?.get("eos_token_id") {
            None | Some(Value::Null) => {}
            Some(Value::Array(list)) => return list.iter().map(id).collect(),
            Some(value) => return Ok(vec![id(value)?]),
        }
    }
    Ok(Vec::new())
}

/// A JSON object file; a missing file is an empty object.
fn object(path: &Path) -> Result<Map<String, Value>, RenderError> {
    if !path.exists() {
        return Ok(Map::new());
    }
    serde_json::from_str(&read(path)?)
        .map_err(|e| RenderError::Json { path: path.to_path_buf(), reason: e.to_string() })
}

fn read(path: &Path) -> Result<String, RenderError> {
    std::fs::read_to_string(path).map_err(|source| RenderError::Read { path: path.to_path_buf(), source })
}
