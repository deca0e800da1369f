//! The shape of a configuration: which keys exist, of which type, with which default, limits and words of help.
//!
//! Owns the description only; it is built by the macros of [`crate::macros`] beside the structs, so that structs, checks,
//! dumps and help have one source. Must not know a concrete key, a file or the command line.

use serde::Serialize;
use serde_json::Value as Json;
use std::path::PathBuf;

/// What a value may be.
#[derive(Clone, Debug)]
pub(crate) enum Kind {
    Bool,
    Int {
        min: i64,
        max: i64,
    },
    Float,
    Text,
    /// Text in a syntax of its own: a description of it and a test.
    Checked(&'static str, fn(&str) -> bool),
    /// One of the first list; the second list holds values that prime-rl knows and prl does not.
    Choice(&'static [&'static str], &'static [&'static str]),
    List(Box<Node>),
    Table(Section),
    Union(Union),
    /// A table with `type` (and its default) whose other keys, but for some, belong to somebody else.
    OpenUnion(&'static str, Section),
    /// A table whose keys belong to somebody else.
    Open,
}

/// A kind, and whether `"None"` is allowed in its place.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub kind: Kind,
    pub optional: bool,
}

/// A table with a fixed set of keys.
#[derive(Clone, Debug)]
pub(crate) struct Section {
    pub doc: &'static str,
    pub keys: Vec<Key>,
    /// Whether further keys belong to somebody else and are taken as they are.
    pub open: bool,
    /// Keys of prime-rl that prl does not have.
    pub unsupported: &'static [&'static str],
    /// Names that others use, and what to write here instead.
    pub renamed: &'static [(&'static str, &'static str)],
}

/// A table whose `type` picks one of several sections.
#[derive(Clone, Debug)]
pub(crate) struct Union {
    pub variants: Vec<(&'static str, Section)>,
    /// The variant of a table without `type`; none means that `type` is required.
    pub default: Option<&'static str>,
    pub unsupported: &'static [&'static str],
}

/// One key of a section.
#[derive(Clone, Debug)]
pub(crate) struct Key {
    pub name: &'static str,
    pub doc: &'static str,
    pub node: Node,
    pub default: Json,
    pub rules: Vec<Rule>,
}

/// A limit or a property of a key.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Rule {
    /// At least.
    Min(f64),
    /// At most.
    Max(f64),
    /// More than.
    Above(f64),
    /// Also accepted under this name.
    Alias(&'static str),
    /// Has no default.
    Required,
    /// A list whose flag is given once per item.
    Repeat,
    /// Asks for something to be done in this one run: no part of a dump.
    Action,
    /// May name a file relative to the configuration file it stands in.
    Path,
}

impl Section {
    /// Whether a key of this name is somebody else's.
    pub fn is_foreign(&self, name: &str) -> bool {
        let known = self.unsupported.contains(&name) || self.renamed.iter().any(|(old, _)| *old == name);
        self.open && !known && self.key(name).is_none()
    }

    /// The key of this name or alias.
    pub fn key(&self, name: &str) -> Option<&Key> {
        self.keys.iter().find(|k| k.name == name || k.alias() == Some(name))
    }
}

impl Key {
    pub fn alias(&self) -> Option<&'static str> {
        self.rules.iter().find_map(|r| match r {
            Rule::Alias(a) => Some(*a),
            _ => None,
        })
    }

    pub fn has(&self, rule: Rule) -> bool {
        self.rules.contains(&rule)
    }
}

impl Union {
    pub fn variant(&self, tag: &str) -> Option<&Section> {
        self.variants.iter().find(|(t, _)| *t == tag).map(|(_, s)| s)
    }
}

impl Node {
    pub fn is_open(&self) -> bool {
        matches!(self.kind, Kind::Open)
    }

    pub fn is_table(&self) -> bool {
        matches!(self.kind, Kind::Open | Kind::OpenUnion(..) | Kind::Table(_) | Kind::Union(_))
    }

    /// The sections a table here may follow: one, or one per variant.
    pub fn sections(&self) -> Vec<&Section> {
        match &self.kind {
            Kind::Table(s) | Kind::OpenUnion(_, s) => vec![s],
            Kind::Union(u) => u.variants.iter().map(|(_, s)| s).collect(),
            _ => Vec::new(),
        }
    }

    /// Every key of this name (or alias) that a table here may hold, over all variants.
    pub fn keys(&self, name: &str) -> Vec<&Key> {
        self.sections().into_iter().filter_map(|s| s.key(name)).collect()
    }

    /// The item of a list.
    pub fn item(&self) -> Option<&Node> {
        match &self.kind {
            Kind::List(item) => Some(item),
            _ => None,
        }
    }

    /// What to expect here, in words.
    pub fn expected(&self) -> String {
        let base = match &self.kind {
            Kind::Bool => "true or false".to_string(),
            Kind::Int { min: 0, .. } => "a non-negative integer".to_string(),
            Kind::Int { .. } => "an integer".to_string(),
            Kind::Float => "a number".to_string(),
            Kind::Text => "a string".to_string(),
            Kind::Checked(what, _) => (*what).to_string(),
            Kind::Choice(values, _) => one_of(values),
            Kind::List(item) => format!("a list ({} each)", item.expected()),
            Kind::Table(_) | Kind::Union(_) | Kind::OpenUnion(..) | Kind::Open => "a table".to_string(),
        };
        if self.optional { format!("{base}, or \"None\"") } else { base }
    }
}

/// `"a", "b", "c"`.
pub(crate) fn quoted(values: &[&str]) -> String {
    values.iter().map(|v| format!("\"{v}\"")).collect::<Vec<_>>().join(", ")
}

/// What a word may be.
pub(crate) fn one_of(values: &[&str]) -> String {
    if values.len() == 1 { quoted(values) } else { format!("one of {}", quoted(values)) }
}

/// The doc text of a struct or key on one line.
pub(crate) fn one_line(doc: &str) -> String {
    doc.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A default as JSON; the defaults are our own plain data.
pub(crate) fn json<T: Serialize>(value: &T) -> Json {
    serde_json::to_value(value).unwrap_or(Json::Null)
}

/// A type that may stand in a configuration.
pub(crate) trait Field {
    fn node() -> Node;
}

/// A type that is a table with fixed keys.
pub(crate) trait Described {
    fn section() -> Section;
}

macro_rules! scalar {
    ($($ty:ty => $kind:expr),* $(,)?) => {
        $(impl Field for $ty { fn node() -> Node { Node { kind: $kind, optional: false } } })*
    };
}

scalar! {
    bool => Kind::Bool,
    u32 => Kind::Int { min: 0, max: u32::MAX as i64 },
    u64 => Kind::Int { min: 0, max: i64::MAX },
    usize => Kind::Int { min: 0, max: i64::MAX },
    i64 => Kind::Int { min: i64::MIN, max: i64::MAX },
    f64 => Kind::Float,
    String => Kind::Text,
    PathBuf => Kind::Text,
    serde_json::Map<String, Json> => Kind::Open,
}

impl<T: Field> Field for Option<T> {
    fn node() -> Node {
        Node { optional: true, ..T::node() }
    }
}

impl<T: Field> Field for Vec<T> {
    fn node() -> Node {
        Node { kind: Kind::List(Box::new(T::node())), optional: false }
    }
}
