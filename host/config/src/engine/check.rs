//! Holding a merged tree against a schema: every unknown key, wrong type, value out of range and missing key at once.
//!
//! Knows schemas, not concrete keys.

use super::layers::Load;
use super::suggest::{join, near, unknown_key};
use super::value::{Data, Entry, Origin, Val};
use crate::error::ProblemKind;
use crate::schema::{Key, Kind, Node, Rule, Section, Union, one_line, one_of};
use indexmap::IndexMap;
use serde_json::{Map, Value as Json};
use std::collections::{BTreeMap, BTreeSet};

/// What the check learns beside problems.
#[derive(Debug, Default)]
pub(crate) struct Checked {
    /// Where every value comes from, by dotted key.
    pub origins: BTreeMap<String, Origin>,
    /// Keys whose value is missing or wrong.
    pub bad: BTreeSet<String>,
    /// Tables that have an unknown key: their other keys may be absent because of a typing error.
    pub doubtful: BTreeSet<String>,
    /// Problems of copies, which say nothing new where the original has one.
    copies: Vec<(ProblemKind, Origin)>,
    /// Where problems of values were found.
    spots: BTreeSet<(usize, usize)>,
}

struct Walk<'a> {
    root: &'a Node,
    load: &'a mut Load,
    out: Checked,
}

/// Checks the tree; the JSON holds every value that is fine, to be read by serde.
pub(crate) fn check(root: &Node, tree: &Val, load: &mut Load) -> (Json, Checked) {
    let mut walk = Walk { root, load, out: Checked::default() };
    let json = walk.value(root, &[], tree, &tree.at, "").unwrap_or(Json::Null);
    for (kind, at) in std::mem::take(&mut walk.out.copies) {
        if walk.out.spots.insert((at.source, at.span.start)) {
            walk.load.fail(kind, Some(&at));
        }
    }
    (json, walk.out)
}

