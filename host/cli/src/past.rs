//! A run's folder as commands read it that look back: configuration and metrics, line by line. Owns what is asked of a
//! folder before it counts as a run's; must not know what is told of it. Nothing in the folder is changed.

use crate::failure::{Failure, input};
use prl_store::{RunView, read_lines};
use prl_types::Step;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use toml_edit::{DocumentMut, Item, Value as Toml};

/// Files that hold a run's whole effective configuration, the first that is there.
const CONFIGS: [&str; 4] = ["rl.toml", "sft.toml", "trainer.toml", "inference.toml"];
/// Keys that say where checkpoints are.
const CKPT_DIRS: [&str; 2] = ["trainer.ckpt.output_dir", "ckpt.output_dir"];

/// A run that is looked at.
pub struct Past {
    /// Where its parts are.
    pub view: RunView,
    /// Its effective configuration, where it was written.
    pub config: Option<Config>,
}

/// A configuration, flat.
pub struct Config {
    /// The file's name.
    pub file: &'static str,
    /// Values by their dotted keys, elements of lists of tables by their place; lists of values are one value.
    pub keys: BTreeMap<String, Value>,
}

/// A line of `metrics.jsonl`.
#[derive(Debug, Deserialize)]
pub struct MetricsLine {
    /// The step.
    pub step: Step,
    /// Numbers by name.
    #[serde(flatten)]
    pub values: BTreeMap<String, f64>,
}

impl Past {
    /// Opens the run in `root`.
    ///
    /// # Errors
    /// There is no such folder, no run was in it, or its configuration is no TOML.
    pub fn open(root: &Path) -> Result<Self, Failure> {
        let shown = root.display();
        if !root.is_dir() {
            let what = if root.exists() { "is no folder" } else { "does not exist" };
            return Err(Failure::input(format_args!("`{shown}` {what}; give a run's output directory")));
        }
        let view = RunView::of(root, None);
        if !view.is_run() {
            return Err(Failure::input(format_args!(
                "`{shown}` is no run: it has no metrics.jsonl, configs/, rollouts/, checkpoints/ or weights/; give a run's \
                 output directory"
            )));
        }
        let config = Config::read(&view.configs())?;
        let ckpt_dir = config.as_ref().and_then(|config| CKPT_DIRS.iter().find_map(|key| config.text(key)));
        let view = RunView::of(root, ckpt_dir.map(Path::new));
        Ok(Past { view, config })
    }

    /// The lines of `metrics.jsonl` that are whole, in their order; nothing where there is no such file.
    ///
    /// # Errors
    /// It cannot be read; for a line, that it is no object of a step and numbers.
    pub fn metrics(&self) -> Result<Option<impl Iterator<Item = Result<MetricsLine, Failure>> + use<>>, Failure> {
        let path = self.view.metrics();
        if !path.exists() {
            return Ok(None);
        }
        let lines = read_lines::<MetricsLine>(&path).map_err(Failure::input)?;
        Ok(Some(lines.map(|line| line.map_err(Failure::input))))
    }
}

impl Config {
    fn read(dir: &Path) -> Result<Option<Self>, Failure> {
        let Some(file) = CONFIGS.into_iter().find(|name| dir.join(name).is_file()) else { return Ok(None) };
        let path = dir.join(file);
        let subject = format!("`{}`", path.display());
        let text = std::fs::read_to_string(&path).map_err(input(&subject))?;
        let document: DocumentMut = text.parse().map_err(input(&subject))?;
        let mut keys = BTreeMap::new();
        flatten(document.as_item(), String::new(), &mut keys);
        Ok(Some(Config { file, keys }))
    }

    /// A text of it.
    pub fn text(&self, key: &str) -> Option<&str> {
        self.keys.get(key).and_then(Value::as_str)
    }

    /// Texts of the elements of a list of tables, such as the names of `orchestrator.train.env`.
    pub fn texts<'a>(&'a self, list: &'a str, key: &'a str) -> impl Iterator<Item = &'a str> + 'a {
        (0..).map_while(move |at| self.text(&format!("{list}.{at}.{key}")))
    }
}

fn flatten(item: &Item, path: String, out: &mut BTreeMap<String, Value>) {
    let below = |key: &str| if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
    match item {
        Item::None => {}
        Item::Table(table) => table.iter().for_each(|(key, item)| flatten(item, below(key), out)),
        Item::ArrayOfTables(tables) => tables.iter().enumerate().for_each(|(at, table)| {
            table.iter().for_each(|(key, item)| flatten(item, below(&format!("{at}.{key}")), out));
        }),
        Item::Value(Toml::InlineTable(table)) => {
            table.iter().for_each(|(key, value)| flatten(&Item::Value(value.clone()), below(key), out));
        }
        Item::Value(Toml::Array(list)) if list.iter().any(|value| value.is_inline_table() || value.is_array()) => {
            let each = list.iter().enumerate();
            each.for_each(|(at, value)| flatten(&Item::Value(value.clone()), below(&at.to_string()), out));
        }
        Item::Value(value) => {
            out.insert(path, plain(value));
        }
    }
}

fn plain(value: &Toml) -> Value {
    match value {
        Toml::String(text) => json!(text.value()),
        Toml::Integer(number) => json!(number.value()),
        Toml::Float(number) => json!(number.value()),
        Toml::Boolean(flag) => json!(flag.value()),
        Toml::Datetime(time) => json!(time.value().to_string()),
        Toml::Array(list) => list.iter().map(plain).collect(),
        Toml::InlineTable(table) => table.iter().map(|(key, value)| (key.to_owned(), plain(value))).collect(),
    }
}

/// A number of bytes for people.
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    let mut shown = format!("{count} B");
    let mut size = count as f64;
    for unit in UNITS {
        if size < 1024.0 {
            break;
        }
        size /= 1024.0;
        shown = format!("{size:.1} {unit}");
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_flat() {
        let text = "a = 1\nlist = [1, 2]\n[b]\nc = { d = \"x\", e = [] }\n[[b.f]]\ng = 0.5\n[[b.f]]\ng = 1979-05-27\n\
                    [h]\nmixed = [{ i = true }]\n";
        let mut keys = BTreeMap::new();
        flatten(text.parse::<DocumentMut>().unwrap().as_item(), String::new(), &mut keys);
        let shown: Vec<String> = keys.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let want = ["a=1", "b.c.d=\"x\"", "b.c.e=[]", "b.f.0.g=0.5", "b.f.1.g=\"1979-05-27\"", "h.mixed.0.i=true"];
        assert_eq!(shown, [&want[..], &["list=[1,2]"]].concat());
    }

    #[test]
    fn sizes_are_told_in_the_unit_they_fill() {
        let shown = [0, 1023, 1024, 1536 << 20].map(bytes);
        assert_eq!(shown, ["0 B", "1023 B", "1.0 KiB", "1.5 GiB"]);
    }
}
