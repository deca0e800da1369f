//! From the files that a data section names to documents on disk. Owns which files these are, what is said about rows that
//! cannot be used, and where documents are kept while the run lasts; how rows become tokens is the renderer's business.

mod columns;

use crate::assets;
use crate::caches;
use crate::failure::{Failure, input};
use crate::machine;
use crate::sft::data::{Texts, documents};
use prl_config::{FileData, StoppingStrategy};
use prl_data::{DataError, Row, Skipped, Wanted};
use prl_render::{COLUMNS, LossMask, Renderer, read_conversation};
use prl_trainer::{Document, Part, SpoolWriter, Turns, Until};
use rayon::prelude::*;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Time between two lines that say how far the reading has come.
const BETWEEN_LINES: Duration = Duration::from_secs(5);
/// Rows that are rendered at a time.
const BATCH: usize = 256;

/// Documents that are being put on disk.
pub struct Filling {
    key: String,
    row: usize,
    writer: SpoolWriter,
    folder: PathBuf,
    conversations: u64,
    documents: u64,
    tokens: u64,
    /// Tokens in rows: of documents that train, as far as these reach.
    used: u64,
    cut: u64,
    without_target: u64,
}

impl Filling {
    /// For the section `key`, whose rows have `row` tokens. The file has no name: it is gone when the process is.
    pub fn new(key: &str, row: usize) -> Result<Self, Failure> {
        let folder = caches::folder("documents").unwrap_or_else(std::env::temp_dir);
        let file = std::fs::create_dir_all(&folder).and_then(|()| tempfile::tempfile_in(&folder));
        let file = file.map_err(|e| no_room(key, &folder, &e))?;
        Ok(Filling {
            key: key.to_owned(),
            row,
            writer: SpoolWriter::new(file),
            folder,
            conversations: 0,
            documents: 0,
            tokens: 0,
            used: 0,
            cut: 0,
            without_target: 0,
        })
    }

    /// Adds the documents of a conversation.
    pub fn push(&mut self, documents: Vec<Document>) -> Result<(), Failure> {
        self.conversations += 1;
        for document in documents {
            self.documents += 1;
            self.tokens += document.ids.len() as u64;
            // Some token must be predicted, and from a token before it: documents are cut to rows.
            match document.mask.iter().take(self.row).skip(1).any(|target| *target) {
                true => {
                    self.used += document.ids.len().min(self.row) as u64;
                    self.cut += u64::from(document.ids.len() > self.row);
                }
                false => self.without_target += 1,
            }
            self.writer.push(&document).map_err(|e| no_room(&self.key, &self.folder, &e))?;
        }
        Ok(())
    }

    /// Says how far the part `name` has come.
    fn tell(&self, name: &str) {
        let Filling { key, conversations, tokens, .. } = self;
        tracing::info!(
            target: "prl_trainer",
            "`{key}`: rendering; {conversations} conversations ({name}) and {tokens} tokens so far"
        );
    }

    /// All of it, as the part `name`, from a commit of the hub.
    pub fn finish(self, name: &str, commit: Option<String>) -> Result<Part, Failure> {
        let Filling { key, row, writer, folder, conversations, documents, tokens, used, cut, without_target } = self;
        if documents == without_target {
            return Err(Failure::input(format_args!(
                "`{key}`: none of the {conversations} conversations has a token to train on within {row} tokens; see \
                 `loss_mask` and `seq_len`"
            )));
        }
        tracing::info!(
            target: "prl_trainer",
            "`{key}`: {conversations} conversations ({name}) are {documents} documents of {tokens} tokens, which fill at least \
             {} rows of {row} tokens an epoch",
            used.div_ceil(row as u64)
        );
        if without_target > 0 {
            tracing::warn!(
                target: "prl_trainer",
                "`{key}`: {without_target} of the {documents} documents ({name}) have no token to train on within {row} tokens \
                 and are left out; see `loss_mask` and `seq_len`"
            );
        }
        if cut > 0 {
            tracing::warn!(
                target: "prl_trainer",
                "`{key}`: {cut} of the {documents} documents ({name}) are longer than {row} tokens and are cut; see `seq_len`"
            );
        }
        let documents = writer.finish().map_err(|e| no_room(&key, &folder, &e))?;
        Ok(Part { name: name.to_owned(), documents, commit })
    }
}

