//! What a run may grant an environment beside its log: model calls, published files, a scratch map, HTTP. Owns the
//! grants' names, the bounds, and which addresses HTTP may reach; must not know the contract's records, nor how a model
//! or a server is reached (whoever assembles a run hands in clients).

use crate::digest::{sha256, sha256_of};
use futures::future::BoxFuture;
use prl_types::{Message, ToolDef};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, HashMap};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

/// Something an environment may import if the run's configuration lists it in `grants`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Grant {
    /// Files published with the component.
    Assets,
    /// HTTP to listed addresses.
    Http,
    /// A scratch map.
    Kv,
    /// Model calls.
    Llm,
}

impl Grant {
    /// All there are.
    pub const ALL: [Grant; 4] = [Grant::Assets, Grant::Http, Grant::Kv, Grant::Llm];

    /// As a configuration has it, and as the interface is called.
    pub fn name(self) -> &'static str {
        match self {
            Grant::Assets => "assets",
            Grant::Http => "http",
            Grant::Kv => "kv",
            Grant::Llm => "llm",
        }
    }

    /// The grant of this name.
    pub fn of(name: &str) -> Option<Self> {
        Grant::ALL.into_iter().find(|grant| grant.name() == name)
    }

    /// Whether what comes through it may differ from run to run.
    pub fn is_outside(self) -> bool {
        matches!(self, Grant::Http | Grant::Llm)
    }

    /// Whether what comes through it may differ from rollout to rollout, so that it must be recorded to be had again.
    /// Published files are told apart by their digests.
    pub fn is_recorded(self) -> bool {
        self.is_outside() || self == Grant::Kv
    }
}

/// Why a service gave nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ServiceError {
    /// The run's configuration does not allow it.
    #[error("{0}")]
    Denied(String),
    /// It is not there.
    #[error("{0}")]
    NotFound(String),
    /// More than the host hands out or keeps.
    #[error("{0}")]
    Limit(String),
    /// The request makes no sense.
    #[error("{0}")]
    Invalid(String),
    /// It failed in a way that another try may mend.
    #[error("{0}")]
    Upstream(String),
}

/// A model call of an environment.
#[derive(Clone, Debug, PartialEq)]
pub struct LlmRequest {
    /// Whose model.
    pub role: String,
    /// The conversation.
    pub messages: Vec<Message>,
    /// Tools the model may call.
    pub tools: Vec<ToolDef>,
    /// Most tokens to sample.
    pub max_tokens: Option<u32>,
    /// Sampling temperature.
    pub temperature: Option<f64>,
    /// Further options by their OpenAI names, out of [`LLM_OPTIONS`].
    pub options: Map<String, Value>,
}

/// Options that [`LlmRequest::options`] may hold.
pub const LLM_OPTIONS: [&str; 5] = ["top_p", "stop", "seed", "response_format", "tool_choice"];

/// What a model answered.
#[derive(Clone, Debug, PartialEq)]
pub struct LlmResponse {
    /// The assistant's message.
    pub message: Message,
    /// Tokens of the conversation.
    pub prompt_tokens: u32,
    /// Tokens of the answer.
    pub completion_tokens: u32,
}

/// Models by role.
pub trait Llm: Send + Sync {
    /// Roles that have a model.
    fn roles(&self) -> Vec<String>;

    /// Asks the model of `request.role`, which is one of [`Llm::roles`]. Must give up by itself after a while.
    fn generate(&self, request: LlmRequest) -> BoxFuture<'static, Result<LlmResponse, ServiceError>>;
}

/// An HTTP request to an address that was allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpRequest {
    /// In capitals, such as `GET`.
    pub method: String,
    /// Address.
    pub url: String,
    /// Names and values.
    pub headers: Vec<(String, String)>,
    /// Body.
    pub body: Option<Vec<u8>>,
    /// How long to wait.
    pub timeout: Duration,
    /// How long to go on asking where nobody listens; within the time to wait.
    pub patience: Duration,
    /// Longest body to read, bytes; a longer one is [`ServiceError::Limit`].
    pub max_bytes: u64,
}

/// An HTTP response of any status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpResponse {
    /// Such as 200.
    pub status: u16,
    /// Names and values.
    pub headers: Vec<(String, String)>,
    /// Body.
    pub body: Vec<u8>,
}

