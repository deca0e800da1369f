//! Datasets laid out in the ways of the hub; where no card says otherwise, datasets 5.2 finds the same files.

use super::*;

fn chosen(names: &[&str], card: Option<&str>, subset: Option<&str>, split: &str) -> Result<Vec<String>, String> {
    let names: Vec<String> = names.iter().map(|name| name.to_string()).collect();
    select(&names, card, &Wanted { subset: subset.map(str::to_owned), split: split.into() })
}

fn files(names: &[&str], split: &str) -> Vec<String> {
    chosen(names, None, None, split).unwrap()
}

#[test]
fn shards_are_told_by_their_names() {
    let names = [
        ".gitattributes",
        "README.md",
        "dataset_infos.json",
        "data/train_sft-00001-of-00002.parquet",
        "data/train_sft-00000-of-00002-3fa1b2.parquet",
        "data/test_sft-00000-of-00001.parquet",
    ];
    let train = ["data/train_sft-00000-of-00002-3fa1b2.parquet", "data/train_sft-00001-of-00002.parquet"];
    assert_eq!(files(&names, "train_sft"), train);
    assert_eq!(files(&names, "test_sft"), ["data/test_sft-00000-of-00001.parquet"]);
    let told = chosen(&names, None, None, "train").unwrap_err();
    assert_eq!(told, "there is no split `train`; it has test_sft, train_sft");
}

#[test]
fn words_in_names_tell_splits() {
    let names = ["train.jsonl", "my_train-2.jsonl", "dev.jsonl", "latest.jsonl", "x-eval.json", "extra.jsonl"];
    assert_eq!(files(&names, "train"), ["my_train-2.jsonl", "train.jsonl"]);
    assert_eq!(files(&names, "validation"), ["dev.jsonl"]);
    assert_eq!(files(&names, "test"), ["x-eval.json"]);
    assert_eq!(files(&names, "extra"), ["extra.jsonl"]);
    let folders = ["default/train/0000.parquet", "default/train/0001.parquet", "default/test/0000.parquet"];
    assert_eq!(files(&folders, "train"), folders[..2]);
    assert_eq!(files(&folders, "test"), folders[2..]);
    assert_eq!(files(&["train/test.jsonl", "train/a.jsonl"], "train"), ["train/a.jsonl", "train/test.jsonl"]);
}

#[test]
fn where_no_name_says_anything_all_is_train() {
    let names = ["b.jsonl", "a.json", "c/d.parquet", "c/notes.txt", ".cache/x.jsonl", "__pycache__/y.json"];
    assert_eq!(files(&names, "train"), ["a.json", "b.jsonl", "c/d.parquet"]);
    assert_eq!(files(&names, "c"), ["c/d.parquet"]);
    assert_eq!(chosen(&names, None, None, "test").unwrap_err(), "there is no split `test`; it has train");
    let none = |names: &[&str]| chosen(names, None, None, "train").unwrap_err();
    assert_eq!(none(&["a.txt", "config.json"]), "it has no file that ends in .jsonl, .ndjson, .json, .parquet");
    assert!(none(&["a.csv"]).contains(".parquet; `a.csv`: tables of text are not read: write it as JSON lines"));
    assert!(none(&["a.jsonl.gz"]).ends_with("`a.jsonl.gz`: it is packed: unpack it first"));
    let saved = ["dataset_info.json", "state.json", "data-00000-of-00001.arrow"];
    assert!(none(&saved).contains("nor folders of `save_to_disk`: write it as Parquet"));
}

#[test]
fn rollouts_are_counted_once() {
    let names = [
        "step_1/train/all/traces.jsonl",
        "step_1/train/effective/traces.jsonl",
        "step_2/train/all/traces.jsonl",
        "step_2/eval/all/traces.jsonl",
    ];
    assert_eq!(files(&names, "train"), names[1..3]);
    assert_eq!(files(&names, "test"), names[3..]);
    assert_eq!(files(&["all/traces.jsonl", "effective/traces.jsonl"], "train"), ["effective/traces.jsonl"]);
    assert_eq!(files(&["small/traces.jsonl", "seffective/traces.jsonl"], "train").len(), 2);
}

#[test]
fn folders_are_subsets() {
    let names = ["main/train-00000-of-00001.parquet", "main/test-00000-of-00001.parquet", "socratic/a.jsonl"];
    assert_eq!(chosen(&names, None, Some("main"), "train").unwrap(), [names[0]]);
    assert_eq!(chosen(&names, None, Some("socratic"), "train").unwrap(), [names[2]]);
    let told = |subset, split| chosen(&names, None, Some(subset), split).unwrap_err();
    assert_eq!(told("other", "train"), "there is no subset `other`; it has main, socratic");
    assert_eq!(told("main", "validation"), "there is no split `validation`; it has test, train");
    // A folder's own name says nothing about the splits in it.
    assert_eq!(chosen(&["train/test.jsonl"], None, Some("train"), "test").unwrap(), ["train/test.jsonl"]);
    assert_eq!(
        chosen(&["a.jsonl"], None, Some("b"), "train").unwrap_err(),
        "there is no subset `b`; it has no folders"
    );
}

#[test]
fn the_card_has_the_last_word() {
    let names = ["a/one.jsonl", "a/deep/two.jsonl", "b/train.parquet", "b/test.parquet", "odd.jsonl"];
    let card = "---\nconfigs:\n\
        - config_name: a\n  data_files:\n  - split: train\n    path: a/*.jsonl\n  - split: all\n    path: a/**/*.jsonl\n\
        - config_name: b\n  data_dir: b\n\
        - config_name: gone\n  data_files: gone/*.jsonl\n---\n";
    let of = |subset, split| chosen(&names, Some(card), subset, split);
    assert_eq!(of(Some("a"), "train").unwrap(), ["a/one.jsonl"]);
    assert_eq!(of(Some("a"), "all").unwrap(), ["a/deep/two.jsonl", "a/one.jsonl"]);
    assert_eq!(of(Some("b"), "test").unwrap(), ["b/test.parquet"]);
    assert_eq!(of(None, "train").unwrap_err(), "choose with `subsets`; it has a, b, gone");
    assert_eq!(of(Some("c"), "train").unwrap_err(), "there is no subset `c`; it has a, b, gone");
    assert_eq!(of(Some("a"), "test").unwrap_err(), "there is no split `test`; it has train, all");
    let gone = of(Some("gone"), "train").unwrap_err();
    assert!(gone.contains("is at gone/*.jsonl, where its README.md has the split `train`"), "{gone}");
    let default = card.replace("- config_name: b\n", "- config_name: b\n  default: true\n");
    assert_eq!(chosen(&names, Some(&default), None, "train").unwrap(), ["b/train.parquet"]);
    let one = "---\nconfigs:\n- config_name: x\n  data_files: odd.jsonl\n---\n";
    assert_eq!(chosen(&names, Some(one), None, "train").unwrap(), ["odd.jsonl"]);
}