fn no_room(key: &str, folder: &Path, error: &std::io::Error) -> Failure {
    if prl_data::is_too_many_files(error) {
        return Failure::run(format_args!(
            "`{key}`: each subset or split is kept in a file of its own, and no more can be open ({error}): `ulimit -n` says how \
             many there may be, and raises it"
        ));
    }
    Failure::run(format_args!(
        "`{key}`: its tokens cannot be kept in `{}`: {error}; `XDG_CACHE_HOME` names another place",
        folder.display()
    ))
}

/// What the section wants, each with the name that metrics give it: as short as tells them apart.
fn wanted(key: &str, files: &FileData) -> Result<Vec<(String, Wanted)>, Failure> {
    let subset = |name: &String| Some(name.clone());
    let wanted: Vec<Wanted> = match (&files.subsets, &files.splits) {
        (None, None) => vec![Wanted::default()],
        (Some(subsets), None) => {
            subsets.iter().map(|name| Wanted { subset: subset(name), ..Wanted::default() }).collect()
        }
        (None, Some(splits)) => splits.iter().map(|split| Wanted { subset: None, split: split.clone() }).collect(),
        (Some(subsets), Some(splits)) => {
            let both = subsets.iter().zip(splits);
            both.map(|(name, split)| Wanted { subset: subset(name), split: split.clone() }).collect()
        }
    };
    let long = |one: &Wanted| match &one.subset {
        None => one.split.clone(),
        Some(subset) => format!("{}/{}", subset.trim_matches('/'), one.split),
    };
    let short = |one: &Wanted| match &one.subset {
        Some(subset) if wanted.iter().filter(|other| other.subset == one.subset).count() == 1 => {
            subset.trim_matches('/').to_owned()
        }
        _ => long(one),
    };
    let names = [wanted.iter().map(short).collect::<Vec<String>>(), wanted.iter().map(long).collect()];
    let differ = |names: &Vec<String>| names.iter().collect::<BTreeSet<_>>().len() == names.len();
    let Some(names) = names.into_iter().find(differ) else {
        return Err(Failure::input(format_args!(
            "`{key}`: metrics could not tell its subsets and splits apart, two of which are the same written one behind the other"
        )));
    };
    Ok(names.into_iter().zip(wanted).collect())
}

/// How the section's sources take turns.
pub fn turns(files: &FileData) -> Turns {
    let until = match files.stopping_strategy {
        StoppingStrategy::FirstExhausted => Until::First,
        StoppingStrategy::AllExhausted => Until::All,
    };
    Turns { probabilities: files.probabilities.clone(), until, seed: files.seed }
}

/// The documents of the section `key`: a part for each subset or split. `turns` is how they are drawn, where not each is
/// taken once.
pub fn parts(
    texts: &Texts<'_>,
    key: &str,
    files: &FileData,
    (loss, turns): (LossMask, Option<&Turns>),
) -> Result<Vec<Part>, Failure> {
    let renderer = texts.renderer()?;
    let (section, key) = (key, format!("{key}.name"));
    let bad = |error: DataError| input(format!("`{key}`"))(error);
    let (names, wanted): (Vec<String>, Vec<Wanted>) = wanted(section, files)?.into_iter().unzip();
    // A document each, until more is known.
    let mut lens = vec![1; wanted.len()];
    let memory = machine::memory().map_or(u64::MAX, |memory| memory.available);
    let check =
        |lens: &[usize]| turns.map_or(Ok(()), |turns| turns.check(lens, memory)).map_err(input(format!("`{section}`")));
    check(&lens)?;
    let Found { path, commit, files: found } = find(texts, &key, files, &wanted)?;
    let mut parts = Vec::new();
    for (at, (name, found)) in names.into_iter().zip(found).enumerate() {
        let mut rows = prl_data::rows(found, &COLUMNS).map_err(bad)?;
        let (mut filling, mut skipped) = (Filling::new(&key, files.seq_len)?, Skipped::default());
        let mut told = Instant::now();
        loop {
            let batch: Vec<Row> = rows.by_ref().take(BATCH).collect::<Result<_, _>>().map_err(bad)?;
            if batch.is_empty() {
                break;
            }
            let read: Vec<_> = batch.into_par_iter().map(|row| (row.place, read(renderer, row.value, loss))).collect();
            for (place, read) in read {
                match read {
                    Ok(documents) => filling.push(documents)?,
                    Err(reason) => skipped.note(place, reason),
                }
            }
            if let Err(error) = skipped.check_so_far(&path, filling.conversations) {
                tell(&path, &skipped, filling.conversations);
                return Err(bad(error));
            }
            if told.elapsed() >= BETWEEN_LINES {
                filling.tell(&name);
                told = Instant::now();
            }
        }
        tell(&path, &skipped, filling.conversations);
        skipped.check_share(&path, filling.conversations).map_err(bad)?;
        let part = filling.finish(&name, commit.clone())?;
        lens[at] = part.documents.len();
        check(&lens)?;
        parts.push(part);
    }
    Ok(parts)
}

