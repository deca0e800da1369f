//! Which of a folder's files hold a split of a subset, told by their names or by the dataset's card. Owns those rules, which
//! are those of Hugging Face's library; must not know where a folder is, nor what is in its files.

use crate::card::{self, Subset};
use crate::{DataError, kinds, wrong};
use glob::{MatchOptions, Pattern};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Endings of files with rows.
const ENDINGS: [&str; 4] = ["jsonl", "ndjson", "json", "parquet"];
/// Files that say something about data.
const ABOUT: [&str; 5] = ["config.json", "dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json"];
/// Of the rollouts of a step all that there are, and those that were trained on, which the former has too.
const LOGS: [&str; 2] = ["all/traces.jsonl", "effective/traces.jsonl"];
/// Splits by the words that name them.
const WORDS: [(&str, &[&str]); 3] = [
    ("train", &["train", "training"]),
    ("validation", &["validation", "valid", "dev", "val"]),
    ("test", &["test", "testing", "eval", "evaluation"]),
];
/// The card.
pub(crate) const CARD: &str = "README.md";

/// A part of a dataset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Which subset; `None` where there is one only.
    pub subset: Option<String>,
    /// Which split.
    pub split: String,
}

impl Default for Wanted {
    fn default() -> Self {
        Wanted { subset: None, split: "train".into() }
    }
}

/// Whether a name ends as files of rows do.
pub fn is_file_name(name: &str) -> bool {
    name.rsplit_once('.').is_some_and(|(_, ending)| ENDINGS.contains(&ending))
}

/// The files of a local dataset that hold what is wanted, in the order of their names: of a folder those that its card or
/// their names say, those of all its folders included; of a single file it alone, and of a pattern such as `data/*.jsonl` those
/// that match, which have no parts.
///
/// # Errors
/// A path that cannot be read, no such split or subset, a pattern that nothing matches.
pub fn find(path: &Path, wanted: &Wanted) -> Result<Vec<PathBuf>, DataError> {
    if !path.is_dir() {
        if *wanted != Wanted::default() {
            return Err(wrong(path, "a file has neither subsets nor splits; name a folder or a dataset of the hub"));
        }
        let pattern = path.to_str().filter(|text| !path.exists() && text.contains(['*', '?', '[']));
        return pattern.map_or_else(|| Ok(vec![path.to_path_buf()]), |pattern| matching(path, pattern));
    }
    let mut names = Vec::new();
    walk(path, "", &mut names)?;
    let card = match names.iter().any(|name| name == CARD) {
        true => Some(std::fs::read_to_string(path.join(CARD)).map_err(|e| wrong(&path.join(CARD), e))?),
        false => None,
    };
    let chosen = select(&names, card.as_deref(), wanted).map_err(|reason| wrong(path, reason))?;
    Ok(chosen.iter().map(|name| path.join(name)).collect())
}

fn matching(path: &Path, pattern: &str) -> Result<Vec<PathBuf>, DataError> {
    let found = glob::glob(pattern).map_err(|e| wrong(path, format!("it is no pattern: {e}")))?;
    let mut found = found.collect::<Result<Vec<_>, _>>().map_err(|e| wrong(path, e))?;
    found.retain(|file| !file.is_dir());
    match found.is_empty() {
        true => Err(wrong(path, "there is no such file, and as a pattern it matches none")),
        false => Ok(found),
    }
}

/// The paths of all files below `dir`, with `/` between folders. Hidden folders are left out, and folders that are links, which
/// may lead in circles.
pub(crate) fn walk(dir: &Path, prefix: &str, names: &mut Vec<String>) -> Result<(), DataError> {
    for entry in std::fs::read_dir(dir).map_err(|e| wrong(dir, e))? {
        let path = entry.map_err(|e| wrong(dir, e))?.path();
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
        match path.is_dir() {
            true if path.is_symlink() || is_hidden(name) => {}
            true => walk(&path, &format!("{prefix}{name}/"), names)?,
            false => names.push(format!("{prefix}{name}")),
        }
    }
    Ok(())
}

fn is_hidden(part: &str) -> bool {
    part.starts_with('.') || part.starts_with("__")
}

