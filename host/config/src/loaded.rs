//! Loading: from words of the command line to a checked configuration that knows where its values come from.
//!
//! Owns the order of the steps. Must not know concrete keys.

use crate::engine::check::{Checked, check};
use crate::engine::layers::Load;
use crate::engine::suggest::join;
use crate::engine::value::{Origin, Val};
use crate::error::{ConfigErrors, ProblemKind};
use crate::schema::Node;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value as Json;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};

/// Where a value comes from.
#[derive(Clone, Debug, PartialEq)]
pub enum Source {
    /// Nobody set it.
    Default,
    /// A configuration file.
    File {
        /// The path as given.
        path: PathBuf,
        /// From 1.
        line: usize,
        /// In characters, from 1.
        column: usize,
    },
    /// A flag, as typed.
    Flag(String),
    /// Filled from another key.
    Shared {
        /// That key.
        key: String,
        /// Where that key's value comes from.
        from: Box<Source>,
    },
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Default => write!(f, "default"),
            Source::File { path, line, column } => write!(f, "{}:{line}:{column}", path.display()),
            Source::Flag(text) => write!(f, "{text}"),
            Source::Shared { key, from } => write!(f, "{key}, {from}"),
        }
    }
}

/// A checked configuration and the sources of its values.
#[derive(Clone, Debug)]
pub struct Loaded<C> {
    /// The effective configuration.
    pub config: C,
    pub(crate) root: Node,
    sources: BTreeMap<String, Source>,
    dirs: BTreeMap<String, PathBuf>,
}

impl<C> Loaded<C> {
    /// Where the value of a dotted key comes from; items of lists are numbered (`orchestrator.train.env.0.id`).
    pub fn source(&self, key: &str) -> Source {
        self.sources.get(key).cloned().unwrap_or(Source::Default)
    }

    /// Sources of every value that somebody set, by dotted key.
    pub fn sources(&self) -> &BTreeMap<String, Source> {
        &self.sources
    }

    /// The folder that a relative path in the value of `key` is relative to: that of the file it was written in. Empty,
    /// which joins as the current folder, for flags and defaults.
    pub fn dir_of(&self, key: &str) -> &Path {
        self.dirs.get(key).map_or(Path::new(""), PathBuf::as_path)
    }

    /// `value` relative to [`Loaded::dir_of`] the key.
    pub fn path_of(&self, key: &str, value: impl AsRef<Path>) -> PathBuf {
        self.dir_of(key).join(value)
    }
}

impl<C: Serialize> Loaded<C> {
    pub(crate) fn json(&self) -> Json {
        crate::schema::json(&self.config)
    }

    /// One line per value that somebody set: `key = value  (source)`, in the order of the help.
    pub fn explain(&self) -> String {
        let mut lines = Vec::new();
        list(&self.json(), "", &mut |key, value| {
            let inside = format!("{key}.");
            let Some(source) = self.sources.get(key) else { return };
            if !value.is_object() {
                lines.push((format!("{key} = {}", shown(value)), source.to_string()));
            } else if !self.sources.range(inside.clone()..).next().is_some_and(|(k, _)| k.starts_with(&inside)) {
                lines.push((format!("{key} with its defaults"), source.to_string()));
            }
        });
        let width = lines.iter().map(|(l, _)| l.chars().count()).max().unwrap_or(0).min(72);
        lines.iter().map(|(line, source)| format!("{line:width$}  ({source})\n")).collect()
    }
}

/// A value as one writes it.
pub(crate) fn shown(json: &Json) -> String {
    if json.is_null() { "\"None\"".to_string() } else { json.to_string() }
}

/// Visits every table and every leaf; lists of tables are entered, other lists are leaves.
fn list(json: &Json, path: &str, visit: &mut impl FnMut(&str, &Json)) {
    let items = |items: &[Json]| items.iter().any(Json::is_object);
    match json {
        Json::Array(all) if items(all) => {
            all.iter().enumerate().for_each(|(i, item)| list(item, &join(path, &i.to_string()), visit));
        }
        Json::Object(map) => {
            if !path.is_empty() {
                visit(path, json);
            }
            map.iter().for_each(|(name, value)| list(value, &join(path, name), visit));
        }
        leaf => visit(path, leaf),
    }
}

/// Reports values that do not fit each other, at the place where they were written.
pub(crate) struct Validator<'a> {
    tree: &'a Val,
    checked: &'a Checked,
    conflicts: &'a BTreeSet<String>,
    load: &'a mut Load,
}

