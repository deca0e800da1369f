//! Datasets of the hub, against a stand-in.

#[path = "../../hub/tests/common/mod.rs"]
mod stand_in;

use prl_data::{DataError, Wanted, rows};
use prl_hub::HubOptions;
use serde_json::Value;
use stand_in::{COMMIT, StandIn, TOKEN};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

fn committed(name: &str) -> Vec<u8> {
    std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/rows").join(name)).unwrap()
}

fn files(files: &[(&str, &[u8])]) -> HashMap<String, Vec<u8>> {
    files.iter().map(|(name, bytes)| (name.to_string(), bytes.to_vec())).collect()
}

fn stand_in() -> StandIn {
    let parquet = committed("chat.parquet");
    let card = "---\nconfigs:\n- config_name: easy\n  data_files:\n  - split: train\n    path: easy/*.jsonl\n\
                - config_name: hard\n  data_files: hard.json\n---\n# Rows\n";
    StandIn::start(HashMap::from([
        (
            "datasets/some-one/plain",
            files(&[
                ("README.md", b"# Rows"),
                ("data/train-00000-of-00002.parquet", &parquet),
                ("data/train-00001-of-00002.parquet", &parquet),
                ("data/test-00000-of-00001.parquet", &parquet),
            ]),
        ),
        (
            "datasets/some-one/card",
            files(&[
                ("README.md", card.as_bytes()),
                ("easy/a.jsonl", b"{\"n\": 1}\n"),
                ("easy/b.jsonl", b"{\"n\": 2}\n"),
                ("hard.json", b"[{\"n\": 3}]"),
                ("unused.jsonl", b"{\"n\": 4}\n"),
            ]),
        ),
        ("datasets/gated/rows", files(&[("train.jsonl", b"{\"n\": 5}\n")])),
    ]))
}

fn of(subset: Option<&str>, split: &str) -> Wanted {
    Wanted { subset: subset.map(str::to_owned), split: split.into() }
}

fn values(files: Vec<PathBuf>) -> Vec<Value> {
    rows(files, &["messages", "tools"]).unwrap().map(|row| row.unwrap().value.unwrap()).collect()
}

fn fetch(
    id: &str,
    revision: Option<&str>,
    wanted: &[Wanted],
    options: &HubOptions,
) -> Result<Vec<Vec<PathBuf>>, DataError> {
    prl_data::fetch(id, revision, wanted, options).map(|fetched| {
        assert_eq!(fetched.commit, COMMIT);
        fetched.parts
    })
}

fn told(id: &str, revision: Option<&str>, wanted: Wanted, options: &HubOptions) -> String {
    fetch(id, revision, &[wanted], options).unwrap_err().to_string()
}

#[test]
fn a_split_is_fetched_once_and_then_there_without_the_hub() {
    let (hub, home) = (stand_in(), TempDir::new().unwrap());
    let online = hub.options(home.path());
    let train = || vec![Wanted::default()];
    let found = fetch("some-one/plain", None, &train(), &online).unwrap().remove(0);
    assert!(found[0].starts_with(home.path().join("hub/datasets--some-one--plain/snapshots").join(COMMIT)));
    assert_eq!(values(found.clone()).len(), 6);
    // Shards with the same bytes are one blob.
    let wanted = ["README.md", "train-00000-of-00002.parquet"];
    assert_eq!(hub.downloads(), wanted, "and not the test split");
    assert_eq!(fetch("some-one/plain", None, &train(), &online).unwrap(), std::slice::from_ref(&found));
    assert_eq!(hub.downloads(), wanted, "nothing is fetched twice");

    let (offline, requests) = (HubOptions { offline: true, ..online.clone() }, hub.requests());
    assert_eq!(fetch("some-one/plain", None, &train(), &offline).unwrap(), std::slice::from_ref(&found));
    let away = HubOptions { endpoint: "http://127.0.0.1:9".into(), ..online.clone() };
    assert_eq!(fetch("some-one/plain", None, &train(), &away).unwrap(), std::slice::from_ref(&found));
    // The hub has the test split, the cache does not.
    let missing = told("some-one/plain", None, of(None, "test"), &offline);
    assert!(missing.contains("HF_HUB_OFFLINE is set, and the dataset is not in the cache"), "{missing}");
    let missing = told("some-one/plain", None, of(None, "test"), &away);
    assert!(missing.contains("there is no such file or folder here, and the hub at http://127.0.0.1:9"), "{missing}");
    assert!(told("some-one/plain", None, of(None, "dev"), &offline).contains("no split `dev`; it has test, train"));
    assert_eq!(hub.requests(), requests);

    // Another revision is another place in the cache, with the same files behind it.
    assert!(told("some-one/plain", Some("v1"), of(None, "train"), &offline).contains("some-one/plain@v1 as training"));
    fetch("some-one/plain", Some("v1"), &train(), &online).unwrap();
    let train_files = found.clone();
    assert_eq!(fetch("some-one/plain", Some("v1"), &train(), &offline).unwrap(), [found]);
    assert_eq!(hub.downloads(), wanted);

    // Cut short, a file is as good as none.
    std::fs::write(std::fs::canonicalize(&train_files[0]).unwrap(), "cut").unwrap();
    assert!(told("some-one/plain", None, of(None, "train"), &offline).contains("is not in the cache"));
    fetch("some-one/plain", None, &train(), &online).unwrap();
    assert_eq!(values(train_files).len(), 6);
}