/// Of the files of a dataset those that hold what is wanted, in the order of their names.
///
/// # Errors
/// There are none, with what there is instead.
pub(crate) fn select(names: &[String], card: Option<&str>, wanted: &Wanted) -> Result<Vec<String>, String> {
    let hidden = |name: &str| name.split('/').any(is_hidden);
    let about = |name: &str| ABOUT.contains(&name.rsplit('/').next().unwrap_or(name));
    let mut files: Vec<&str> = names.iter().map(String::as_str).collect();
    files.retain(|name| is_file_name(name) && !hidden(name) && !about(name));
    files.sort_unstable();
    if files.is_empty() {
        return Err(nothing(names));
    }
    once(&mut files);
    let subsets = card.map_or(Ok(Vec::new()), card::subsets)?;
    let chosen = match subsets.is_empty() {
        true => of_folder(&files, wanted)?,
        false => of_card(&files, &subsets, wanted)?,
    };
    Ok(chosen.into_iter().map(str::to_owned).collect())
}

/// That there is no file with rows, and what to do with the one that there is instead.
fn nothing(names: &[String]) -> String {
    let other = names.iter().find_map(|name| Some(format!("; `{name}`: {}", kinds::foreign(name)?)));
    format!("it has no file that ends in .{}{}", ENDINGS.join(", ."), other.unwrap_or_default())
}

/// Leaves out a second log of the same rollouts.
fn once(files: &mut Vec<&str>) {
    let [all, effective] = LOGS;
    let known: BTreeSet<String> = files.iter().map(|name| (*name).to_owned()).collect();
    let is_second = |name: &str| {
        let step = name.strip_suffix(all).filter(|step| step.is_empty() || step.ends_with('/'));
        step.is_some_and(|step| known.contains(&format!("{step}{effective}")))
    };
    let before = files.len();
    files.retain(|name| !is_second(name));
    if files.len() < before {
        tracing::info!(
            "rollouts are in `{all}` and, those that were trained on, in `{effective}` again: the data is the latter; a folder \
             `all`, or the pattern `*/train/{all}`, names the former"
        );
    }
}

fn of_card<'a>(files: &[&'a str], subsets: &[Subset], wanted: &Wanted) -> Result<Vec<&'a str>, String> {
    let listed = || subsets.iter().map(|subset| subset.name.as_str()).collect::<Vec<_>>().join(", ");
    let subset = match (&wanted.subset, subsets) {
        (Some(name), _) => subsets.iter().find(|subset| subset.name == *name),
        (None, [subset]) => Some(subset),
        (None, _) => subsets.iter().find(|s| s.default).or_else(|| subsets.iter().find(|s| s.name == "default")),
    };
    let subset = subset.ok_or_else(|| match &wanted.subset {
        Some(name) => format!("there is no subset `{name}`; it has {}", listed()),
        None => format!("choose with `subsets`; it has {}", listed()),
    })?;
    if subset.splits.is_empty() {
        return match &subset.folder {
            Some(folder) => below(files, folder, &wanted.split),
            None => by_names(files, "", &wanted.split),
        };
    }
    let (_, patterns) = subset.splits.iter().find(|(name, _)| *name == wanted.split).ok_or_else(|| {
        let names: Vec<&str> = subset.splits.iter().map(|(name, _)| name.as_str()).collect();
        no_split(&wanted.split, &names)
    })?;
    let mut parsed = Vec::with_capacity(patterns.len());
    for pattern in patterns {
        let path = match &subset.folder {
            Some(folder) => format!("{}/{pattern}", folder.trim_end_matches('/')),
            None => pattern.trim_start_matches("./").to_owned(),
        };
        parsed.push(Pattern::new(&path).map_err(|e| format!("`{path}` in its README.md is no pattern: {e}"))?);
    }
    let options = MatchOptions { require_literal_separator: true, ..MatchOptions::new() };
    let mut chosen = files.to_vec();
    chosen.retain(|name| parsed.iter().any(|pattern| pattern.matches_with(name, options)));
    match chosen.is_empty() {
        true => Err(format!(
            "no file that ends in .{} is at {}, where its README.md has the split `{}`",
            ENDINGS.join(", ."),
            patterns.join(", "),
            wanted.split
        )),
        false => Ok(chosen),
    }
}