/// Sends requests; must not follow redirects, which could lead to an address that is not allowed.
pub trait HttpClient: Send + Sync {
    /// Sends one.
    fn fetch(&self, request: HttpRequest) -> BoxFuture<'static, Result<HttpResponse, ServiceError>>;
}

/// HTTP to addresses that begin with one of a list.
#[derive(Clone)]
pub struct Http {
    allowed: Arc<[String]>,
    client: Arc<dyn HttpClient>,
    /// Longest wait of one request.
    timeout: Duration,
    /// Whether the environment itself is behind it: requests then name a path below the one address, and waiting for them
    /// is the environment's own time.
    is_the_environment: bool,
    /// How long to go on asking where nobody listens.
    patience: Duration,
}

/// How long a run goes on asking for its environment while the server is started anew.
const PATIENCE: Duration = Duration::from_secs(5);

/// Longest wait of one request.
const HTTP_TIMEOUT: Duration = Duration::from_secs(60);

impl Http {
    /// `allowed` are addresses such as `https://example.org/api`: everything at or below them may be reached.
    ///
    /// # Errors
    /// An address that is not absolute, or that could match more than it seems to.
    pub fn new(allowed: &[String], client: Arc<dyn HttpClient>) -> Result<Self, String> {
        for address in allowed {
            let rest = ["http://", "https://"].iter().find_map(|scheme| address.strip_prefix(scheme));
            let host = rest.and_then(|rest| rest.split('/').next()).filter(|host| !host.is_empty());
            if host.is_none_or(|host| host.contains(['@', '?', '#', '\\', '*'])) || !is_plain(address) {
                return Err(format!("`{address}` is no address such as https://example.org/api"));
            }
        }
        Ok(Http {
            allowed: allowed.into(),
            client,
            timeout: HTTP_TIMEOUT,
            is_the_environment: false,
            patience: Duration::ZERO,
        })
    }

    /// To the environment at `address`, whose calls may take `call`.
    pub(crate) fn to_environment(address: &str, client: Arc<dyn HttpClient>, call: Duration) -> Result<Self, String> {
        if let Some(odd) = address.chars().find(|c| ['?', '#'].contains(c)) {
            return Err(format!(
                "`{address}` is no address of an environment: paths are put behind it, so it may hold no `{odd}`; give one \
                 such as http://127.0.0.1:8765"
            ));
        }
        let http = Http::new(&[address.to_owned()], client)?;
        let allowed = Arc::from([address.trim_end_matches('/').to_owned()]);
        // The call's own limit comes first, and is told as what it is.
        let timeout = call.saturating_add(Duration::from_secs(1));
        Ok(Http { allowed, timeout, is_the_environment: true, ..http })
    }

    /// The same for a run that has begun, in which the server may be started anew.
    pub(crate) fn patient(self) -> Self {
        Http { patience: PATIENCE, ..self }
    }

    /// Whether waiting for an answer counts as the environment's own time.
    pub(crate) fn is_the_environment(&self) -> bool {
        self.is_the_environment
    }

    fn allows(&self, url: &str) -> bool {
        let below = |address: &String| {
            let address = address.trim_end_matches('/');
            url.strip_prefix(address).is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', '?', '#']))
        };
        is_plain(url) && self.allowed.iter().any(below)
    }

    pub(crate) async fn fetch(&self, mut request: HttpRequest) -> Result<HttpResponse, ServiceError> {
        if self.is_the_environment && request.url.starts_with('/') {
            request.url = self.allowed.concat() + &request.url;
        }
        if !self.allows(&request.url) {
            let there = origin(&request.url);
            return Err(ServiceError::Denied(format!("an address at `{there}` is not among the allowed ones")));
        }
        request.timeout = request.timeout.min(self.timeout);
        request.patience = self.patience;
        self.client.fetch(request).await
    }
}

/// Scheme, host and port of an address: what is said of it in errors, which are recorded, while keys are sent in paths and
/// queries.
pub fn origin(url: &str) -> &str {
    let begin = url.find("://").map_or(0, |at| at + 3);
    let end = url[begin..].find(['/', '?', '#']).map_or(url.len(), |at| begin + at);
    // A password before the host is none of it; such an address is not allowed anyway.
    if url[begin..end].contains('@') { "" } else { &url[..end] }
}

