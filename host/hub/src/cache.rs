//! A repository in the cache: blobs by the names of their content, commits as links to them, and which commit a revision is
//! at. Owns this layout, which is that of the Python library; must not know where blobs come from.

use crate::{Kind, Listing, is_plain_name};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// What was listed of commits; unknown to the Python library, which leaves it alone.
const LISTINGS: &str = "listings";

/// A repository's folder.
pub(crate) struct Cache {
    root: PathBuf,
    repo: PathBuf,
    locks: PathBuf,
}

impl Cache {
    pub fn new(root: &Path, kind: Kind, id: &str) -> Self {
        let name = format!("{}s--{}", kind.noun(), id.replace('/', "--"));
        Cache { root: root.to_owned(), repo: root.join(&name), locks: root.join(".locks").join(&name) }
    }

    /// The cache of all repositories.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The folder of a commit's files.
    pub fn snapshot(&self, commit: &str) -> PathBuf {
        self.repo.join("snapshots").join(commit)
    }

    /// Where content of this name is, once it is whole.
    pub fn blob(&self, etag: &str) -> PathBuf {
        self.repo.join("blobs").join(etag)
    }

    /// The commit that the revision was last kept at.
    pub fn commit(&self, revision: &str) -> Option<String> {
        let commit = std::fs::read_to_string(self.reference(revision)).ok();
        commit.map(|commit| commit.trim().to_owned()).filter(|commit| is_plain_name(commit))
    }

    /// Has the revision be at a commit.
    pub fn set_commit(&self, revision: &str, commit: &str) -> io::Result<()> {
        write(&self.reference(revision), commit.as_bytes())
    }

    /// What was listed of a commit; `None` where another library fetched it.
    pub fn listing(&self, commit: &str) -> Option<Listing> {
        serde_json::from_slice(&std::fs::read(self.listing_path(commit)).ok()?).ok()
    }

    /// Remembers what was listed of a commit.
    pub fn note(&self, listing: &Listing) -> io::Result<()> {
        write(&self.listing_path(&listing.commit), &serde_json::to_vec(listing)?)
    }

    /// Has the file of a commit be the content of this name.
    pub fn point(&self, commit: &str, file: &str, etag: &str) -> io::Result<()> {
        let place = self.snapshot(commit).join(file);
        make_parent(&place)?;
        // From the file's folder up to the repository's: out of the folders in its name, the commit's, and `snapshots`.
        let up = "../".repeat(file.matches('/').count() + 2);
        let aside = aside(&place, "tmp");
        std::os::unix::fs::symlink(format!("{up}blobs/{etag}"), &aside)?;
        std::fs::rename(&aside, &place)
    }

    /// A place to put content of this name until it is whole: the one that an earlier attempt has left bytes in, or, while
    /// another process fills that, one that nobody else knows.
    pub fn part(&self, etag: &str) -> io::Result<Part> {
        let blob = self.blob(etag);
        make_parent(&blob)?;
        // The lock that the Python library takes before it writes. Where none can be taken, the place is not shared.
        let lock = self.locks.join(format!("{etag}.lock"));
        let lock = make_parent(&lock).and_then(|()| File::options().create(true).append(true).open(&lock));
        let lock = lock.ok().filter(|lock| lock.try_lock().is_ok());
        let path = match lock {
            Some(_) => with_ending(&blob, "incomplete"),
            None => aside(&blob, "incomplete"),
        };
        let file = File::options().create(true).truncate(false).read(true).write(true).open(&path)?;
        Ok(Part { file, path, lock })
    }

    fn reference(&self, revision: &str) -> PathBuf {
        self.repo.join("refs").join(revision)
    }

    fn listing_path(&self, commit: &str) -> PathBuf {
        self.repo.join(LISTINGS).join(format!("{commit}.json"))
    }
}

/// A blob that is not whole yet.
pub(crate) struct Part {
    /// Open for reading and writing.
    pub file: File,
    path: PathBuf,
    /// Held as long as the place is ours; none where the place is of this attempt alone.
    lock: Option<File>,
}

impl Part {
    /// It is whole: puts it at its place. Whoever was there first had the same.
    pub fn place(self, blob: &Path) -> io::Result<()> {
        self.file.sync_all()?;
        std::fs::rename(&self.path, blob)
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        if self.lock.is_none() {
            // Nobody would find it again; once it is placed, there is nothing.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Writes a small file, whole or not at all.
fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    make_parent(path)?;
    let aside = aside(path, "tmp");
    std::fs::write(&aside, bytes)?;
    std::fs::rename(&aside, path)
}

fn make_parent(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), std::fs::create_dir_all)
}

/// A name beside `path` that nobody else has.
fn aside(path: &Path, ending: &str) -> PathBuf {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let (process, count) = (std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    with_ending(path, &format!("{process}-{count}.{ending}"))
}

fn with_ending(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{ending}"));
    name.into()
}
