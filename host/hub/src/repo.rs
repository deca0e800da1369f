//! One repository: what is in it, fetched into the cache as far as somebody asks for it. Owns what it means that something is
//! there, and when the cache may stand in for the hub.

use crate::cache::Cache;
use crate::client::{Client, Trouble};
use crate::download::download;
use crate::{HubOptions, is_hub_id, is_plain_name};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use ureq::http::StatusCode;

/// The branch that is meant where none is named.
const MAIN: &str = "main";
/// A listing has at most so many bytes, which is half a million files.
const MAX_LISTING: u64 = 1 << 27;

/// What a repository holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Weights and what belongs to them.
    Model,
    /// Rows.
    Dataset,
}

impl Kind {
    pub(crate) fn noun(self) -> &'static str {
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

    fn size(&self, file: &str) -> Option<u64> {
        self.files.get(file).copied().flatten()
    }
}

/// What the cache has of a revision.
pub struct Cached {
    /// The folder of the commit's files, as far as they are fetched.
    pub dir: PathBuf,
    /// What the commit has; `None` where another library fetched it.
    pub listing: Option<Listing>,
    /// The commit.
    pub commit: String,
}

impl Cached {
    /// Whether a file is there, with as many bytes as it was listed with.
    pub fn has(&self, file: &str) -> bool {
        is_whole(&self.dir.join(file), self.listing.as_ref().and_then(|listing| listing.size(file)))
    }
}

