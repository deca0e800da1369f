//! Golden files: what valid configurations become, and the exact text of what is wrong with invalid ones.
//!
//! `PRL_BLESS=1` rewrites the expected files.

use prl_config::{ConfigErrors, Loaded, load_inference, load_rl, load_sft, load_trainer};
use serde::Serialize;
use std::fs;
use std::path::{Path, PathBuf};

fn inputs(folder: &str) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = fs::read_dir(Path::new("tests/ui").join(folder))
        .unwrap()
        .map(|e| e.unwrap().path())
        .filter(|p| p.extension().is_some_and(|e| e == "toml"))
        .collect();
    files.sort();
    assert!(!files.is_empty());
    files
}

/// The file as `@ file`, then the words of its `# args:` line.
fn words(file: &Path) -> Vec<String> {
    let text = fs::read_to_string(file).unwrap();
    let args = text.lines().next().and_then(|l| l.strip_prefix("# args: ")).unwrap_or("");
    let mut words = vec!["@".to_string(), file.display().to_string()];
    words.extend(args.split_whitespace().map(str::to_string));
    words
}

fn load(file: &Path) -> Result<(String, String), String> {
    fn texts<C: Serialize>(loaded: Result<Loaded<C>, ConfigErrors>) -> Result<(String, String), String> {
        let loaded = loaded.map_err(|e| e.to_string())?;
        Ok((serde_json::to_string_pretty(&loaded.config).unwrap(), loaded.explain()))
    }
    let words = words(file);
    match file.file_name().unwrap().to_str().unwrap().split('_').next() {
        Some("inference") => texts(load_inference(&words)),
        Some("sft") => texts(load_sft(&words)),
        Some("trainer") => texts(load_trainer(&words)),
        _ => texts(load_rl(&words)),
    }
}

fn compare(expected: &Path, actual: &str, wrong: &mut Vec<String>) {
    let actual = format!("{}\n", actual.trim_end());
    if std::env::var_os("PRL_BLESS").is_some() {
        fs::write(expected, &actual).unwrap();
    }
    if fs::read_to_string(expected).unwrap_or_default() != actual {
        wrong.push(format!("{} differs; now it is:\n{actual}", expected.display()));
    }
}

#[test]
fn valid_configurations() {
    let mut wrong = Vec::new();
    for file in inputs("valid") {
        let (config, explained) = load(&file).unwrap_or_else(|e| panic!("{}:\n{e}", file.display()));
        compare(&file.with_extension("json"), &config, &mut wrong);
        compare(&file.with_extension("txt"), &explained, &mut wrong);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn invalid_configurations() {
    let mut wrong = Vec::new();
    for file in inputs("invalid") {
        match load(&file) {
            Ok(_) => wrong.push(format!("{} was accepted", file.display())),
            Err(text) => compare(&file.with_extension("err"), &text, &mut wrong),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