fn of_folder<'a>(files: &[&'a str], wanted: &Wanted) -> Result<Vec<&'a str>, String> {
    match &wanted.subset {
        Some(subset) => below(files, subset, &wanted.split),
        None => by_names(files, "", &wanted.split),
    }
}

fn below<'a>(files: &[&'a str], folder: &str, split: &str) -> Result<Vec<&'a str>, String> {
    let folder = format!("{}/", folder.trim_matches('/'));
    let mut inside = files.to_vec();
    inside.retain(|name| name.starts_with(&folder));
    if inside.is_empty() {
        let folders: BTreeSet<&str> = files.iter().filter_map(|name| name.split_once('/')).map(|(f, _)| f).collect();
        let has = match folders.is_empty() {
            true => "it has no folders".to_owned(),
            false => format!("it has {}", folders.into_iter().collect::<Vec<_>>().join(", ")),
        };
        return Err(format!("there is no subset `{}`; {has}", folder.trim_end_matches('/')));
    }
    by_names(&inside, &folder, split)
}

/// Files whose names, without `prefix`, say that they hold a split: shards `NAME-00000-of-00001`, else a word for it in the
/// name of a folder, else in that of the file. Where no name says anything, all is `train`.
fn by_names<'a>(files: &[&'a str], prefix: &str, split: &str) -> Result<Vec<&'a str>, String> {
    let relative = |name: &'a str| name.strip_prefix(prefix).unwrap_or(name);
    let file = |name: &'a str| relative(name).rsplit('/').next().unwrap_or_default();
    let folders = |name: &'a str| relative(name).rsplit_once('/').map_or("", |(folders, _)| folders);
    let rules: [&dyn Fn(&'a str) -> BTreeSet<&'a str>; 3] =
        [&|name| shard(file(name)).into_iter().collect(), &|name| words(folders(name)), &|name| {
            words(file(name).rsplit_once('.').map_or("", |(stem, _)| stem))
        }];
    for splits_of in rules {
        let known: BTreeSet<&str> = files.iter().flat_map(|name| splits_of(name)).collect();
        if known.is_empty() {
            continue;
        }
        let mut chosen = files.to_vec();
        chosen.retain(|name| splits_of(name).contains(split));
        if chosen.is_empty() {
            // Another name: that of a file or a folder.
            chosen.extend(files.iter().filter(|name| is_named(relative(name), split)));
        }
        return match chosen.is_empty() {
            true => Err(no_split(split, &known.into_iter().collect::<Vec<_>>())),
            false => Ok(chosen),
        };
    }
    let mut chosen = files.to_vec();
    if split != "train" {
        chosen.retain(|name| is_named(relative(name), split));
    }
    match chosen.is_empty() {
        true => Err(no_split(split, &["train"])),
        false => Ok(chosen),
    }
}

/// `NAME` of a file `NAME-00000-of-00001…`.
fn shard(file: &str) -> Option<&str> {
    let (before, after) = file.split_once("-of-")?;
    let (name, number) = before.rsplit_once('-')?;
    let digits = |text: &str| text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    (digits(number) && digits(after.get(..5)?)).then_some(name)
}

/// The splits that words in a path name.
fn words<'a>(path: &str) -> BTreeSet<&'a str> {
    let of_word = |word: &str| WORDS.iter().find(|(_, words)| words.contains(&word)).map(|(split, _)| *split);
    path.split(|c: char| !c.is_ascii_alphabetic()).filter_map(of_word).collect()
}

fn is_named(path: &str, split: &str) -> bool {
    let stem = path.rsplit_once('.').map_or(path, |(stem, _)| stem);
    stem.split('/').any(|part| part == split)
}

fn no_split(split: &str, known: &[&str]) -> String {
    format!("there is no split `{split}`; it has {}", known.join(", "))
}

#[cfg(test)]
#[path = "layout_tests.rs"]
mod tests;