impl Validator<'_> {
    /// Reports `message`, which follows from the values of `keys`, at the first key that somebody set. Says nothing when
    /// one of the keys has a problem of its own, or may be absent because its name is misspelt.
    pub fn fail(&mut self, keys: &[&str], message: impl Into<String>) {
        if keys.iter().any(|key| self.suspect(key)) {
            return;
        }
        let own = keys.iter().find_map(|key| self.tree.get(key));
        let around = || keys.iter().find_map(|key| self.around(key));
        let at: Option<Origin> = own.or_else(around).map(|val| val.at.clone());
        self.load.fail(ProblemKind::Invalid(message.into()), at.as_ref());
    }

    /// Whether somebody set the key.
    pub fn is_set(&self, key: &str) -> bool {
        self.tree.get(key).is_some()
    }

    /// Whether somebody set the key itself, rather than a key that fills it.
    pub fn is_own(&self, key: &str) -> bool {
        self.tree.get(key).is_some_and(|val| val.at.via.is_none())
    }

    fn around(&self, key: &str) -> Option<&Val> {
        let (parent, _) = key.rsplit_once('.')?;
        self.tree.get(parent).or_else(|| self.around(parent))
    }

    fn suspect(&self, key: &str) -> bool {
        let touches = |bad: &String| {
            let within =
                |a: &str, b: &str| a.strip_prefix(b).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
            within(bad, key) || within(key, bad)
        };
        if self.checked.bad.iter().any(touches) || self.conflicts.contains(key) {
            return true;
        }
        let mut parent = key;
        let absent = self.tree.get(key).is_none_or(|val| val.at.via.is_some());
        while absent && !parent.is_empty() {
            parent = parent.rsplit_once('.').map_or("", |(p, _)| p);
            if self.checked.doubtful.contains(parent) {
                return true;
            }
        }
        false
    }
}

/// What differs between the commands.
pub(crate) struct Command<C> {
    pub root: Node,
    /// Fills keys from other keys; returns keys that are in conflict.
    pub spread: fn(&mut Val, &mut Load) -> BTreeSet<String>,
    /// Computes what follows from other values.
    pub derive: fn(&mut C),
    /// Reports values that do not fit each other.
    pub validate: fn(&C, &mut Validator<'_>),
}

/// Loads a configuration; on failure, everything that is wrong with it.
pub(crate) fn load<C: DeserializeOwned>(command: Command<C>, words: &[String]) -> Result<Loaded<C>, ConfigErrors> {
    let mut load = Load::default();
    let Some(mut tree) = load.read(&command.root, words) else { return Err(ConfigErrors::new(load.problems)) };
    let conflicts = (command.spread)(&mut tree, &mut load);
    let (json, checked) = check(&command.root, &tree, &mut load);
    let mut config: C = match serde_path_to_error::deserialize(&json) {
        Ok(config) => config,
        Err(error) => {
            // The check let through what the struct refuses, or left out what it needs: report that too.
            if load.problems.is_empty() {
                let message = format!("`{}`: {}", error.path(), error.inner());
                load.fail(ProblemKind::Invalid(message), None);
            }
            return Err(ConfigErrors::new(load.problems));
        }
    };
    (command.derive)(&mut config);
    // A malformed flag leaves its key unset, so what follows from the others would mislead.
    if !load.problems.iter().any(|p| matches!(p.kind, ProblemKind::Flag(_))) {
        let mut validator = Validator { tree: &tree, checked: &checked, conflicts: &conflicts, load: &mut load };
        (command.validate)(&config, &mut validator);
    }
    if !load.problems.is_empty() {
        return Err(ConfigErrors::new(load.problems));
    }
    let sources = checked.origins.iter().map(|(key, at)| (key.clone(), source(&load, at))).collect();
    let dirs = checked.origins.iter().map(|(key, at)| (key.clone(), load.dir(at))).collect();
    Ok(Loaded { config, root: command.root, sources, dirs })
}

fn source(load: &Load, at: &Origin) -> Source {
    let own = match load.texts.get(at.source) {
        Some(text) => match &text.path {
            Some(path) => {
                let (line, column) = load.line_column(at);
                Source::File { path: path.clone(), line, column }
            }
            None => Source::Flag(text.text.clone()),
        },
        None => Source::Default,
    };
    match &at.via {
        Some(key) => Source::Shared { key: key.to_string(), from: Box::new(own) },
        None => own,
    }
}
