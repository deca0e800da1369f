//! Where the hub is and how it is talked to. Owns the meaning of the environment's variables; asks nothing.

use std::path::PathBuf;
use std::time::Duration;

const PUBLIC_ENDPOINT: &str = "https://huggingface.co";
const PATIENCE: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_secs(1);

/// Where the hub is and how to talk to it.
#[derive(Clone, PartialEq, Eq)]
pub struct HubOptions {
    /// The cache, shared with the Python library; `None` if no home directory is known.
    pub cache: Option<PathBuf>,
    /// Access token for what is private or gated.
    pub token: Option<String>,
    /// Base URL.
    pub endpoint: String,
    /// Use the cache only.
    pub offline: bool,
    /// How long the hub may take to answer at all, and to go on where it is in the middle of an answer.
    pub patience: Duration,
    /// Time before a question is asked a second time; it doubles with each.
    pub pause: Duration,
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
            pause: PAUSE,
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
