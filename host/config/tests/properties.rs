//! Any misspelt key of a configuration that sets every key is an error that names it.

use prl_config::{load_rl, load_sft, load_trainer};
use proptest::prelude::*;
use std::fs;
use std::ops::Range;
use tempfile::TempDir;

/// A key as it stands in the text.
#[derive(Clone, Debug)]
struct Spot {
    span: Range<usize>,
    name: String,
}

/// Every key of a document that is prl's own: tables handed to environments and algorithms, and names that
/// are free, are left out.
fn keys(text: &str) -> Vec<Spot> {
    fn walk(table: &dyn toml_edit::TableLike, spots: &mut Vec<Spot>) {
        for (name, item) in table.iter() {
            if let Some(span) = table.key(name).and_then(|k| k.span()) {
                spots.push(Spot { span, name: name.to_string() });
            }
            if ["args", "weights", "algo", "pools", "gates"].contains(&name) {
                continue;
            }
            if let Some(inner) = item.as_table_like() {
                walk(inner, spots);
            }
            if let Some(tables) = item.as_array_of_tables() {
                tables.iter().for_each(|t| walk(t, spots));
            }
            if let Some(values) = item.as_array() {
                values.iter().filter_map(|v| v.as_inline_table()).for_each(|t| walk(t, spots));
            }
        }
    }
    let document = toml_edit::Document::parse(text).unwrap();
    let mut spots = Vec::new();
    walk(document.as_table(), &mut spots);
    spots
}

/// One character of a name inserted, deleted or replaced.
fn mutate(name: &str, at: usize, letter: char, how: u8) -> String {
    let mut chars: Vec<char> = name.chars().collect();
    match how {
        0 => chars.insert(at % (chars.len() + 1), letter),
        1 if chars.len() > 1 => {
            chars.remove(at % chars.len());
        }
        _ => {
            let at = at % chars.len();
            chars[at] = letter;
        }
    }
    chars.into_iter().collect()
}

fn must_fail(file: &str, pick: usize, at: usize, letter: char, how: u8) -> Result<(), TestCaseError> {
    let text = fs::read_to_string(format!("tests/ui/valid/{file}.toml")).unwrap();
    let spots = keys(&text);
    prop_assert!(spots.len() > 5);
    let spot = &spots[pick % spots.len()];
    let wrong = mutate(&spot.name, at, letter, how);
    prop_assume!(wrong != spot.name);
    let mut changed = text.clone();
    changed.replace_range(spot.span.clone(), &wrong);
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("changed.toml");
    fs::write(&path, &changed).unwrap();
    let words = ["@".to_string(), path.display().to_string()];
    let error = match file.split('_').next() {
        Some("sft") => load_sft(&words).map(|_| ()),
        Some("trainer") => load_trainer(&words).map(|_| ()),
        _ => load_rl(&words).map(|_| ()),
    };
    let Err(error) = error else {
        return Err(TestCaseError::fail(format!("`{}` written as `{wrong}` was accepted", spot.name)));
    };
    prop_assert!(error.to_string().contains("changed.toml:"), "{}", error);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, rng_seed: proptest::test_runner::RngSeed::Fixed(7), ..ProptestConfig::default() })]

    #[test]
    fn a_misspelt_key_of_rl_is_an_error(pick in 0usize..1000, at in 0usize..30, letter in "[a-z_0-9]", how in 0u8..3) {
        must_fail("rl_maximal", pick, at, letter.chars().next().unwrap(), how)?;
    }

    #[test]
    fn a_misspelt_key_of_sft_is_an_error(pick in 0usize..1000, at in 0usize..30, letter in "[a-z_0-9]", how in 0u8..3) {
        must_fail("sft_files", pick, at, letter.chars().next().unwrap(), how)?;
    }

    #[test]
    fn a_misspelt_key_of_trainer_is_an_error(pick in 0usize..1000, at in 0usize..30, letter in "[a-z_0-9]", how in 0u8..3) {
        must_fail("trainer_fake", pick, at, letter.chars().next().unwrap(), how)?;
    }

    /// Whatever the words are, loading ends with a configuration or a message, never a panic.
    #[test]
    fn any_words_are_answered(words in proptest::collection::vec("(--)?(no-)?[a-z.@\\-0-9={}\\[\\]\"]{0,12}|--orchestrator.train.env.[0-9].id|--ckpt|--trainer|@|None", 0..6)) {
        if let Err(error) = load_rl(&words) {
            prop_assert!(!error.to_string().is_empty());
        }
    }

    /// Whatever the file holds, the same.
    #[test]
    fn any_file_is_answered(text in "([a-z_.]{1,12}|\\[|\\]|\\[\\[orchestrator.train.env\\]\\]\n|=|\"[a-zé]{0,3}\"|[0-9]{1,2}|\n|\\{|\\}|,|\\[trainer\\]\n| = [0-9]\n){0,20}") {
        let dir = TempDir::new().unwrap();
        let path = dir.path().join("any.toml");
        fs::write(&path, &text).unwrap();
        if let Err(error) = load_rl(&["@".to_string(), path.display().to_string()]) {
            prop_assert!(!error.to_string().is_empty());
        }
    }
}