/// No characters that a client and this list could read differently, and no way up.
fn is_plain(url: &str) -> bool {
    let path = url.split(['?', '#']).next().unwrap_or_default().to_ascii_lowercase().replace("%2e", ".");
    url.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\\') && !path.split('/').any(|part| part == "..")
}

/// Files published with a component. Names are relative paths with `/`.
#[derive(Clone, Debug, Default)]
pub struct Assets {
    files: Arc<BTreeMap<String, (PathBuf, u64)>>,
    digests: Arc<Mutex<HashMap<String, Hashed>>>,
}

/// A file's digest, with the length and time of change that it had then.
#[derive(Debug)]
struct Hashed {
    of: (u64, Option<SystemTime>),
    sha256: String,
}

/// Most files of one component.
const MAX_ASSETS: usize = 100_000;
/// Stands for the list of files among their digests; no file is called that, since hidden files are left out.
const LIST: &str = ".";

impl Assets {
    /// All files in and below `dir`, links and hidden files left out.
    ///
    /// # Errors
    /// A folder that cannot be read, or holds too many files.
    pub fn open(dir: &Path) -> std::io::Result<Self> {
        let mut files = BTreeMap::new();
        let mut folders = vec![(dir.to_owned(), String::new())];
        while let Some((folder, prefix)) = folders.pop() {
            for entry in std::fs::read_dir(&folder)? {
                let entry = entry?;
                let name = entry.file_name();
                let Some(name) = name.to_str().filter(|name| !name.starts_with('.')) else { continue };
                let (kind, name) = (entry.file_type()?, format!("{prefix}{name}"));
                if kind.is_dir() {
                    folders.push((entry.path(), format!("{name}/")));
                } else if kind.is_file() {
                    files.insert(name, (entry.path(), entry.metadata()?.len()));
                }
                if files.len() + folders.len() > MAX_ASSETS {
                    return Err(std::io::Error::other(format!("more than {MAX_ASSETS} files")));
                }
            }
        }
        Ok(Assets { files: Arc::new(files), digests: Arc::default() })
    }

    /// Names and places, by name.
    pub fn files(&self) -> impl Iterator<Item = (&str, &Path)> {
        self.files.iter().map(|(name, (path, _))| (name.as_str(), path.as_path()))
    }

    /// The first of `files` (names and digests as in [`crate::Served::files`]) that is another one here, and how.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn changed<'a>(
        &self,
        files: impl IntoIterator<Item = (&'a String, &'a Option<String>)>,
    ) -> std::io::Result<Option<String>> {
        for (name, before) in files {
            let now = self.digest(name)?;
            if now != *before {
                let told =
                    |digest: &Option<String>| digest.as_ref().map_or("not there".into(), |d| format!("sha256:{d}"));
                let what = if name == LIST { "the list of files".into() } else { format!("the file `{name}`") };
                return Ok(Some(format!("{what} was {}, now {}", told(before), told(&now))));
            }
        }
        Ok(None)
    }

    pub(crate) fn list(&self) -> Vec<(String, u64)> {
        self.files.iter().map(|(name, (_, size))| (name.clone(), *size)).collect()
    }

    /// Of the list of files.
    pub(crate) fn list_digest(&self) -> (&'static str, String) {
        let lines: String = self.files.iter().map(|(name, (_, size))| format!("{size} {name}\n")).collect();
        (LIST, sha256(lines.as_bytes()))
    }

    /// SHA-256 of a whole file, or of the list of files; `None` where there is no such file.
    pub(crate) fn digest(&self, name: &str) -> std::io::Result<Option<String>> {
        if name == LIST {
            return Ok(Some(self.list_digest().1));
        }
        let Some((path, _)) = self.files.get(name) else { return Ok(None) };
        let mut file = std::fs::File::open(path)?;
        let about = file.metadata()?;
        let of = (about.len(), about.modified().ok());
        let known = || self.digests.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(hashed) = known().get(name).filter(|hashed| hashed.of == of) {
            return Ok(Some(hashed.sha256.clone()));
        }
        let sha256 = sha256_of(&mut file)?;
        known().insert(name.to_owned(), Hashed { of, sha256: sha256.clone() });
        Ok(Some(sha256))
    }

    pub(crate) fn read(&self, name: &str, offset: u64, length: u64) -> Result<Vec<u8>, ServiceError> {
        let Some((path, _)) = self.files.get(name) else {
            return Err(ServiceError::NotFound(format!("there is no file `{name}`")));
        };
        let read = || {
            let mut file = std::fs::File::open(path)?;
            file.seek(SeekFrom::Start(offset))?;
            let mut bytes = Vec::new();
            file.take(length).read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        read().map_err(|error: std::io::Error| ServiceError::Upstream(format!("`{name}`: {error}")))
    }
}

