//! The command line: `@ file`, `--section @ file`, `--a.b-c value`, `--flag`, `--no-flag`.
//!
//! Owns splitting words into parts and turning words into values of the type the key has. Must not know concrete keys.

use super::layers::Load;
use super::suggest::{join, unknown_key};
use super::value::{Data, Origin, Val, from_json, text};
use crate::error::ProblemKind;
use crate::schema::{Kind, Node, Rule};
use serde_json::Value as Json;

/// A step of a dotted path.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Seg {
    Key(String),
    Index(usize),
}

/// What one part of the command line asks for.
#[derive(Clone, Debug)]
pub(crate) enum Part {
    /// Read a file into the section at a path.
    File { path: String, section: Vec<String>, at: Origin },
    /// Set a value.
    Flag { path: Vec<Seg>, value: Val, append: bool },
}

/// What a flag's dotted name leads to.
struct Target<'a> {
    path: Vec<Seg>,
    dotted: String,
    /// What may stand there, one per variant; empty inside tables that belong to somebody else.
    nodes: Vec<&'a Node>,
    repeat: bool,
}

/// Splits a command line into parts; problems go into the load.
pub(crate) fn split(root: &Node, words: &[String], load: &mut Load) -> Vec<Part> {
    let mut parts = Vec::new();
    let mut i = 0;
    while i < words.len() {
        let word = &words[i];
        i += 1;
        if let Some(file) = word.strip_prefix('@') {
            let (path, used) = file_name(file, words.get(i));
            i += used;
            let at = flag_origin(load, format!("@ {}", path.clone().unwrap_or_default()).trim_end());
            match path {
                Some(path) => parts.push(Part::File { path, section: Vec::new(), at }),
                None => load.fail(ProblemKind::Flag("`@` needs a file after it".to_string()), Some(&at)),
            }
            continue;
        }
        let Some(flag) = word.strip_prefix("--").filter(|f| !f.is_empty()) else {
            let at = flag_origin(load, word);
            let message = format!("unexpected word `{word}`: values follow a `--key`, files follow `@`");
            load.fail(ProblemKind::Flag(message), Some(&at));
            continue;
        };
        let (name, inline) = flag.split_once('=').map_or((flag, None), |(n, v)| (n, Some(v.to_string())));
        if inline.is_none()
            && let Some(file) = words.get(i).and_then(|w| w.strip_prefix('@'))
        {
            let (path, used) = file_name(file, words.get(i + 1));
            i += 1 + used;
            parts.extend(section_file(root, name, path, load));
            continue;
        }
        let values: Vec<String> = match inline {
            Some(value) => vec![value],
            None => words[i..].iter().take_while(|w| !w.starts_with("--") && !w.starts_with('@')).cloned().collect(),
        };
        let inlined = flag.contains('=');
        let (part, used) = one_flag(root, name, values, inlined, load);
        if !inlined {
            i += used;
        }
        parts.extend(part);
    }
    parts
}

fn flag_origin(load: &mut Load, text: &str) -> Origin {
    let source = load.add(None, text.to_string());
    Origin::new(source, 0..text.len())
}

/// The file of `@file` or `@ file`, and how many further words it took.
fn file_name(attached: &str, next: Option<&String>) -> (Option<String>, usize) {
    if !attached.is_empty() {
        return (Some(attached.to_string()), 0);
    }
    match next {
        Some(word) if !word.starts_with("--") && !word.starts_with('@') => (Some(word.clone()), 1),
        _ => (None, 0),
    }
}

fn section_file(root: &Node, name: &str, path: Option<String>, load: &mut Load) -> Option<Part> {
    let at = flag_origin(load, format!("--{name} @ {}", path.clone().unwrap_or_default()).trim_end());
    let target = resolve(root, name, &at, load)?;
    let Some(path) = path else {
        load.fail(ProblemKind::Flag("`@` needs a file after it".to_string()), Some(&at));
        return None;
    };
    let mut section = Vec::new();
    for seg in target.path {
        match seg {
            Seg::Key(key) => section.push(key),
            Seg::Index(_) => {
                let message = "a file cannot be read into one item of a list".to_string();
                load.fail(ProblemKind::Flag(message), Some(&at));
                return None;
            }
        }
    }
    if !target.nodes.is_empty() && !target.nodes.iter().any(|n| n.is_table()) {
        let message = format!("`{}` is not a section, so a file cannot be read into it", target.dotted);
        load.fail(ProblemKind::Flag(message), Some(&at));
        return None;
    }
    Some(Part::File { path, section, at })
}

