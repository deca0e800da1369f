//! From a model's name to a folder: a local one, or one of the Hugging Face hub in its usual cache. Owns which files
//! are fetched and what every failure says; must not know their contents beyond the list of shards.

use crate::folder::{COMPANION_FILES, INDEX_FILE, SINGLE_FILE, is_plain_name, read_index, weight_files};
use crate::{CONFIG_FILE, ModelError};
use hf_hub::api::sync::{ApiBuilder, ApiError, ApiRepo};
use hf_hub::{Cache, Repo, RepoType};
use std::path::{Path, PathBuf};
use std::time::Duration;

const PUBLIC_ENDPOINT: &str = "https://huggingface.co";
const REVISION: &str = "main";
const PATIENCE: Duration = Duration::from_secs(20);

/// Where the hub is and how to talk to it.
#[derive(Clone, PartialEq, Eq)]
pub struct HubOptions {
    /// The cache, shared with the Python library; `None` if no home directory is known.
    pub cache: Option<PathBuf>,
    /// Access token for private and gated models.
    pub token: Option<String>,
    /// Base URL.
    pub endpoint: String,
    /// Use the cache only.
    pub offline: bool,
    /// How long the hub may take to answer at all.
    pub patience: Duration,
}

impl HubOptions {
    /// Reads `HF_HUB_CACHE`, `HF_HOME`, `XDG_CACHE_HOME`, `HOME`, `HF_TOKEN`, `HF_TOKEN_PATH`, `HF_ENDPOINT` and
    /// `HF_HUB_OFFLINE` through `var`, with the meaning they have for the Python library.
    pub fn from_vars(var: impl Fn(&str) -> Option<String>) -> HubOptions {
        let set = |name: &str| var(name).map(|v| v.trim().to_string()).filter(|v| !v.is_empty());
        let path = |name: &str| set(name).map(PathBuf::from);
        let home = path("HF_HOME")
            .or_else(|| path("XDG_CACHE_HOME").map(|p| p.join("huggingface")))
            .or_else(|| path("HOME").map(|p| p.join(".cache/huggingface")));
        let token_file = path("HF_TOKEN_PATH").or_else(|| home.as_ref().map(|h| h.join("token")));
        let stored = || token_file.and_then(|f| std::fs::read_to_string(f).ok());
        let token = set("HF_TOKEN").or_else(stored).map(|t| t.trim().to_string()).filter(|t| !t.is_empty());
        let is_true = |v: String| matches!(v.to_ascii_uppercase().as_str(), "1" | "ON" | "YES" | "TRUE");
        HubOptions {
            cache: path("HF_HUB_CACHE").or_else(|| home.map(|h| h.join("hub"))),
            token,
            endpoint: set("HF_ENDPOINT").unwrap_or_else(|| PUBLIC_ENDPOINT.into()).trim_end_matches('/').into(),
            offline: set("HF_HUB_OFFLINE").is_some_and(is_true),
            patience: PATIENCE,
        }
    }
}

impl std::fmt::Debug for HubOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HubOptions")
            .field("cache", &self.cache)
            .field("token", &self.token.as_ref().map(|_| "***"))
            .field("endpoint", &self.endpoint)
            .field("offline", &self.offline)
            .finish()
    }
}

/// The folder of the model `name`: the folder of that name if there is one, else the hub's model of that id, fetched
/// into the cache as far as it is not there. Only config, tokenizer, chat template and safetensors weights are fetched.
///
/// # Errors
/// Neither a folder nor a hub id, offline and not cached, no access, no such model, no network; each says what to do.
pub fn resolve(name: &str, options: &HubOptions) -> Result<PathBuf, ModelError> {
    let error = |reason: String| ModelError::Hub { name: name.to_string(), reason };
    let path = Path::new(name);
    if path.is_dir() {
        return Ok(path.to_path_buf());
    }
    if path.exists() {
        return Err(error("is a file; give the folder with config.json and the weights".into()));
    }
    if !is_hub_id(name) {
        return Err(error("there is no such folder, and a hub id looks like `owner/name`".into()));
    }
    let Some(cache) = options.cache.clone() else {
        return Err(error("there is no such folder, and HF_HOME or HOME must be set to fetch it from the hub".into()));
    };
    let hub = Hub { name, cache: Cache::new(cache.clone()), options };
    if options.offline {
        return hub.cached().ok_or_else(|| {
            let cache = cache.display();
            error(format!(
                "there is no such folder, HF_HUB_OFFLINE is set, and the model is not in the cache `{cache}`"
            ))
        });
    }
    hub.fetch()
}

fn is_hub_id(name: &str) -> bool {
    matches!(name.split_once('/'), Some((owner, model)) if is_plain_name(owner) && is_plain_name(model))
}

struct Hub<'a> {
    name: &'a str,
    cache: Cache,
    options: &'a HubOptions,
}

