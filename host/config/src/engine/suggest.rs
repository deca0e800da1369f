//! What an unknown key or word may have meant.
//!
//! Owns the search for near names. Must not know concrete keys.

use crate::error::ProblemKind;
use crate::schema::{Node, Section};
use std::collections::BTreeSet;

/// `a` + `b` = `a.b`.
pub(crate) fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_string() } else { format!("{path}.{name}") }
}

/// The problem of a key `name` in the table `parent`, which follows `sections` (one per variant).
pub(crate) fn unknown_key(root: &Node, sections: &[&Section], parent: &str, name: &str) -> ProblemKind {
    let key = join(parent, name);
    if let Some((_, instead)) = sections.iter().flat_map(|s| s.renamed).find(|(old, _)| *old == name) {
        return ProblemKind::Renamed { key, instead: (*instead).to_string() };
    }
    if sections.iter().any(|s| s.unsupported.contains(&name)) {
        return ProblemKind::Unsupported { what: format!("`{key}`") };
    }
    let mut here: Vec<&str> = sections.iter().flat_map(|s| s.keys.iter().map(|k| k.name)).collect();
    let mut seen = BTreeSet::new();
    here.retain(|key| seen.insert(*key));
    let hint = near(name, &here)
        .map(|best| format!("; did you mean `{best}`?"))
        .or_else(|| elsewhere(root, parent, name))
        .or_else(|| loosely_near(name, &here).map(|best| format!("; did you mean `{best}`?")))
        .unwrap_or_else(|| match here.as_slice() {
            [] => String::new(),
            keys if parent.is_empty() => format!("; the keys are {}", keys.join(", ")),
            keys => format!("; the keys of `{parent}` are {}", keys.join(", ")),
        });
    ProblemKind::UnknownKey { key, hint }
}

/// A name at most two edits and a third of its length away.
pub(crate) fn near<'a>(name: &str, names: &[&'a str]) -> Option<&'a str> {
    let plain = name.replace('-', "_").to_lowercase();
    let best = names.iter().min_by_key(|n| strsim::damerau_levenshtein(&plain, n))?;
    let distance = strsim::damerau_levenshtein(&plain, best);
    (distance <= 2 && distance * 3 <= best.len().max(3)).then_some(*best)
}

fn loosely_near<'a>(name: &str, names: &[&'a str]) -> Option<&'a str> {
    let score = |n: &str| strsim::jaro_winkler(name, n);
    let best = names.iter().max_by(|a, b| score(a).total_cmp(&score(b)))?;
    (score(best) > 0.85).then_some(*best)
}

/// Where else a key of exactly this name exists: the nearest sections first.
fn elsewhere(root: &Node, parent: &str, name: &str) -> Option<String> {
    let mut found = Vec::new();
    collect(root, "", name, &mut found);
    let shared = |path: &str| path.split('.').zip(parent.split('.')).take_while(|(a, b)| a == b).count();
    found.sort_by_key(|path| (std::cmp::Reverse(shared(path)), path.matches('.').count()));
    found.dedup();
    let list: Vec<String> = found.iter().take(2).map(|p| format!("`{p}`")).collect();
    (!list.is_empty()).then(|| format!("; did you mean {}?", list.join(" or ")))
}

fn collect(node: &Node, path: &str, name: &str, found: &mut Vec<String>) {
    if let Some(item) = node.item() {
        collect(item, &format!("{path}[]"), name, found);
    }
    for section in node.sections() {
        for key in &section.keys {
            let here = join(path, key.name);
            if key.name == name {
                found.push(here.clone());
            }
            collect(&key.node, &here, name, found);
        }
    }
}
