//! Writing an effective configuration as TOML that loads to the same configuration.
//!
//! Owns the text form: what asks for an action in this one run (`dry_run`, `clean_output_dir`, `bench`) is left out, null at its
//! default is left out, null elsewhere is written as `"None"`, and a relative path that names an existing file is written
//! as an absolute one, because the dump stands in another folder.

use crate::engine::suggest::join;
use crate::loaded::{Loaded, Source};
use crate::schema::{Kind, Node, Rule, Section};
use crate::shared;
use crate::tables::{InferenceRun, RlConfig, SftConfig, TrainerRun};
use serde_json::{Map, Value as Json};
use toml_edit::{Array, ArrayOfTables, DocumentMut, Formatted, InlineTable, Item, Table, Value};

/// One file of a dump.
#[derive(Clone, Debug, PartialEq)]
pub struct Dump {
    /// File name.
    pub name: &'static str,
    /// TOML.
    pub text: String,
}

impl Loaded<RlConfig> {
    /// `rl.toml`, which loads to this configuration, and the part of each component, which loads with
    /// `--trainer @ trainer.toml --orchestrator @ orchestrator.toml --inference @ inference.toml`.
    pub fn dump(&self) -> Vec<Dump> {
        let whole = Dump { name: "rl.toml", text: self.part("") };
        let parts =
            [("trainer", "trainer.toml"), ("orchestrator", "orchestrator.toml"), ("inference", "inference.toml")];
        std::iter::once(whole).chain(parts.map(|(key, name)| Dump { name, text: self.part(key) })).collect()
    }
}

impl Loaded<SftConfig> {
    /// `sft.toml`, which loads to this configuration.
    pub fn dump(&self) -> Vec<Dump> {
        vec![Dump { name: "sft.toml", text: self.part("") }]
    }
}

impl Loaded<TrainerRun> {
    /// `trainer.toml`, which loads to this configuration.
    pub fn dump(&self) -> Vec<Dump> {
        vec![Dump { name: "trainer.toml", text: self.part("") }]
    }
}

impl Loaded<InferenceRun> {
    /// `inference.toml`, which loads to this configuration.
    pub fn dump(&self) -> Vec<Dump> {
        vec![Dump { name: "inference.toml", text: self.part("") }]
    }
}

impl<C: serde::Serialize> Loaded<C> {
    /// The TOML text of a root section, or of everything.
    fn part(&self, section: &str) -> String {
        let json = self.json();
        let (node, json) = match section {
            "" => (Some(&self.root), Some(&json)),
            name => (self.root.keys(name).first().map(|k| &k.node), json.get(name)),
        };
        let mut document = DocumentMut::new();
        if let (Some(node), Some(json @ Json::Object(map))) = (node, json) {
            // The defaults of shared keys are written only where they agree with the sections that they would fill.
            let root = section.is_empty().then_some(json);
            *document.as_table_mut() = self.table(Some(node), map, section, root);
        }
        document.to_string()
    }

    fn table(&self, node: Option<&Node>, map: &Map<String, Json>, path: &str, root: Option<&Json>) -> Table {
        let section = node.and_then(|node| followed(node, map));
        let mut table = Table::new();
        // Values first: in TOML, what follows a table's header belongs to that table.
        let (values, tables): (Vec<_>, Vec<_>) = map.iter().partition(|(_, value)| !is_table(value));
        for (name, value) in values.into_iter().chain(tables) {
            let here = join(path, name);
            let key = section.and_then(|s| s.key(name));
            if key.is_some_and(|k| k.has(Rule::Action)) {
                continue;
            }
            if value.is_null() && key.is_some_and(|k| k.default.is_null()) && self.source(&here) == Source::Default {
                continue;
            }
            if root.is_some_and(|root| shared::would_conflict(root, &here, value))
                && self.source(&here) == Source::Default
            {
                continue;
            }
            let item = match value {
                Json::Object(inner) => Item::Table(self.table(key.map(|k| &k.node), inner, &here, root)),
                Json::Array(items) if is_table(value) => {
                    let node = key.and_then(|k| k.node.item());
                    let tables = items.iter().enumerate().filter_map(|(i, item)| match item {
                        Json::Object(inner) => Some(self.table(node, inner, &join(&here, &i.to_string()), root)),
                        _ => None,
                    });
                    Item::ArrayOfTables(tables.collect::<ArrayOfTables>())
                }
                Json::String(text) if key.is_some_and(|k| k.has(Rule::Path)) => {
                    Item::Value(Value::from(self.moved(&here, text)))
                }
                Json::Array(items) if key.is_some_and(|k| k.has(Rule::Path)) => {
                    let paths = items.iter().filter_map(Json::as_str).enumerate();
                    let moved = paths.map(|(i, text)| self.moved(&join(&here, &i.to_string()), text));
                    Item::Value(Value::Array(moved.collect::<Array>()))
                }
                other => Item::Value(plain(other)),
            };
            table.insert(name, item);
        }
        table
    }

    /// The value of a key that may name a file, as it must be written in another folder.
    fn moved(&self, key: &str, value: &str) -> String {
        let here = self.path_of(key, value);
        if !here.exists() {
            return value.to_string();
        }
        std::path::absolute(&here).map_or_else(|_| value.to_string(), |path| path.display().to_string())
    }
}

/// The section a table follows.
fn followed<'a>(node: &'a Node, map: &Map<String, Json>) -> Option<&'a Section> {
    match &node.kind {
        Kind::Table(section) => Some(section),
        Kind::Union(union) => union.variant(map.get("type")?.as_str()?),
        _ => None,
    }
}

/// What is written under a header of its own.
fn is_table(value: &Json) -> bool {
    match value {
        Json::Object(_) => true,
        Json::Array(items) => !items.is_empty() && items.iter().all(Json::is_object),
        _ => false,
    }
}

fn plain(json: &Json) -> Value {
    match json {
        Json::Null => Value::from("None"),
        Json::Bool(b) => Value::from(*b),
        Json::Number(n) => match n.as_i64() {
            Some(i) => Value::from(i),
            None => Value::Float(Formatted::new(n.as_f64().unwrap_or(0.0))),
        },
        Json::String(s) => Value::from(s.as_str()),
        Json::Array(items) => Value::Array(items.iter().map(plain).collect::<Array>()),
        Json::Object(map) => {
            let mut table = InlineTable::new();
            for (name, value) in map {
                table.insert(name, plain(value));
            }
            Value::InlineTable(table)
        }
    }
}