/// A bounded map that outlives instances.
#[derive(Clone, Debug)]
pub struct Kv {
    map: Arc<Mutex<(HashMap<String, Vec<u8>>, u64)>>,
    max_bytes: u64,
}

/// Bytes that an entry counts for beside its key and value.
const ENTRY_BYTES: u64 = 64;

impl Kv {
    /// An empty map that holds up to `max_bytes`.
    pub fn new(max_bytes: u64) -> Self {
        Kv { map: Arc::default(), max_bytes }
    }

    pub(crate) fn get(&self, key: &str) -> Option<Vec<u8>> {
        self.map.lock().unwrap_or_else(PoisonError::into_inner).0.get(key).cloned()
    }

    pub(crate) fn set(&self, key: String, value: Option<Vec<u8>>) -> Result<(), ServiceError> {
        let mut held = self.map.lock().unwrap_or_else(PoisonError::into_inner);
        let (map, bytes) = &mut *held;
        let size = |key: &str, value: &[u8]| key.len() as u64 + value.len() as u64 + ENTRY_BYTES;
        let old = map.get(&key).map_or(0, |value| size(&key, value));
        let new = value.as_ref().map_or(0, |value| size(&key, value));
        if *bytes - old + new > self.max_bytes {
            return Err(ServiceError::Limit(format!("the map would hold more than {} bytes", self.max_bytes)));
        }
        *bytes = *bytes - old + new;
        match value {
            Some(value) => map.insert(key, value),
            None => map.remove(&key),
        };
        Ok(())
    }
}

/// What stands behind the grants of one environment. A service that is not there refuses every call.
#[derive(Clone, Default)]
pub struct Services {
    /// Model calls.
    pub llm: Option<Arc<dyn Llm>>,
    /// HTTP.
    pub http: Option<Http>,
    /// Published files.
    pub assets: Option<Assets>,
    /// Scratch map.
    pub kv: Option<Kv>,
}

impl std::fmt::Debug for Services {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let there = [self.assets.is_some(), self.http.is_some(), self.kv.is_some(), self.llm.is_some()];
        f.debug_set().entries(Grant::ALL.iter().zip(there).filter(|(_, there)| *there).map(|(g, _)| g)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Nothing;

    impl HttpClient for Nothing {
        fn fetch(&self, _: HttpRequest) -> BoxFuture<'static, Result<HttpResponse, ServiceError>> {
            Box::pin(async { Err(ServiceError::Upstream("no server".into())) })
        }
    }

    #[test]
    fn errors_name_no_more_than_the_host() {
        for (url, told) in [
            ("https://example.org:8/bot1234:key/send?k=v", "https://example.org:8"),
            ("https://example.org?k=v", "https://example.org"),
            ("https://user:key@example.org/", ""),
            ("/a", ""),
            ("a.b", "a.b"),
        ] {
            assert_eq!(origin(url), told);
        }
    }