impl Hub<'_> {
    fn repo(&self, revision: &str) -> Repo {
        Repo::with_revision(self.name.to_string(), RepoType::Model, revision.to_string())
    }

    fn snapshot(&self, commit: &str) -> PathBuf {
        self.cache.repo(self.repo(commit)).pointer_path(commit)
    }

    /// The cached snapshot of the main branch, if it is complete.
    fn cached(&self) -> Option<PathBuf> {
        let config = self.cache.repo(self.repo(REVISION)).get(CONFIG_FILE)?;
        let dir = config.parent()?.to_path_buf();
        let complete = weight_files(&dir).is_ok_and(|files| files.iter().all(|f| f.exists()));
        complete.then_some(dir)
    }

    /// Asks the hub for anything at all, with a time limit, which the client library has none of.
    fn answers(&self) -> Result<(), String> {
        let config = ureq::Agent::config_builder().timeout_global(Some(self.options.patience)).build();
        match ureq::Agent::new_with_config(config).get(&self.options.endpoint).call() {
            Ok(_) | Err(ureq::Error::StatusCode(_)) => Ok(()),
            Err(e) => Err(format!("the hub at {} does not answer: {e}", self.options.endpoint)),
        }
    }

    fn fetch(&self) -> Result<PathBuf, ModelError> {
        if let Err(reason) = self.answers() {
            return match self.cached() {
                Some(dir) => {
                    tracing::warn!(model = self.name, "{reason}; using the cached copy");
                    Ok(dir)
                }
                None => Err(self.error(format!(
                    "there is no such folder here, and {reason}. Check the name, or the connection (HF_ENDPOINT)"
                ))),
            };
        }
        let api = ApiBuilder::from_cache(self.cache.clone())
            .with_endpoint(self.options.endpoint.clone())
            .with_token(self.options.token.clone())
            .with_progress(false)
            .with_retries(3)
            .build()
            .map_err(|e| self.explain(&e, None))?;
        let info = match api.repo(self.repo(REVISION)).info() {
            Ok(info) => info,
            Err(e) => {
                // An answer of the hub counts; no answer leaves what was fetched before.
                if status(&e).is_none()
                    && let Some(dir) = self.cached()
                {
                    tracing::warn!(model = self.name, error = %e, "the hub cannot be reached; using the cached copy");
                    return Ok(dir);
                }
                return Err(self.explain(&e, None));
            }
        };
        if !is_plain_name(&info.sha) {
            return Err(self.error(format!("the hub at {} gives no revision", self.options.endpoint)));
        }
        let has = |name: &str| info.siblings.iter().any(|s| s.rfilename == name);
        let (repo, dir) = (api.repo(self.repo(&info.sha)), self.snapshot(&info.sha));
        let mut wanted: Vec<String> = vec![CONFIG_FILE.into()];
        wanted.extend(COMPANION_FILES.iter().filter(|f| has(f)).map(|f| f.to_string()));
        if has(SINGLE_FILE) {
            wanted.push(SINGLE_FILE.into());
        } else if has(INDEX_FILE) {
            self.get(&repo, &dir, INDEX_FILE)?;
            for (_, file) in read_index(&dir.join(INDEX_FILE))? {
                if !wanted.contains(&file) {
                    wanted.push(file);
                }
            }
        } else {
            return Err(self.error("the hub's model has no safetensors weights (model.safetensors)".into()));
        }
        for file in &wanted {
            self.get(&repo, &dir, file)?;
        }
        let noted = self.cache.repo(self.repo(REVISION)).create_ref(&info.sha);
        noted.map_err(ModelError::io("write", self.cache.path()))?;
        Ok(dir)
    }

    fn get(&self, repo: &ApiRepo, dir: &Path, file: &str) -> Result<(), ModelError> {
        if dir.join(file).exists() {
            return Ok(());
        }
        tracing::info!(model = self.name, file, "downloading");
        repo.download(file).map(|_| ()).map_err(|e| self.explain(&e, Some(file)))
    }

    fn error(&self, reason: String) -> ModelError {
        ModelError::Hub { name: self.name.to_string(), reason }
    }

    fn explain(&self, error: &ApiError, file: Option<&str>) -> ModelError {
        let endpoint = &self.options.endpoint;
        let what = file.map(|f| format!("`{f}`: ")).unwrap_or_default();
        let token = if self.options.token.is_some() { "the token given has no access" } else { "set HF_TOKEN" };
        self.error(match status(error) {
            Some(404) => format!("{what}there is no such folder here and no such model at {endpoint} (404)"),
            Some(code @ (401 | 403)) => {
                format!("{what}{endpoint} refuses access ({code}): it does not exist, is private or gated; {token}")
            }
            Some(code) => format!("{what}{endpoint} answers with status {code}"),
            None => format!("{what}cannot be fetched from {endpoint}: {error}"),
        })
    }
}

/// The HTTP status behind an error, if the hub answered at all.
fn status(error: &ApiError) -> Option<u16> {
    match error {
        ApiError::RequestError(e) => match **e {
            ureq::Error::StatusCode(code) => Some(code),
            _ => None,
        },
        ApiError::TooManyRetries(e) => status(e),
        _ => None,
    }
}