/// Handles one `--name values…`; returns how many of the values it took.
fn one_flag(root: &Node, name: &str, values: Vec<String>, inlined: bool, load: &mut Load) -> (Option<Part>, usize) {
    let shown = |taken: &[String]| {
        if inlined {
            format!("--{name}={}", taken.join(" "))
        } else {
            [&[format!("--{name}")], taken].concat().join(" ")
        }
    };
    let positive = name.strip_prefix("no-").or_else(|| name.strip_prefix("no_"));
    if let Some(positive) = positive.filter(|_| find(root, name).is_err()) {
        let at = flag_origin(load, &shown(&[]));
        let Some(target) = resolve(root, positive, &at, load) else { return (None, 0) };
        let data = match target.nodes.first() {
            Some(node) if matches!(node.kind, Kind::Bool) => Data::Bool(false),
            Some(node) if node.optional => Data::Null,
            None => Data::Bool(false),
            Some(_) => {
                let message = format!("`--no-…` is for switches and optional keys; `{}` is neither", target.dotted);
                load.fail(ProblemKind::Flag(message), Some(&at));
                return (None, 0);
            }
        };
        if inlined {
            load.fail(ProblemKind::Flag("`--no-…` takes no value".to_string()), Some(&at));
            return (None, 0);
        }
        return (Some(Part::Flag { path: target.path, value: Val { data, at }, append: false }), 0);
    }
    let Ok(found) = find(root, name) else {
        // Unknown: its values go with it, so that they are not reported as well.
        let at = flag_origin(load, &shown(&values));
        resolve(root, name, &at, load);
        return (None, values.len());
    };
    let list = found.nodes.iter().any(|n| matches!(n.kind, Kind::List(_)));
    let switch = found.nodes.iter().any(|n| matches!(n.kind, Kind::Bool));
    let table = found.nodes.iter().any(|n| n.is_table());
    let literal = values.first().is_some_and(|w| matches!(w.as_str(), "true" | "false" | "True" | "False" | "None"));
    let used = match values.len() {
        n if list && !found.repeat => n,
        _ if switch && !inlined && !literal => 0,
        n => n.min(1),
    };
    let at = flag_origin(load, &shown(&values[..used]));
    let data = match &values[..used] {
        [] if switch => Data::Bool(true),
        [] if table => Data::Table(indexmap::IndexMap::new()),
        [] if found.nodes.is_empty() => Data::Bool(true),
        [] => {
            let expected = found.nodes.first().map_or_else(String::new, |n| n.expected());
            load.fail(ProblemKind::Flag(format!("`{}` needs a value: {expected}", found.dotted)), Some(&at));
            return (None, used);
        }
        words => typed(&found.nodes, words, &at),
    };
    let value = Val { data, at };
    (Some(Part::Flag { path: found.path, value, append: found.repeat }), used)
}

/// Like [`find`], but reports what is wrong.
fn resolve<'a>(root: &'a Node, name: &str, at: &Origin, load: &mut Load) -> Option<Target<'a>> {
    match find(root, name) {
        Ok(target) => Some(target),
        Err(kind) => {
            load.fail(kind, Some(at));
            None
        }
    }
}