/// What is to be had of a revision.
pub enum Listed<T> {
    /// What the hub has.
    Here(Listing),
    /// What the cache has, where the hub is not asked or says nothing.
    Cached(T),
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
            Some(cache) => Ok(Hub { kind, id, revision, cache: Cache::new(cache, kind, id), options }),
            None => {
                refused(format!("there is no such {here}, and HF_HOME or HOME must be set to fetch it from the hub"))
            }
        }
    }

    /// The folder of a commit's files, as far as they are fetched.
    pub fn snapshot(&self, commit: &str) -> PathBuf {
        self.cache.snapshot(commit)
    }

    /// What the cache last had whole for the revision.
    pub fn cached(&self) -> Option<Cached> {
        let commit = self.cache.commit(self.revision)?;
        let dir = self.snapshot(&commit);
        dir.is_dir().then(|| Cached { dir, listing: self.cache.listing(&commit), commit })
    }

    /// What the hub has, or what `cached` finds: where the hub may not be asked, and, with a warning, where it does not
    /// answer. An answer counts, whatever it is.
    ///
    /// # Errors
    /// No such repository, no access; nothing in the cache that would do; what `cached` says against it.
    pub fn list_or<T>(&self, cached: impl FnOnce() -> Result<Option<T>, String>) -> Result<Listed<T>, HubError> {
        let (here, noun, name) = (self.kind.here(), self.kind.noun(), self.id);
        if self.options.offline {
            let found = cached().map_err(HubError::Refused)?;
            return found.map(Listed::Cached).ok_or_else(|| {
                HubError::Refused(format!(
                    "there is no such {here}, HF_HUB_OFFLINE is set, and the {noun} is not in the cache `{}`, or not whole",
                    self.cache.root().display()
                ))
            });
        }
        match self.list() {
            Ok(listing) => Ok(Listed::Here(listing)),
            Err(HubError::Silent(reason)) => match cached().map_err(HubError::Refused)? {
                Some(found) => {
                    tracing::warn!(kind = noun, name, "{reason}; using the cached copy");
                    Ok(Listed::Cached(found))
                }
                None => Err(HubError::Refused(format!(
                    "there is no such {here} here, and {reason}. Check the name, or the connection (HF_ENDPOINT)"
                ))),
            },
            Err(refused) => Err(refused),
        }
    }

    /// Asks the hub what the revision has.
    ///
    /// # Errors
    /// No answer, no such repository, no access.
    pub fn list(&self) -> Result<Listing, HubError> {
        let client = Client::new(self.options)?;
        let (owner, name) = self.id.split_once('/').unwrap_or_default();
        let kind = format!("{}s", self.kind.noun());
        let mut url = client.url(["api", &kind, owner, name, "revision", self.revision]);
        url.set_query(Some("blobs=true"));
        let (id, endpoint, noun) = (self.id, &self.options.endpoint, self.kind.noun());
        tracing::info!("asking {endpoint} what the {noun} `{id}` has");
        let answer = client.persist((id, false), || client.text(&url, MAX_LISTING));
        let text = answer.map_err(|trouble| self.explain(trouble, None))?;
        let bad = |what: &str| self.explain(Trouble::Bad(format!("it gives no {what}")), None);
        let info: Info = serde_json::from_slice(&text).map_err(|e| bad(&format!("listing that can be read: {e}")))?;
        if !is_plain_name(&info.sha) {
            return Err(bad("commit"));
        }
        let files = info.siblings.into_iter().filter(|s| is_inside(&s.rfilename)).map(|s| (s.rfilename, s.size));
        Ok(Listing { commit: info.sha, files: files.collect() })
    }

    /// Has these files of a listing in the cache, whole; what is there is not asked for. Returns their folder.
    ///
    /// # Errors
    /// A file that cannot be had. What was fetched of it is gone on with next time.
    pub fn fetch(&self, listing: &Listing, files: &[String]) -> Result<PathBuf, HubError> {
        let dir = self.snapshot(&listing.commit);
        if let Some(outside) = files.iter().find(|file| !is_inside(file)) {
            return Err(HubError::Refused(format!("`{outside}` is no file inside of a {}", self.kind.noun())));
        }
        let missing: Vec<&String> =
            files.iter().filter(|file| !is_whole(&dir.join(file), listing.size(file))).collect();
        if missing.is_empty() {
            return Ok(dir);
        }
        // Before the first file: from then on the cache knows the commit, and must know what belongs to it.
        self.cache.note(listing).map_err(|e| HubError::Refused(self.unwritten(&e)))?;
        let client = Client::new(self.options)?;
        for file in missing {
            tracing::info!(kind = self.kind.noun(), name = self.id, file, "downloading");
            let kind = matches!(self.kind, Kind::Dataset).then_some("datasets");
            let place = kind.into_iter().chain(self.id.split('/')).chain(["resolve", &listing.commit]);
            let url = client.url(place.chain(file.split('/')));
            let wanted = (listing.commit.as_str(), file.as_str(), listing.size(file));
            download((&client, &self.cache), &url, wanted).map_err(|trouble| self.explain(trouble, Some(file)))?;
        }
        Ok(dir)
    }

    /// Has the cache stand for the revision from now on: what is needed of the listing has been fetched.
    ///
    /// # Errors
    /// The cache cannot be written.
    pub fn keep(&self, listing: &Listing) -> Result<(), HubError> {
        let noted = self.cache.note(listing).and_then(|()| self.cache.set_commit(self.revision, &listing.commit));
        noted.map_err(|e| HubError::Refused(self.unwritten(&e)))
    }

    fn unwritten(&self, error: &io::Error) -> String {
        let full = matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
        let what = if full { "; make room there, or name another place (HF_HOME)" } else { "" };
        format!("the cache `{}` cannot be written: {error}{what}", self.cache.root().display())
    }

    fn explain(&self, trouble: Trouble, file: Option<&str>) -> HubError {
        let (endpoint, noun, here) = (&self.options.endpoint, self.kind.noun(), self.kind.here());
        let what = file.map(|f| format!("`{f}`: ")).unwrap_or_default();
        let code = match trouble {
            Trouble::Away(reason) | Trouble::Passing { reason, .. } if file.is_none() => {
                return HubError::Silent(format!("the hub at {endpoint} does not answer: {reason}"));
            }
            Trouble::Away(reason) | Trouble::Passing { reason, .. } | Trouble::Bad(reason) => {
                let of = if file.is_some() { "cannot be fetched from" } else { "there is trouble with the hub at" };
                return HubError::Refused(format!("{what}{of} {endpoint}: {reason}"));
            }
            Trouble::Disk(error) => {
                return HubError::Refused(format!("{what}{}", self.unwritten(&error)));
            }
            Trouble::Status(code) => code,
        };
        let token = if self.options.token.is_some() { "the token given has no access" } else { "set HF_TOKEN" };
        let at = match self.revision {
            MAIN => String::new(),
            revision => format!(" with the revision `{revision}`"),
        };
        let number = code.as_u16();
        HubError::Refused(match code {
            StatusCode::NOT_FOUND => {
                format!("{what}there is no such {here} here and no such {noun}{at} at {endpoint} ({number})")
            }
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                format!("{what}{endpoint} refuses access ({number}): it does not exist, is private or gated; {token}")
            }
            _ => format!("{what}{endpoint} answers with status {number}"),
        })
    }
}

/// Whether a path can be one, and stays inside of the folder that it is put in.
fn is_inside(name: &str) -> bool {
    !name.contains('\0') && name.split('/').all(|part| !part.is_empty() && part != "." && part != "..")
}

/// Whether there is a file with as many bytes as it must have, where that is known.
pub(crate) fn is_whole(path: &Path, size: Option<u64>) -> bool {
    std::fs::metadata(path).is_ok_and(|meta| meta.is_file() && size.is_none_or(|size| size == meta.len()))
}
