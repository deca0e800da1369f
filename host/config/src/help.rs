//! The help text of a command's keys, made from the same description as the checks.

use crate::engine::suggest::join;
use crate::schema::{Key, Kind, Node, Rule, Section, one_line};
use serde_json::Value as Json;
use std::fmt::Write;

/// How the keys of every command are given.
const USAGE: &str = "\
Keys are set in TOML files and by flags; later files win over earlier ones, flags over files.
  @ FILE                 read a file            --SECTION @ FILE  read a file into a section
  --a.b-c VALUE          set a key              --a.b-c=VALUE     the same
  --switch, --no-switch  true, false            --ckpt, --no-ckpt an optional section with its defaults, without it
  --list A B             a list                 --list '[\"A\"]'    the same as JSON
  --table '{\"k\": 1}'     merged into the table  --list.0.key V    change one item of a list
  \"None\"                 no value
";

/// The help of a schema's keys: name, type, default, meaning.
pub(crate) fn render(root: &Node) -> String {
    let mut text = USAGE.to_string();
    for section in root.sections() {
        table(&mut text, section, "", None);
    }
    text
}

fn table(text: &mut String, section: &Section, path: &str, tag: Option<&str>) {
    let title = match (path, tag) {
        ("", _) => String::new(),
        (path, Some(tag)) => format!("[{path}] type = {tag}: "),
        (path, None) => format!("[{path}] "),
    };
    let _ = writeln!(text, "\n{title}{}", one_line(section.doc));
    let (leaves, nested): (Vec<&Key>, Vec<&Key>) = section.keys.iter().partition(|k| !has_own_section(&k.node));
    for key in leaves {
        line(text, key, path);
    }
    for key in nested {
        let here = join(path, key.name);
        let (node, here) = match key.node.item() {
            Some(item) => (item, format!("{here}[]")),
            None => (&key.node, here),
        };
        match &node.kind {
            Kind::Table(inner) | Kind::OpenUnion(_, inner) => table(text, inner, &here, None),
            Kind::Union(union) => {
                for (tag, inner) in &union.variants {
                    let default = if union.default == Some(*tag) { " (default)" } else { "" };
                    table(text, inner, &here, Some(&format!("\"{tag}\"{default}")));
                }
            }
            _ => {}
        }
    }
}

fn has_own_section(node: &Node) -> bool {
    !node.item().unwrap_or(node).sections().is_empty()
}

fn line(text: &mut String, key: &Key, path: &str) {
    let flag = format!("--{}", join(path, key.name).replace('_', "-").replace("[]", ".N"));
    let default = match &key.default {
        _ if key.has(Rule::Required) => "required".to_string(),
        Json::Null => "default None".to_string(),
        Json::String(s) if s.is_empty() => "default follows".to_string(),
        other => format!("default {other}"),
    };
    let expected = key.node.expected();
    let _ = writeln!(text, "  {flag}  <{expected}>  [{default}]\n      {}", one_line(key.doc));
}