#[test]
fn the_card_says_what_subsets_are_made_of() {
    let (hub, home) = (stand_in(), TempDir::new().unwrap());
    let options = hub.options(home.path());
    let wanted = [of(Some("easy"), "train"), of(Some("hard"), "train")];
    let parts: Vec<Vec<Value>> =
        fetch("some-one/card", None, &wanted, &options).unwrap().into_iter().map(values).collect();
    let numbers: Vec<Vec<i64>> =
        parts.iter().map(|rows| rows.iter().map(|row| row["n"].as_i64().unwrap()).collect()).collect();
    assert_eq!(numbers, [vec![1, 2], vec![3]]);
    assert!(!hub.downloads().contains(&"unused.jsonl".to_string()));
    assert!(
        told("some-one/card", None, of(None, "train"), &options).contains("choose with `subsets`; it has easy, hard")
    );
    let offline = HubOptions { offline: true, ..options };
    assert_eq!(fetch("some-one/card", None, &wanted[1..], &offline).unwrap().len(), 1);
}

#[test]
fn what_python_fetched_is_used() {
    let (hub, home) = (stand_in(), TempDir::new().unwrap());
    let offline = HubOptions { offline: true, ..hub.options(home.path()) };
    let repo = home.path().join("hub/datasets--some-one--else");
    std::fs::create_dir_all(repo.join("snapshots").join(COMMIT).join("data")).unwrap();
    std::fs::create_dir_all(repo.join("refs")).unwrap();
    std::fs::write(repo.join("refs/main"), COMMIT).unwrap();
    let file = repo.join("snapshots").join(COMMIT).join("data/train.jsonl");
    std::fs::write(&file, "{\"n\": 9}\n").unwrap();
    assert_eq!(fetch("some-one/else", None, &[Wanted::default()], &offline).unwrap(), [vec![file]]);
    assert_eq!(hub.requests(), 0);
}

#[test]
fn what_may_not_be_read_or_is_not_there_is_told() {
    let (hub, home) = (stand_in(), TempDir::new().unwrap());
    let options = hub.options(home.path());
    let text = told("some-one/gone", None, Wanted::default(), &options);
    assert!(
        text.starts_with("cannot use some-one/gone as training data: there is no such file or folder here"),
        "{text}"
    );
    let text = told("gated/rows", None, Wanted::default(), &options);
    assert!(text.contains("(401): it does not exist, is private or gated; set HF_TOKEN"), "{text}");
    let right = HubOptions { token: Some(TOKEN.into()), ..options.clone() };
    assert_eq!(fetch("gated/rows", None, &[Wanted::default()], &right).unwrap()[0].len(), 1);
    let offline = HubOptions { offline: true, ..options };
    let text = told("some-one/plain", None, Wanted::default(), &offline);
    assert!(text.contains("HF_HUB_OFFLINE is set, and the dataset is not in the cache"), "{text}");
}
