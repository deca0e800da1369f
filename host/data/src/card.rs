//! What a dataset's README.md says about its files: the `configs` in the YAML at its head. Owns that part of the format;
//! must not know which files there are.

use serde_json::{Map, Value};

/// One of the subsets that the card describes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Subset {
    /// Its name.
    pub name: String,
    /// Whether it is the one that is meant where none is named.
    pub default: bool,
    /// The folder that it is in.
    pub folder: Option<String>,
    /// Split and patterns of paths, as far as they are listed.
    pub splits: Vec<(String, Vec<String>)>,
}

/// The subsets of a card; none where it says nothing about files.
///
/// # Errors
/// YAML that is none, or another shape than the hub's documentation has.
pub(crate) fn subsets(text: &str) -> Result<Vec<Subset>, String> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let head = text.strip_prefix("---").and_then(|rest| rest.split_once("\n---"));
    let Some((head, _)) = head else { return Ok(Vec::new()) };
    let card: Value = serde_yaml_ng::from_str(head).map_err(|e| format!("its README.md begins with bad YAML: {e}"))?;
    match card.get("configs") {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Array(items)) => items.iter().map(subset).collect(),
        Some(_) => Err("`configs` in its README.md is no list".into()),
    }
}

fn subset(item: &Value) -> Result<Subset, String> {
    let map = item.as_object().ok_or("an entry of `configs` in its README.md is no table")?;
    let text = |name: &str| map.get(name).and_then(Value::as_str).map(str::to_owned);
    let name = text("config_name").unwrap_or_else(|| "default".into());
    let splits = match map.get("data_files") {
        None | Some(Value::Null) => Vec::new(),
        Some(files) => splits(files).ok_or_else(|| format!("`data_files` of `{name}` in its README.md is unknown"))?,
    };
    let default = map.get("default").and_then(Value::as_bool).unwrap_or_default();
    Ok(Subset { default, folder: text("data_dir"), splits, name })
}

/// A pattern or a list of them; a list of tables with `split` and `path`; a table of splits.
fn splits(files: &Value) -> Option<Vec<(String, Vec<String>)>> {
    let train = |patterns| vec![("train".to_owned(), patterns)];
    let of_table = |item: &Map<String, Value>| {
        Some((item.get("split").and_then(Value::as_str).unwrap_or("train").to_owned(), patterns(item.get("path")?)?))
    };
    match files {
        Value::Array(items) if items.iter().all(Value::is_object) => {
            items.iter().filter_map(Value::as_object).map(of_table).collect()
        }
        Value::Object(map) => map.iter().map(|(split, files)| Some((split.clone(), patterns(files)?))).collect(),
        files => patterns(files).map(train),
    }
}

fn patterns(value: &Value) -> Option<Vec<String>> {
    match value {
        Value::String(pattern) => Some(vec![pattern.clone()]),
        Value::Array(items) => items.iter().map(|item| item.as_str().map(str::to_owned)).collect(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_to_list_files_is_read() {
        let card = "---\nlicense: mit\nconfigs:\n\
            - config_name: main\n  default: true\n  data_files:\n  - split: train\n    path: data/train-*\n\
            \x20 - split: test\n    path:\n    - a.jsonl\n    - b.jsonl\n\
            - config_name: one\n  data_files: one.jsonl\n\
            - config_name: some\n  data_files:\n  - x.jsonl\n  - y.jsonl\n\
            - config_name: table\n  data_files:\n    train: t.jsonl\n    dev: [d.jsonl]\n\
            - config_name: folder\n  data_dir: sub\n---\n# Text\n";
        let subsets = subsets(card).unwrap();
        let names: Vec<_> = subsets.iter().map(|s| (s.name.as_str(), s.default)).collect();
        assert_eq!(names, [("main", true), ("one", false), ("some", false), ("table", false), ("folder", false)]);
        let split = |name: &str, patterns: &[&str]| (name.into(), patterns.iter().map(|p| p.to_string()).collect());
        assert_eq!(subsets[0].splits, [split("train", &["data/train-*"]), split("test", &["a.jsonl", "b.jsonl"])]);
        assert_eq!(subsets[1].splits, [split("train", &["one.jsonl"])]);
        assert_eq!(subsets[2].splits, [split("train", &["x.jsonl", "y.jsonl"])]);
        assert_eq!(subsets[3].splits, [split("train", &["t.jsonl"]), split("dev", &["d.jsonl"])]);
        assert!(subsets[4].splits.is_empty() && subsets[4].folder.as_deref() == Some("sub"));
    }

    #[test]
    fn cards_that_say_nothing_and_cards_that_are_wrong() {
        for silent in ["", "# Only text", "---\nlicense: mit\n---\n", "---\nconfigs:\n---\n", "--- no end"] {
            assert!(subsets(silent).unwrap().is_empty(), "{silent}");
        }
        let told = |text: &str| subsets(text).unwrap_err();
        assert!(told("---\na: [\n---\n").starts_with("its README.md begins with bad YAML"));
        assert!(told("---\nconfigs: 1\n---\n").contains("is no list"));
        assert!(told("---\nconfigs:\n- 1\n---\n").contains("is no table"));
        assert!(told("---\nconfigs:\n- data_files: 1\n---\n").contains("`data_files` of `default`"));
    }
}
