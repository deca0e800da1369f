//! The texts a load reads (files and flags) and the layers they form.
//!
//! Owns reading of files, positions, and the order defaults < files < flags. Must not know concrete keys.

use super::args::{self, Part};
use super::merge;
use super::value::{Data, Entry, Origin, Val, from_toml};
use crate::error::{Place, Problem, ProblemKind};
use crate::schema::Node;
use indexmap::IndexMap;
use std::path::{Path, PathBuf};

/// One text.
#[derive(Clone, Debug)]
pub(crate) struct Text {
    /// The file's path as given; none for a flag.
    pub path: Option<PathBuf>,
    pub text: String,
}

/// All texts of one load and what was wrong with them so far.
#[derive(Debug, Default)]
pub(crate) struct Load {
    pub texts: Vec<Text>,
    pub problems: Vec<Problem>,
}

impl Load {
    pub fn add(&mut self, path: Option<PathBuf>, text: String) -> usize {
        self.texts.push(Text { path, text });
        self.texts.len() - 1
    }

    /// Reports a problem at a place.
    pub fn fail(&mut self, kind: ProblemKind, at: Option<&Origin>) {
        let place = at.and_then(|at| self.place(at));
        self.problems.push(Problem { kind, place });
    }

    /// Line and column (both from 1, columns in characters) of an offset.
    pub fn line_column(&self, at: &Origin) -> (usize, usize) {
        let Some(source) = self.texts.get(at.source) else { return (1, 1) };
        let before = source.text.get(..at.span.start).unwrap_or(&source.text);
        let line_start = before.rfind('\n').map_or(0, |i| i + 1);
        (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
    }

    pub fn place(&self, at: &Origin) -> Option<Place> {
        let source = self.texts.get(at.source)?;
        let (line, column) = self.line_column(at);
        let text = source.text.lines().nth(line - 1).unwrap_or("").to_string();
        let length = source.text.get(at.span.clone()).map_or(1, |s| s.lines().next().unwrap_or("").chars().count());
        let (name, line) = match &source.path {
            Some(path) => (path.display().to_string(), Some(line)),
            None => ("command line".to_string(), None),
        };
        // Files before flags, whichever was read first.
        let rank = if line.is_some() { at.source } else { usize::MAX / 2 + at.source };
        Some(Place { name, line, column, text, width: length.max(1), order: (rank, at.span.start) })
    }

    /// `file:line:col` or the flag.
    pub fn describe(&self, at: &Origin) -> String {
        match self.texts.get(at.source) {
            Some(Text { path: Some(path), .. }) => {
                let (line, column) = self.line_column(at);
                format!("{}:{line}:{column}", path.display())
            }
            Some(Text { text, .. }) => text.clone(),
            None => "default".to_string(),
        }
    }

    /// The folder that relative paths of a text are relative to; empty for flags, which are relative to the current
    /// folder.
    pub fn dir(&self, at: &Origin) -> PathBuf {
        let path = self.texts.get(at.source).and_then(|t| t.path.as_deref());
        path.and_then(Path::parent).map_or_else(PathBuf::new, Path::to_path_buf)
    }

    /// Reads a configuration file; none (and a problem) when that fails.
    fn file(&mut self, path: &str, at: &Origin) -> Option<Val> {
        let file_problem = |message: String| ProblemKind::File { path: path.to_string(), message };
        let extension = Path::new(path).extension().and_then(|e| e.to_str()).unwrap_or("");
        if extension != "toml" {
            let message = format!("only .toml files are configuration files here, not \".{extension}\"");
            self.fail(file_problem(message), Some(at));
            return None;
        }
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) => {
                self.fail(file_problem(error.to_string()), Some(at));
                return None;
            }
        };
        let source = self.add(Some(PathBuf::from(path)), text.clone());
        match toml_edit::Document::parse(text.as_str()) {
            Ok(document) => Some(from_toml(document.as_table(), source)),
            Err(error) => {
                let span = error.span().unwrap_or(0..0);
                let message = error.message().lines().next().unwrap_or("").to_string();
                self.fail(ProblemKind::Syntax { message }, Some(&Origin::new(source, span)));
                None
            }
        }
    }

    /// Reads files and flags into one tree. None when a file could not be read or parsed: then its values are missing,
    /// and nothing said about the rest would be reliable.
    pub fn read(&mut self, root: &Node, words: &[String]) -> Option<Val> {
        let parts = args::split(root, words, self);
        let mut readable = true;
        let start = Origin::new(usize::MAX, 0..0);
        let mut tree = Val::table(start.clone());
        let mut flags = Val::table(start);
        for part in parts {
            match part {
                Part::File { path, section, at } => {
                    let Some(file) = self.file(&path, &at) else {
                        readable = false;
                        continue;
                    };
                    let mut layer = nest(file, &section, &at);
                    merge::canonical(root, &mut layer, "", self);
                    merge::merge(root, &mut tree, layer, "", self);
                }
                Part::Flag { path, value, append } => merge::set(&mut flags, &path, value, append),
            }
        }
        merge::canonical(root, &mut flags, "", self);
        merge::merge(root, &mut tree, flags, "", self);
        readable.then_some(tree)
    }
}

/// Puts a file's table under a dotted path.
fn nest(file: Val, section: &[String], at: &Origin) -> Val {
    section.iter().rev().fold(file, |val, name| {
        let mut entries = IndexMap::new();
        entries.insert(name.clone(), Entry { key: at.clone(), val });
        Val { data: Data::Table(entries), at: at.clone() }
    })
}
