//! One repository: what is in it, fetched into the cache as far as somebody asks for it. Owns the layout of the cache and
//! what it means that something is there whole.

use crate::{HubOptions, is_hub_id, is_plain_name};
use hf_hub::api::sync::{Api, ApiBuilder, ApiError, ApiRepo};
use hf_hub::{Cache, Repo, RepoType};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The branch that is meant where none is named.
const MAIN: &str = "main";
/// Where the cache of a repository keeps what was listed of a commit; unknown to the Python library, which leaves it alone.
const LISTINGS: &str = "listings";
/// A listing has at most so many bytes.
const MAX_LISTING: u64 = 1 << 28;
/// How often a broken download is gone on with.
const TRIES: u32 = 4;
/// Time before the first of these; it doubles.
const PAUSE: Duration = Duration::from_millis(300);

/// What a repository holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Weights and what belongs to them.
    Model,
    /// Rows.
    Dataset,
}

impl Kind {
    fn noun(self) -> &'static str {
        match self {
            Kind::Model => "model",
            Kind::Dataset => "dataset",
        }
    }

    /// What it would be on this machine.
    fn here(self) -> &'static str {
        match self {
            Kind::Model => "folder",
            Kind::Dataset => "file or folder",
        }
    }
}

/// A repository cannot be had. The message says what to do.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// The hub did not answer: what was fetched before may do.
    #[error("{0}")]
    Silent(String),
    /// It is not there, not allowed, or broken.
    #[error("{0}")]
    Refused(String),
}

/// The files of a commit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listing {
    /// The commit.
    pub commit: String,
    /// Bytes by path, where the hub says them.
    pub files: BTreeMap<String, Option<u64>>,
}

impl Listing {
    /// Whether it has a file.
    pub fn has(&self, file: &str) -> bool {
        self.files.contains_key(file)
    }
}

#[derive(Deserialize)]
struct Info {
    sha: String,
    #[serde(default)]
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
    #[serde(default)]
    size: Option<u64>,
}

/// A repository of the hub.
pub struct Hub<'a> {
    kind: Kind,
    id: &'a str,
    revision: &'a str,
    cache: Cache,
    options: &'a HubOptions,
}

impl<'a> Hub<'a> {
    /// The repository `id` at a branch, tag or commit (`None` is the main branch). Asks nothing.
    ///
    /// # Errors
    /// No id, no revision, no place for the cache.
    pub fn new(kind: Kind, id: &'a str, revision: Option<&'a str>, options: &'a HubOptions) -> Result<Self, HubError> {
        let refused = |text: String| Err(HubError::Refused(text));
        let here = kind.here();
        if !is_hub_id(id) {
            return refused(format!("there is no such {here}, and a hub id looks like `owner/name`"));
        }
        let revision = revision.unwrap_or(MAIN);
        if !revision.split('/').all(is_plain_name) {
            return refused(format!("`{revision}` is no name of a branch, tag or commit"));
        }
        match &options.cache {
            Some(cache) => Ok(Hub { kind, id, revision, cache: Cache::new(cache.clone()), options }),
            None => {
                refused(format!("there is no such {here}, and HF_HOME or HOME must be set to fetch it from the hub"))
            }
        }
    }

    /// The folder of a commit's files, as far as they are fetched.
    pub fn snapshot(&self, commit: &str) -> PathBuf {
        self.cache.repo(self.repo(commit)).pointer_path(commit)
    }

    /// The folder of the commit that the cache last had whole for the revision.
    pub fn cached(&self) -> Option<PathBuf> {
        let dir = self.snapshot(&self.cached_commit()?);
        dir.is_dir().then_some(dir)
    }

    /// What was listed of that commit; `None` where another library fetched it.
    pub fn cached_listing(&self) -> Option<Listing> {
        let text = std::fs::read(self.listing_path(&self.cached_commit()?)).ok()?;
        serde_json::from_slice(&text).ok()
    }

    /// The error of who may not ask and finds too little in the cache.
    pub fn offline(&self) -> HubError {
        let (here, noun, cache) = (self.kind.here(), self.kind.noun(), self.cache.path().display());
        HubError::Refused(format!(
            "there is no such {here}, HF_HUB_OFFLINE is set, and the {noun} is not in the cache `{cache}`"
        ))
    }