/// Where rows are.
struct Found {
    /// What the data is called.
    path: PathBuf,
    /// The hub's, where it is from there.
    commit: Option<String>,
    /// The files of each part.
    files: Vec<Vec<PathBuf>>,
}

/// The files of each part: of the local file or folder of that name, else of the hub's dataset.
fn find(texts: &Texts<'_>, key: &str, files: &FileData, wanted: &[Wanted]) -> Result<Found, Failure> {
    let (path, revision) = (texts.path_of(key, &files.name), files.revision.as_deref());
    let bad = || input(format!("`{key}`"));
    // A misspelt file is not looked for on the hub.
    if path.exists() || !prl_hub::is_hub_id(&files.name) || prl_data::is_file_name(&files.name) {
        if revision.is_some() {
            let key = key.replace(".name", ".revision");
            let path = path.display();
            return Err(Failure::input(format_args!("`{key}` is for datasets of the hub, and `{path}` is not one")));
        }
        let found = wanted.iter().map(|one| prl_data::find(&path, one)).collect::<Result<_, _>>();
        return found.map(|files| Found { path, commit: None, files }).map_err(bad());
    }
    let prl_data::Fetched { commit, parts } =
        prl_data::fetch(&files.name, revision, wanted, &assets::hub()).map_err(bad())?;
    Ok(Found { path: PathBuf::from(&files.name), commit: Some(commit), files: parts })
}

fn read(
    renderer: &Renderer,
    value: Result<serde_json::Value, String>,
    loss: LossMask,
) -> Result<Vec<Document>, String> {
    documents(renderer, &read_conversation(&columns::decoded(value?)?)?, loss)
}

fn tell(path: &Path, skipped: &Skipped, good: u64) {
    for (place, reason) in &skipped.first {
        tracing::warn!(target: "prl_trainer", "{place}: row skipped: {reason}");
    }
    let bad = skipped.count;
    if bad > skipped.first.len() as u64 {
        tracing::warn!(target: "prl_trainer", "{}: {bad} of {} rows are skipped", path.display(), good + bad);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_named_by_what_tells_them_apart() {
        let names = |subsets: &[&str], splits: &[&str]| {
            let list =
                |names: &[&str]| Some(names.iter().map(|n| n.to_string()).collect()).filter(|l: &Vec<_>| !l.is_empty());
            let files = FileData { subsets: list(subsets), splits: list(splits), ..FileData::default() };
            wanted("data", &files).unwrap().into_iter().map(|(name, w)| (name, w.subset, w.split)).collect::<Vec<_>>()
        };
        let one =
            |name: &str, subset: Option<&str>, split: &str| (name.into(), subset.map(str::to_owned), split.into());
        assert_eq!(names(&[], &[]), [one("train", None, "train")]);
        assert_eq!(names(&["a", "b"], &[]), [one("a", Some("a"), "train"), one("b", Some("b"), "train")]);
        assert_eq!(names(&[], &["x", "y"]), [one("x", None, "x"), one("y", None, "y")]);
        let both = [one("a/x", Some("a"), "x"), one("b", Some("b"), "x"), one("a/y", Some("a"), "y")];
        assert_eq!(names(&["a", "b", "a"], &["x", "x", "y"]), both);
        // Where the short names are the same, all are long.
        let told = names(&["a/train", "a", "a"], &["train", "train", "test"]);
        assert_eq!(told.iter().map(|one| one.0.as_str()).collect::<Vec<_>>(), ["a/train/train", "a/train", "a/test"]);
        assert_eq!(names(&["a/"], &[]), [one("a", Some("a/"), "train")]);
        let files = FileData {
            subsets: Some(["a/b", "a", "a/b", "a"].map(str::to_owned).into()),
            splits: Some(["c", "b/c", "d", "d"].map(str::to_owned).into()),
            ..FileData::default()
        };
        assert!(wanted("data", &files).is_err());
    }
}