impl Walk<'_> {
    fn bad(&mut self, path: &str, kind: ProblemKind, at: &Origin) -> Option<Json> {
        self.out.bad.insert(path.to_string());
        if at.via.is_some() {
            self.out.copies.push((kind, at.clone()));
        } else {
            self.out.spots.insert((at.source, at.span.start));
            self.load.fail(kind, Some(at));
        }
        None
    }

    fn value(&mut self, node: &Node, rules: &[Rule], val: &Val, key_at: &Origin, path: &str) -> Option<Json> {
        self.out.origins.insert(path.to_string(), val.at.clone());
        match (&node.kind, &val.data) {
            (_, Data::Null) if node.optional => Some(Json::Null),
            (Kind::Bool, Data::Bool(b)) => Some(Json::from(*b)),
            (Kind::Int { min, max }, Data::Int(i)) => {
                if !(min..=max).contains(&i) {
                    let limit = if i < min { format!("at least {min}") } else { format!("at most {max}") };
                    let kind = ProblemKind::OutOfRange { key: path.to_string(), limit, found: i.to_string() };
                    return self.bad(path, kind, &val.at);
                }
                self.limits(rules, *i as f64, &i.to_string(), val, path).then(|| Json::from(*i))
            }
            (Kind::Float, Data::Int(i)) => {
                self.limits(rules, *i as f64, &i.to_string(), val, path).then(|| Json::from(*i as f64))
            }
            (Kind::Float, Data::Float(f)) if f.is_finite() => {
                self.limits(rules, *f, &f.to_string(), val, path).then(|| Json::from(*f))
            }
            (Kind::Text, Data::Text(t)) if t.is_empty() && rules.contains(&Rule::Required) => {
                let kind = ProblemKind::Invalid(format!("`{path}` must not be empty"));
                self.bad(path, kind, &val.at)
            }
            (Kind::Text, Data::Text(t)) => Some(Json::from(t.as_str())),
            (Kind::Checked(_, fits), Data::Text(t)) if fits(t) => Some(Json::from(t.as_str())),
            (Kind::Choice(values, _), Data::Text(t)) if values.contains(&t.as_str()) => Some(Json::from(t.as_str())),
            (Kind::Choice(values, unsupported), Data::Text(t)) => {
                let kind = choice_problem(path, t, values, unsupported);
                self.bad(path, kind, &val.at)
            }
            (Kind::List(item), Data::List(items)) => {
                let mut list = Vec::new();
                for (i, v) in items.iter().enumerate() {
                    let here = join(path, &i.to_string());
                    match self.value(item, &[], v, &v.at, &here) {
                        Some(json) => list.push(json),
                        None => {
                            self.out.bad.insert(path.to_string());
                        }
                    }
                }
                Some(Json::Array(list))
            }
            (Kind::Table(section), Data::Table(entries)) => self.table(section, &[], entries, key_at, path, false),
            (Kind::Union(union), Data::Table(entries)) => self.union(union, entries, key_at, path),
            (Kind::OpenUnion(default, section), Data::Table(entries)) => {
                let Some(Json::Object(mut json)) = self.table(section, &[], entries, key_at, path, true) else {
                    return None;
                };
                match entries.get("type").map(|e| &e.val) {
                    None => {
                        json.insert("type".to_string(), Json::from(*default));
                    }
                    Some(Val { data: Data::Text(tag), at }) => {
                        self.out.origins.insert(join(path, "type"), at.clone());
                        json.insert("type".to_string(), Json::from(tag.as_str()));
                    }
                    Some(other) => {
                        let (key, expected) = (join(path, "type"), "a string".to_string());
                        let kind = ProblemKind::WrongType { key: key.clone(), expected, found: other.describe() };
                        return self.bad(&key, kind, &other.at);
                    }
                }
                Some(Json::Object(json))
            }
            (Kind::Open, Data::Table(entries)) => Some(Json::Object(self.open(entries, path))),
            (kind, _) => {
                let expected = match kind {
                    Kind::List(item) if item.is_table() => format!("a list of tables, `[[{path}]]`"),
                    _ => node.expected(),
                };
                let kind = ProblemKind::WrongType { key: path.to_string(), expected, found: val.describe() };
                self.bad(path, kind, &val.at)
            }
        }
    }

    fn limits(&mut self, rules: &[Rule], number: f64, shown: &str, val: &Val, path: &str) -> bool {
        for rule in rules {
            let limit = match rule {
                Rule::Min(min) if number < *min => format!("at least {min}"),
                Rule::Max(max) if number > *max => format!("at most {max}"),
                Rule::Above(min) if number <= *min => format!("more than {min}"),
                _ => continue,
            };
            let kind = ProblemKind::OutOfRange { key: path.to_string(), limit, found: shown.to_string() };
            self.bad(path, kind, &val.at);
            return false;
        }
        true
    }

    /// A table with fixed keys. `others` are the sections of the other variants, for hints.
    fn table(
        &mut self,
        section: &Section,
        others: &[(&'static str, Section)],
        entries: &IndexMap<String, Entry>,
        key_at: &Origin,
        path: &str,
        tagged: bool,
    ) -> Option<Json> {
        let mut json = Map::new();
        for (name, entry) in entries {
            if tagged && name == "type" {
                continue;
            }
            if section.is_foreign(name) {
                self.note(&entry.val, &join(path, name));
                json.insert(name.clone(), entry.val.to_json());
                continue;
            }
            let Some(key) = section.keys.iter().find(|k| k.name == name) else {
                let kind = self.unknown(section, others, path, name);
                self.load.fail(kind, Some(&entry.key));
                self.out.doubtful.insert(path.to_string());
                continue;
            };
            let here = join(path, name);
            if let Some(value) = self.value(&key.node, &key.rules, &entry.val, &entry.key, &here) {
                json.insert(name.clone(), value);
            }
        }
        for key in section.keys.iter().filter(|k| !entries.contains_key(k.name)) {
            self.absent(key, key_at, path);
        }
        Some(Json::Object(json))
    }

    fn unknown(&self, section: &Section, others: &[(&'static str, Section)], path: &str, name: &str) -> ProblemKind {
        if let Some((tag, _)) = others.iter().find(|(_, s)| s.key(name).is_some()) {
            let hint = format!("; it belongs to type = \"{tag}\"");
            return ProblemKind::UnknownKey { key: join(path, name), hint };
        }
        unknown_key(self.root, &[section], path, name)
    }

    /// Reports what an absent key leaves missing.
    fn absent(&mut self, key: &Key, key_at: &Origin, path: &str) {
        let here = join(path, key.name);
        if key.has(Rule::Required) && !self.out.doubtful.contains(path) {
            let kind = ProblemKind::Missing { key: here.clone(), doc: one_line(key.doc) };
            self.bad(&here, kind, key_at);
        } else if !key.node.optional && matches!(key.node.kind, Kind::Table(_) | Kind::Union(_)) {
            let empty = Val::table(key_at.clone());
            self.value(&key.node, &[], &empty, key_at, &here);
            self.out.origins.remove(&here);
        }
    }

    fn union(&mut self, union: &Union, entries: &IndexMap<String, Entry>, key_at: &Origin, path: &str) -> Option<Json> {
        let key = join(path, "type");
        let tags: Vec<&str> = union.variants.iter().map(|(t, _)| *t).collect();
        let tag = match entries.get("type").map(|e| &e.val) {
            Some(Val { data: Data::Text(tag), at }) => {
                self.out.origins.insert(key.clone(), at.clone());
                if union.variant(tag).is_none() {
                    let kind = choice_problem(&key, tag, &tags, union.unsupported);
                    return self.bad(&key, kind, at);
                }
                tag.as_str()
            }
            Some(other) => {
                let expected = one_of(&tags);
                let kind = ProblemKind::WrongType { key: key.clone(), expected, found: other.describe() };
                return self.bad(&key, kind, &other.at);
            }
            None => match union.default {
                Some(default) => default,
                None => {
                    let kind = ProblemKind::Missing { key: key.clone(), doc: one_of(&tags) };
                    return self.bad(&key, kind, key_at);
                }
            },
        };
        let section = union.variant(tag)?;
        let Some(Json::Object(body)) = self.table(section, &union.variants, entries, key_at, path, true) else {
            return None;
        };
        let mut json = Map::new();
        json.insert("type".to_string(), Json::from(tag));
        json.extend(body);
        Some(Json::Object(json))
    }

    fn open(&mut self, entries: &IndexMap<String, Entry>, path: &str) -> Map<String, Json> {
        for (name, entry) in entries {
            self.note(&entry.val, &join(path, name));
        }
        entries.iter().map(|(name, e)| (name.clone(), e.val.to_json())).collect()
    }

    /// Records where values of somebody else's table come from.
    fn note(&mut self, val: &Val, path: &str) {
        self.out.origins.insert(path.to_string(), val.at.clone());
        match &val.data {
            Data::Table(entries) => {
                for (name, entry) in entries {
                    self.note(&entry.val, &join(path, name));
                }
            }
            Data::List(items) => {
                for (i, item) in items.iter().enumerate() {
                    self.note(item, &join(path, &i.to_string()));
                }
            }
            Data::Float(f) if !f.is_finite() => {
                let (expected, found) = ("a finite number".to_string(), val.describe());
                self.bad(path, ProblemKind::WrongType { key: path.to_string(), expected, found }, &val.at);
            }
            _ => {}
        }
    }
}

fn choice_problem(key: &str, word: &str, values: &[&str], unsupported: &[&str]) -> ProblemKind {
    if unsupported.contains(&word) {
        return ProblemKind::Unsupported { what: format!("`{key} = \"{word}\"`") };
    }
    let hint = near(word, values).map(|best| format!("; did you mean \"{best}\"?")).unwrap_or_default();
    let expected = one_of(values);
    ProblemKind::BadChoice { key: key.to_string(), expected, found: word.to_string(), hint }
}
