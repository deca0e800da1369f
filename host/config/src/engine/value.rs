//! A configuration value that remembers where it was written.
//!
//! Owns the tree and its making from TOML and JSON. Must not know schemas.

use indexmap::IndexMap;
use serde_json::Value as Json;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use toml_edit::{Item, Table, Value};

/// A place in one of the texts a load reads.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Origin {
    /// Index into the load's sources.
    pub source: usize,
    pub span: Range<usize>,
    /// Set when the value was copied here from a shared key: that key.
    pub via: Option<Arc<str>>,
}

impl Origin {
    pub fn new(source: usize, span: Range<usize>) -> Self {
        Origin { source, span, via: None }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub key: Origin,
    pub val: Val,
}

#[derive(Clone, Debug)]
pub(crate) struct Val {
    pub data: Data,
    pub at: Origin,
}

#[derive(Clone, Debug)]
pub(crate) enum Data {
    Null,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(String),
    List(Vec<Val>),
    /// Changes to some items of a list, by index; only in what flags add.
    Items(BTreeMap<usize, Entry>),
    Table(IndexMap<String, Entry>),
}

impl Val {
    pub fn table(at: Origin) -> Self {
        Val { data: Data::Table(IndexMap::new()), at }
    }

    pub fn as_table(&self) -> Option<&IndexMap<String, Entry>> {
        match &self.data {
            Data::Table(t) => Some(t),
            _ => None,
        }
    }

    pub fn as_text(&self) -> Option<&str> {
        match &self.data {
            Data::Text(t) => Some(t),
            _ => None,
        }
    }

    /// The value under a dotted path, list indices included.
    pub fn get(&self, path: &str) -> Option<&Val> {
        let (head, rest) = path.split_once('.').map_or((path, None), |(h, r)| (h, Some(r)));
        let here = match &self.data {
            Data::Table(entries) => &entries.get(head)?.val,
            Data::List(items) => items.get(head.parse::<usize>().ok()?)?,
            _ => return None,
        };
        rest.map_or(Some(here), |rest| here.get(rest))
    }

    /// Says whose copy this is, all the way down.
    pub fn copied_from(mut self, key: &Arc<str>) -> Self {
        self.at.via = Some(key.clone());
        self.data = match self.data {
            Data::List(items) => Data::List(items.into_iter().map(|v| v.copied_from(key)).collect()),
            Data::Table(entries) => Data::Table(
                entries.into_iter().map(|(k, e)| (k, Entry { key: e.key, val: e.val.copied_from(key) })).collect(),
            ),
            other => other,
        };
        self
    }

    pub fn to_json(&self) -> Json {
        match &self.data {
            Data::Null | Data::Items(_) => Json::Null,
            Data::Bool(b) => Json::from(*b),
            Data::Int(i) => Json::from(*i),
            Data::Float(f) => Json::from(*f),
            Data::Text(t) => Json::from(t.as_str()),
            Data::List(items) => Json::Array(items.iter().map(Val::to_json).collect()),
            Data::Table(entries) => Json::Object(entries.iter().map(|(k, e)| (k.clone(), e.val.to_json())).collect()),
        }
    }

    /// What it is, for messages.
    pub fn describe(&self) -> String {
        match &self.data {
            Data::Null => "\"None\"".to_string(),
            Data::Bool(b) => b.to_string(),
            Data::Int(i) => format!("the integer {i}"),
            Data::Float(f) => format!("the number {f}"),
            Data::Text(t) => format!("the string {t:?}"),
            Data::List(_) | Data::Items(_) => "a list".to_string(),
            Data::Table(_) => "a table".to_string(),
        }
    }
}

/// `"None"` stands for null everywhere.
pub(crate) fn text(s: &str) -> Data {
    if s == "None" { Data::Null } else { Data::Text(s.to_string()) }
}

/// The tree of a parsed TOML document.
pub(crate) fn from_toml(table: &Table, source: usize) -> Val {
    let at = Origin::new(source, table.span().unwrap_or(0..0));
    let entries = table
        .iter()
        .map(|(name, item)| {
            let val = from_item(item, source);
            let span = table.key(name).and_then(|k| k.span()).unwrap_or_else(|| val.at.span.clone());
            (name.to_string(), Entry { key: Origin::new(source, span), val })
        })
        .collect();
    Val { data: Data::Table(entries), at }
}

fn from_item(item: &Item, source: usize) -> Val {
    match item {
        Item::None => Val { data: Data::Null, at: Origin::new(source, 0..0) },
        Item::Value(v) => from_value(v, source),
        Item::Table(t) => from_toml(t, source),
        Item::ArrayOfTables(a) => {
            let items = a.iter().map(|t| from_toml(t, source)).collect();
            Val { data: Data::List(items), at: Origin::new(source, a.span().unwrap_or(0..0)) }
        }
    }
}

fn from_value(value: &Value, source: usize) -> Val {
    let at = Origin::new(source, value.span().unwrap_or(0..0));
    let data = match value {
        Value::String(s) => text(s.value()),
        Value::Integer(i) => Data::Int(*i.value()),
        Value::Float(f) => Data::Float(*f.value()),
        Value::Boolean(b) => Data::Bool(*b.value()),
        Value::Datetime(d) => Data::Text(d.value().to_string()),
        Value::Array(a) => Data::List(a.iter().map(|v| from_value(v, source)).collect()),
        Value::InlineTable(t) => Data::Table(
            t.iter()
                .map(|(name, v)| {
                    let val = from_value(v, source);
                    let span = t.key(name).and_then(|k| k.span()).unwrap_or_else(|| val.at.span.clone());
                    (name.to_string(), Entry { key: Origin::new(source, span), val })
                })
                .collect(),
        ),
    };
    Val { data, at }
}

/// The tree of a JSON literal; all of it has one origin.
pub(crate) fn from_json(json: &Json, at: &Origin) -> Val {
    let data = match json {
        Json::Null => Data::Null,
        Json::Bool(b) => Data::Bool(*b),
        Json::Number(n) => match n.as_i64() {
            Some(i) => Data::Int(i),
            None => Data::Float(n.as_f64().unwrap_or(f64::NAN)),
        },
        Json::String(s) => text(s),
        Json::Array(items) => Data::List(items.iter().map(|v| from_json(v, at)).collect()),
        Json::Object(map) => Data::Table(
            map.iter().map(|(k, v)| (k.clone(), Entry { key: at.clone(), val: from_json(v, at) })).collect(),
        ),
    };
    Val { data, at: at.clone() }
}