    /// Asks the hub what the revision has.
    ///
    /// # Errors
    /// No answer, no such repository, no access.
    pub fn list(&self) -> Result<Listing, HubError> {
        self.answers()?;
        let repo = self.api()?.repo(self.repo(self.revision));
        let answer = repo.info_request().query("blobs", "true").call();
        let text = answer.and_then(|mut answer| answer.body_mut().with_config().limit(MAX_LISTING).read_to_vec());
        let text = text.map_err(|e| self.explain(&ApiError::RequestError(Box::new(e)), None))?;
        let endpoint = &self.options.endpoint;
        let bad = |what: &str| HubError::Refused(format!("the hub at {endpoint} gives no {what}"));
        let info: Info = serde_json::from_slice(&text).map_err(|e| bad(&format!("listing that can be read: {e}")))?;
        if !is_plain_name(&info.sha) {
            return Err(bad("revision"));
        }
        let inside = |name: &str| name.split('/').all(|part| !part.is_empty() && part != "." && part != "..");
        let files = info.siblings.into_iter().filter(|s| inside(&s.rfilename)).map(|s| (s.rfilename, s.size));
        Ok(Listing { commit: info.sha, files: files.collect() })
    }

    /// Has these files of a listing in the cache, whole; what is there is not asked for. Returns their folder.
    ///
    /// # Errors
    /// A file that cannot be had. What was fetched of it is gone on with next time.
    pub fn fetch(&self, listing: &Listing, files: &[String]) -> Result<PathBuf, HubError> {
        let dir = self.snapshot(&listing.commit);
        let missing: Vec<&String> = files.iter().filter(|file| !dir.join(file).exists()).collect();
        if missing.is_empty() {
            return Ok(dir);
        }
        // Before the first file: from then on the cache knows the commit, and must know what belongs to it.
        self.note(listing).map_err(|e| self.unwritten(e))?;
        let repo = self.api()?.repo(self.repo(&listing.commit));
        for file in missing {
            tracing::info!(kind = self.kind.noun(), name = self.id, file, "downloading");
            let path = self.download(&repo, file).map_err(|e| self.explain(&e, Some(file)))?;
            let got = std::fs::metadata(&path).map(|meta| meta.len()).ok();
            if let (Some(got), Some(want)) = (got, listing.files.get(file).copied().flatten())
                && got != want
            {
                self.forget(&path);
                return Err(HubError::Refused(format!(
                    "`{file}`: {got} bytes came from {}, not {want}; try again",
                    self.options.endpoint
                )));
            }
        }
        Ok(dir)
    }

    /// Has the cache stand for the revision from now on: what is needed of the listing has been fetched.
    ///
    /// # Errors
    /// The cache cannot be written.
    pub fn keep(&self, listing: &Listing) -> Result<(), HubError> {
        let kept = || {
            self.note(listing)?;
            self.cache.repo(self.repo(self.revision)).create_ref(&listing.commit)
        };
        kept().map_err(|e| self.unwritten(e))
    }

    /// Writes a listing, whole or not at all.
    fn note(&self, listing: &Listing) -> std::io::Result<()> {
        let path = self.listing_path(&listing.commit);
        if let Some(dir) = path.parent() {
            std::fs::create_dir_all(dir)?;
        }
        let aside = path.with_extension(format!("{}.tmp", std::process::id()));
        std::fs::write(&aside, serde_json::to_vec(listing)?)?;
        std::fs::rename(&aside, &path)
    }

    fn unwritten(&self, error: std::io::Error) -> HubError {
        HubError::Refused(format!("the cache `{}` cannot be written: {error}", self.cache.path().display()))
    }

    fn repo(&self, revision: &str) -> Repo {
        let kind = match self.kind {
            Kind::Model => RepoType::Model,
            Kind::Dataset => RepoType::Dataset,
        };
        Repo::with_revision(self.id.to_owned(), kind, revision.to_owned())
    }

    fn folder(&self) -> PathBuf {
        self.cache.path().join(self.repo(self.revision).folder_name())
    }

