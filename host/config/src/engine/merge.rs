//! Laying one layer over another: tables merge, everything else is replaced, a changed `type` drops what belonged to the
//! old variant.
//!
//! Knows schemas, not concrete keys.

use super::args::Seg;
use super::layers::Load;
use super::suggest::join;
use super::value::{Data, Entry, Origin, Val};
use crate::error::ProblemKind;
use crate::schema::{Kind, Node};
use indexmap::IndexMap;
use std::collections::BTreeMap;

/// Lays `over` on `base`, which stands at `path` and follows `node` (none inside tables that belong to somebody else).
pub(crate) fn merge(node: &Node, base: &mut Val, over: Val, path: &str, load: &mut Load) {
    merge_any(Some(node), base, over, path, load);
}

fn merge_any(node: Option<&Node>, base: &mut Val, over: Val, path: &str, load: &mut Load) {
    match (&mut base.data, over.data) {
        (Data::Table(old), Data::Table(new)) => {
            if let Some(node) = node {
                switch_variant(node, old, &new);
            }
            if !path.is_empty() && !new.is_empty() {
                base.at = over.at;
            }
            for (name, entry) in new {
                let here = join(path, &name);
                let child = child(node, &name);
                match old.get_mut(&name) {
                    Some(existing) => {
                        existing.key = entry.key;
                        merge_any(child, &mut existing.val, entry.val, &here, load);
                    }
                    None => {
                        let val = settle(child, entry.val, &here, load);
                        old.insert(name, Entry { key: entry.key, val });
                    }
                }
            }
        }
        (Data::List(items), Data::Items(changes)) => {
            let item = node.and_then(Node::item);
            for (index, entry) in changes {
                let (here, count) = (join(path, &index.to_string()), items.len());
                match items.get_mut(index) {
                    Some(existing) => merge_any(item, existing, entry.val, &here, load),
                    None if index == count => items.push(settle(item, entry.val, &here, load)),
                    None => no_such_item(path, index, count, &entry.key, load),
                }
            }
        }
        (_, data) => *base = settle(node, Val { data, at: over.at }, path, load),
    }
}

/// Turns changes to a list that does not exist into a list.
fn settle(node: Option<&Node>, val: Val, path: &str, load: &mut Load) -> Val {
    let data = match val.data {
        Data::Table(entries) => Data::Table(
            entries
                .into_iter()
                .map(|(name, entry)| {
                    let here = join(path, &name);
                    let val = settle(child(node, &name), entry.val, &here, load);
                    (name, Entry { key: entry.key, val })
                })
                .collect(),
        ),
        Data::Items(_) => {
            let mut list = Val { data: Data::List(Vec::new()), at: val.at.clone() };
            merge_any(node, &mut list, val, path, load);
            return list;
        }
        other => other,
    };
    Val { data, at: val.at }
}

fn no_such_item(path: &str, index: usize, count: usize, at: &Origin, load: &mut Load) {
    let message = format!("`{path}.{index}` does not exist: `{path}` has {count} item(s), so the next one is {count}");
    load.fail(ProblemKind::Flag(message), Some(at));
}

fn child<'a>(node: Option<&'a Node>, name: &str) -> Option<&'a Node> {
    node?.keys(name).into_iter().next().map(|k| &k.node)
}

/// When the upper layer picks another variant, the lower layer's keys that the new variant lacks go. Keys that no variant
/// has stay, so that they are reported.
fn switch_variant(node: &Node, old: &mut IndexMap<String, Entry>, new: &IndexMap<String, Entry>) {
    let Some(tag) = new.get("type").and_then(|e| e.val.as_text()) else { return };
    let current = old.get("type").and_then(|e| e.val.as_text());
    match &node.kind {
        Kind::Union(union) if current.or(union.default) != Some(tag) => {
            let Some(variant) = union.variant(tag) else { return };
            let left = current.or(union.default).and_then(|tag| union.variant(tag));
            let known = |name: &str| {
                left.is_some_and(|s| s.is_foreign(name)) || union.variants.iter().any(|(_, s)| s.key(name).is_some())
            };
            old.retain(|name, _| name == "type" || variant.key(name).is_some() || !known(name));
        }
        Kind::OpenUnion(default, _) if current.unwrap_or(default) != tag => old.retain(|name, _| name == "type"),
        _ => {}
    }
}

/// Renames aliases to the keys they stand for.
pub(crate) fn canonical(node: &Node, val: &mut Val, path: &str, load: &mut Load) {
    match &mut val.data {
        Data::Table(entries) => {
            let aliases: Vec<(String, &'static str)> = entries
                .keys()
                .filter_map(|name| {
                    let key = node.keys(name).into_iter().next()?;
                    (key.name != name).then_some((name.clone(), key.name))
                })
                .collect();
            for (alias, name) in aliases {
                let Some(entry) = entries.shift_remove(&alias) else { continue };
                if entries.contains_key(name) {
                    let kind = ProblemKind::Twice { key: join(path, name), alias: join(path, &alias) };
                    load.fail(kind, Some(&entry.key));
                } else {
                    entries.insert(name.to_string(), entry);
                }
            }
            for (name, entry) in entries.iter_mut() {
                for key in node.keys(name).into_iter().take(1) {
                    canonical(&key.node, &mut entry.val, &join(path, name), load);
                }
            }
        }
        Data::List(items) => {
            if let Some(item) = node.item() {
                for (i, val) in items.iter_mut().enumerate() {
                    canonical(item, val, &join(path, &i.to_string()), load);
                }
            }
        }
        Data::Items(changes) => {
            if let Some(item) = node.item() {
                for (i, entry) in changes.iter_mut() {
                    canonical(item, &mut entry.val, &join(path, &i.to_string()), load);
                }
            }
        }
        _ => {}
    }
}

/// Puts a flag's value at its path in the tree of flags. A later flag wins, tables merge, and `append` adds to a list
/// that an earlier flag began.
pub(crate) fn set(tree: &mut Val, path: &[Seg], value: Val, append: bool) {
    let at = value.at.clone();
    let Some((head, rest)) = path.split_first() else {
        match (&mut tree.data, value.data) {
            (Data::Table(old), Data::Table(new)) => {
                for (name, entry) in new {
                    match old.get_mut(&name) {
                        Some(existing) => set(&mut existing.val, &[], entry.val, false),
                        None => {
                            old.insert(name, entry);
                        }
                    }
                }
            }
            (Data::List(old), Data::List(new)) if append => old.extend(new),
            (_, data) => *tree = Val { data, at },
        }
        return;
    };
    let slot = match head {
        Seg::Key(name) => {
            if tree.as_table().is_none() {
                *tree = Val::table(at.clone());
            }
            let Data::Table(entries) = &mut tree.data else { return };
            entries.entry(name.clone()).or_insert_with(|| Entry { key: at.clone(), val: placeholder(&at) })
        }
        Seg::Index(index) => {
            if let Data::List(items) = &mut tree.data {
                // A whole list was given before: its items are changed in place.
                if let Some(item) = items.get_mut(*index) {
                    return set(item, rest, value, append);
                }
            }
            if !matches!(tree.data, Data::Items(_)) {
                *tree = Val { data: Data::Items(BTreeMap::new()), at: at.clone() };
            }
            let Data::Items(items) = &mut tree.data else { return };
            items.entry(*index).or_insert_with(|| Entry { key: at.clone(), val: placeholder(&at) })
        }
    };
    slot.key = at;
    set(&mut slot.val, rest, value, append);
}

/// Stands where a value is about to be put.
fn placeholder(at: &Origin) -> Val {
    Val { data: Data::Null, at: at.clone() }
}