    #[test]
    fn addresses_are_matched_whole() {
        let new = |allowed: &str| Http::new(&[allowed.to_owned()], Arc::new(Nothing));
        for bad in
            ["example.org", "https://", "https://a@b/", "ftp://x/", "https://*.org", "https://a/../b", "https://a b/"]
        {
            assert!(new(bad).is_err(), "{bad}");
        }
        let http = new("https://example.org/api/").unwrap();
        for good in ["https://example.org/api", "https://example.org/api/x?y=1", "https://example.org/api?x=a/../b"] {
            assert!(http.allows(good), "{good}");
        }
        for bad in [
            "https://example.org/apix",
            "https://example.org/",
            "http://example.org/api",
            "https://example.org/api/../secret",
            "https://example.org/api/%2E%2e/secret",
            "https://example.org/api/..\\secret",
            "https://example.org/api/\n",
        ] {
            assert!(!http.allows(bad), "{bad}");
        }
        let host = new("https://example.org").unwrap();
        assert!(host.allows("https://example.org/x") && host.allows("https://example.org"));
        for bad in ["https://example.org.evil.com/", "https://example.org@evil.com/", "https://example.org:8080/"] {
            assert!(!host.allows(bad), "{bad}");
        }
    }

    #[test]
    fn an_environment_behind_http_is_asked_by_paths() {
        struct Echo;
        impl HttpClient for Echo {
            fn fetch(&self, request: HttpRequest) -> BoxFuture<'static, Result<HttpResponse, ServiceError>> {
                let (status, headers) = (request.timeout.as_secs() as u16, Vec::new());
                Box::pin(async move { Ok(HttpResponse { status, headers, body: request.url.into_bytes() }) })
            }
        }
        let ask = |http: &Http, url: &str| {
            let timeout = Duration::from_secs(1000);
            let (method, url) = ("GET".into(), url.into());
            let request =
                HttpRequest { method, url, headers: Vec::new(), body: None, timeout, patience: timeout, max_bytes: 9 };
            futures::executor::block_on(http.fetch(request))
        };
        let http = Http::to_environment("http://h:1/a/", Arc::new(Echo), Duration::from_secs(10)).unwrap();
        let answer = ask(&http, "/v0.1/info").unwrap();
        assert_eq!((answer.status, answer.body.as_slice()), (11, b"http://h:1/a/v0.1/info".as_slice()));
        assert!(matches!(ask(&http, "/../b"), Err(ServiceError::Denied(_))));
        assert!(matches!(ask(&http, "http://h:1/b"), Err(ServiceError::Denied(_))));
        let plain = Http::new(&["http://h:1/a".to_owned()], Arc::new(Echo)).unwrap();
        assert!(matches!(ask(&plain, "/v0.1/info"), Err(ServiceError::Denied(_))));
        for bad in ["http://", "http://h:1/?a=b", "http://h:1/a#b"] {
            assert!(Http::to_environment(bad, Arc::new(Echo), Duration::ZERO).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_map_is_bounded() {
        let kv = Kv::new(200);
        kv.set("a".into(), Some(vec![0; 50])).unwrap();
        assert!(matches!(kv.set("b".into(), Some(vec![0; 50])), Err(ServiceError::Limit(_))));
        kv.set("a".into(), Some(vec![1; 100])).unwrap();
        assert_eq!(kv.get("a"), Some(vec![1; 100]));
        kv.set("a".into(), None).unwrap();
        kv.set("b".into(), Some(vec![0; 50])).unwrap();
        assert_eq!((kv.get("a"), kv.get("b").map(|b| b.len())), (None, Some(50)));
    }

    #[test]
    fn files_are_listed_and_read_in_parts() {
        let temp = tempfile::tempdir().unwrap();
        std::fs::create_dir(temp.path().join("words")).unwrap();
        std::fs::write(temp.path().join("words/en.txt"), "abcdef").unwrap();
        std::fs::write(temp.path().join(".hidden"), "x").unwrap();
        std::os::unix::fs::symlink("/etc/passwd", temp.path().join("link")).unwrap();
        let assets = Assets::open(temp.path()).unwrap();
        assert_eq!(assets.list(), [("words/en.txt".to_owned(), 6)]);
        assert_eq!(assets.read("words/en.txt", 2, 3).unwrap(), b"cde");
        assert_eq!(assets.read("words/en.txt", 4, 99).unwrap(), b"ef");
        assert_eq!(assets.read("words/en.txt", 9, 1).unwrap(), b"");
        for name in ["link", ".hidden", "words/../.hidden", "/etc/passwd"] {
            assert!(matches!(assets.read(name, 0, 1), Err(ServiceError::NotFound(_))), "{name}");
        }
    }
}