/// Follows a dotted name, kebab or snake, through the schema.
fn find<'a>(root: &'a Node, name: &str) -> Result<Target<'a>, ProblemKind> {
    let mut target = Target { path: Vec::new(), dotted: String::new(), nodes: vec![root], repeat: false };
    let mut open = false;
    for raw in name.split('.') {
        if raw.is_empty() {
            return Err(ProblemKind::Flag(format!("`--{name}` has an empty part between its dots")));
        }
        if open {
            target.dotted = join(&target.dotted, raw);
            target.path.push(Seg::Key(raw.to_string()));
            target.nodes = Vec::new();
            continue;
        }
        target.repeat = false;
        if let (Ok(index), Some(item)) = (raw.parse::<usize>(), target.nodes.iter().find_map(|n| n.item())) {
            target.dotted = join(&target.dotted, raw);
            target.path.push(Seg::Index(index));
            target.nodes = vec![item];
            continue;
        }
        let snake = raw.replace('-', "_");
        if target.nodes.iter().any(|n| n.is_open()) {
            // A key of its owner: kept as written.
            open = true;
            target.dotted = join(&target.dotted, raw);
            target.path.push(Seg::Key(raw.to_string()));
            target.nodes = Vec::new();
            continue;
        }
        let union = target.nodes.iter().any(|n| matches!(n.kind, Kind::Union(_) | Kind::OpenUnion(..)));
        let sections: Vec<_> = target.nodes.iter().flat_map(|n| n.sections()).collect();
        let foreign = snake != "type" && sections.iter().any(|s| s.is_foreign(&snake));
        let keys: Vec<_> = target.nodes.iter().flat_map(|n| n.keys(&snake)).collect();
        if let Some(key) = keys.first() {
            target.path.push(Seg::Key(key.name.to_string()));
            target.repeat = key.has(Rule::Repeat);
        } else if union && snake == "type" {
            target.path.push(Seg::Key(snake.clone()));
        } else if foreign {
            // Whether it may stand there depends on `type`, which is known when everything is merged.
            open = true;
            target.dotted = join(&target.dotted, raw);
            target.path.push(Seg::Key(raw.to_string()));
            target.nodes = Vec::new();
            continue;
        } else {
            return Err(unknown_key(root, &sections, &target.dotted, &snake));
        }
        target.dotted = join(&target.dotted, &snake);
        target.nodes = keys.into_iter().map(|k| &k.node).collect();
    }
    Ok(target)
}

/// The words as a value of the first type they fit; a plain string where they fit none, which the check reports.
fn typed(nodes: &[&Node], words: &[String], at: &Origin) -> Data {
    if let [word] = words {
        if word == "None" {
            return Data::Null;
        }
        if nodes.is_empty() {
            return guess(word, at);
        }
    }
    nodes.iter().find_map(|node| fit(node, words, at)).unwrap_or_else(|| text(&words.join(" ")))
}

fn fit(node: &Node, words: &[String], at: &Origin) -> Option<Data> {
    if let Kind::List(item) = &node.kind {
        if let [word] = words
            && let Ok(json @ Json::Array(_)) = serde_json::from_str(word)
        {
            return Some(from_json(&json, at).data);
        }
        let one = |word: &String| Val { data: typed(&[item], std::slice::from_ref(word), at), at: at.clone() };
        return Some(Data::List(words.iter().map(one).collect()));
    }
    let [word] = words else { return None };
    match &node.kind {
        Kind::Bool => match word.as_str() {
            "true" | "True" => Some(Data::Bool(true)),
            "false" | "False" => Some(Data::Bool(false)),
            _ => None,
        },
        Kind::Int { .. } => word.parse().ok().map(Data::Int),
        Kind::Float => word.parse().ok().filter(|f: &f64| f.is_finite()).map(Data::Float),
        Kind::Text | Kind::Checked(..) | Kind::Choice(..) => Some(text(word)),
        Kind::Table(_) | Kind::Union(_) | Kind::OpenUnion(..) | Kind::Open => match serde_json::from_str(word) {
            Ok(json @ Json::Object(_)) => Some(from_json(&json, at).data),
            _ => None,
        },
        Kind::List(_) => None,
    }
}

/// A value of unknown type: JSON if it is JSON, text otherwise.
fn guess(word: &str, at: &Origin) -> Data {
    serde_json::from_str::<Json>(word).map_or_else(|_| text(word), |json| from_json(&json, at).data)
}