    fn cached_commit(&self) -> Option<String> {
        let commit = std::fs::read_to_string(self.folder().join("refs").join(self.revision)).ok();
        commit.map(|commit| commit.trim().to_owned()).filter(|commit| is_plain_name(commit))
    }

    fn listing_path(&self, commit: &str) -> PathBuf {
        self.folder().join(LISTINGS).join(format!("{commit}.json"))
    }

    fn api(&self) -> Result<Api, HubError> {
        let builder = ApiBuilder::from_cache(self.cache.clone())
            .with_endpoint(self.options.endpoint.clone())
            .with_token(self.options.token.clone())
            .with_progress(false);
        builder.build().map_err(|e| self.explain(&e, None))
    }

    /// Asks the hub for anything at all, with a time limit, which the client library has none of.
    fn answers(&self) -> Result<(), HubError> {
        let config = ureq::Agent::config_builder().timeout_global(Some(self.options.patience)).build();
        match ureq::Agent::new_with_config(config).get(&self.options.endpoint).call() {
            Ok(_) | Err(ureq::Error::StatusCode(_)) => Ok(()),
            Err(e) => Err(HubError::Silent(format!("the hub at {} does not answer: {e}", self.options.endpoint))),
        }
    }

    /// The client's own retries ask for bytes that are there already; begun anew, it goes on where the file ends.
    fn download(&self, repo: &ApiRepo, file: &str) -> Result<PathBuf, ApiError> {
        let mut pause = PAUSE;
        for _ in 1..TRIES {
            match repo.download(file) {
                Err(error) if passes(&error) => {
                    tracing::warn!(name = self.id, file, %error, "the download broke off; going on");
                    std::thread::sleep(pause);
                    pause *= 2;
                }
                // There are more bytes than the file has: they are of something else.
                Err(error) if matches!(error, ApiError::InvalidResume) || status(&error) == Some(416) => {
                    self.forget_part(repo, file)?;
                }
                other => return other,
            }
        }
        repo.download(file)
    }

    fn forget_part(&self, repo: &ApiRepo, file: &str) -> Result<(), ApiError> {
        let api = self.api().map_err(|e| ApiError::IoError(std::io::Error::other(e.to_string())))?;
        let etag = api.metadata(&repo.url(file))?.etag().to_owned();
        let part = self.cache.repo(self.repo(self.revision)).blob_path(&etag).with_extension("part");
        Ok(std::fs::remove_file(part)?)
    }

    /// Removes a file of a snapshot and what it points to.
    fn forget(&self, path: &Path) {
        for path in [std::fs::canonicalize(path).ok().as_deref(), Some(path)].into_iter().flatten() {
            // What stays is found to be wrong again.
            let _ = std::fs::remove_file(path);
        }
    }

    fn explain(&self, error: &ApiError, file: Option<&str>) -> HubError {
        let (endpoint, noun, here) = (&self.options.endpoint, self.kind.noun(), self.kind.here());
        let what = file.map(|f| format!("`{f}`: ")).unwrap_or_default();
        let token = if self.options.token.is_some() { "the token given has no access" } else { "set HF_TOKEN" };
        let at = match self.revision {
            MAIN => String::new(),
            revision => format!(" with the revision `{revision}`"),
        };
        HubError::Refused(match status(error) {
            Some(404) => format!("{what}there is no such {here} here and no such {noun}{at} at {endpoint} (404)"),
            Some(code @ (401 | 403)) => {
                format!("{what}{endpoint} refuses access ({code}): it does not exist, is private or gated; {token}")
            }
            Some(code) => format!("{what}{endpoint} answers with status {code}"),
            None => {
                let text = format!("{what}cannot be fetched from {endpoint}: {error}");
                return if file.is_none() { HubError::Silent(text) } else { HubError::Refused(text) };
            }
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

/// Whether trying again may help: the connection broke, or the hub is busy.
fn passes(error: &ApiError) -> bool {
    match (error, status(error)) {
        (_, Some(code)) => code == 429 || code >= 500,
        (ApiError::RequestError(_) | ApiError::IoError(_), None) => true,
        _ => false,
    }
}
