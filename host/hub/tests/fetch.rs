//! Files of a repository in the cache: whole or not there, asked for once.

mod common;

use common::{COMMIT, StandIn, TOKEN};
use prl_hub::{Hub, HubError, HubOptions, Kind};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

fn big() -> Vec<u8> {
    (0..200_000u32).flat_map(u32::to_le_bytes).collect()
}

fn stand_in() -> StandIn {
    let files = || HashMap::from([("data/big.bin".to_string(), big()), ("small".to_string(), b"little".to_vec())]);
    StandIn::start(HashMap::from([("datasets/some-one/rows", files()), ("datasets/gated/rows", files())]))
}

fn hub<'a>(id: &'a str, revision: Option<&'a str>, options: &'a HubOptions) -> Hub<'a> {
    Hub::new(Kind::Dataset, id, revision, options).unwrap()
}

/// Every file below `dir` that could be taken for a whole one.
fn whole(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).into_iter().flatten() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(whole(&path)),
            false if path.extension().is_some_and(|e| e == "part" || e == "lock") => {}
            false => found.push(path),
        }
    }
    found
}

#[test]
fn a_download_that_breaks_off_leaves_nothing_half_written_and_is_gone_on_with() {
    let (stand_in, home) = (stand_in(), TempDir::new().unwrap());
    let options = stand_in.options(home.path());
    let hub = hub("some-one/rows", None, &options);
    let listing = hub.list().unwrap();
    let files = ["data/big.bin".to_string()];
    stand_in.break_off(1000, u32::MAX);
    let error = hub.fetch(&listing, &files).unwrap_err();
    assert!(error.to_string().starts_with("`data/big.bin`: cannot be fetched from http://127.0.0.1"), "{error}");
    // But for what says which files there are.
    let about = |file: &PathBuf| file.ends_with(COMMIT) || file.ends_with(format!("listings/{COMMIT}.json"));
    assert!(whole(home.path()).iter().all(about), "{:?}", whole(home.path()));
    assert!(hub.cached().is_none(), "nothing stands for the revision yet");
    // It breaks off twice more; what is there is not asked for again.
    stand_in.break_off(300_000, 2);
    let dir = hub.fetch(&listing, &files).unwrap();
    assert!(std::fs::read(dir.join("data/big.bin")).unwrap() == big());
    hub.keep(&listing).unwrap();
    assert_eq!((hub.cached().unwrap(), hub.cached_listing().unwrap()), (dir, listing.clone()));
    let requests = stand_in.requests();
    hub.fetch(&listing, &files).unwrap();
    assert_eq!(stand_in.requests(), requests, "what is there is not asked for");
}

#[test]
fn left_over_bytes_of_something_else_are_no_obstacle() {
    let (stand_in, home) = (stand_in(), TempDir::new().unwrap());
    let options = stand_in.options(home.path());
    let hub = hub("some-one/rows", None, &options);
    let listing = hub.list().unwrap();
    stand_in.break_off(10, u32::MAX);
    hub.fetch(&listing, &["data/big.bin".into()]).unwrap_err();
    stand_in.break_off(0, 0);
    let blobs = home.path().join("hub/datasets--some-one--rows/blobs");
    let part = std::fs::read_dir(&blobs).unwrap().map(|e| e.unwrap().path());
    let part = part.into_iter().find(|path| path.extension().is_some_and(|e| e == "part")).unwrap();
    for left_over in [vec![1; big().len() + 1], vec![1; big().len()]] {
        std::fs::write(&part, left_over).unwrap();
        let dir = hub.fetch(&listing, &["data/big.bin".into()]).unwrap();
        assert!(std::fs::read(dir.join("data/big.bin")).unwrap() == big());
        let blob = std::fs::canonicalize(dir.join("data/big.bin")).unwrap();
        std::fs::remove_file(dir.join("data/big.bin")).unwrap();
        std::fs::remove_file(blob).unwrap();
    }
    // A file that is not as long as it was listed is not kept.
    let mut other = listing.clone();
    other.files.insert("small".into(), Some(7));
    let error = hub.fetch(&other, &["small".into()]).unwrap_err().to_string();
    assert!(error.contains("6 bytes came from") && error.contains("not 7; try again"), "{error}");
    assert!(!hub.snapshot(COMMIT).join("small").exists());
    hub.fetch(&listing, &["small".into()]).unwrap();
}

#[test]
fn every_failure_says_what_to_do() {
    let (stand_in, home) = (stand_in(), TempDir::new().unwrap());
    let options = stand_in.options(home.path());
    let listed = |id: &str, revision: Option<&str>, options: &HubOptions| match hub(id, revision, options).list() {
        Err(HubError::Refused(text)) => text,
        other => panic!("{other:?}"),
    };
    let text = listed("some-one/unknown", None, &options);
    assert!(text.starts_with("there is no such file or folder here and no such dataset at http://127.0.0.1"), "{text}");
    let text = listed("some-one/rows", Some("v9"), &options);
    assert!(text.contains("no such dataset with the revision `v9` at"), "{text}");
    assert_eq!(hub("some-one/rows", Some("v1"), &options).list().unwrap().commit, COMMIT);
    let text = listed("gated/rows", None, &options);
    assert!(text.contains("refuses access (401)") && text.ends_with("set HF_TOKEN"), "{text}");
    let wrong = HubOptions { token: Some("hf_wrong".into()), ..options.clone() };
    let text = listed("gated/rows", None, &wrong);
    assert!(text.ends_with("the token given has no access") && !text.contains("hf_wrong"), "{text}");
    // It may be listed, but not read.
    let right = HubOptions { token: Some(TOKEN.into()), ..options.clone() };
    let listing = hub("gated/rows", None, &right).list().unwrap();
    let text = hub("gated/rows", None, &options).fetch(&listing, &["small".into()]).unwrap_err().to_string();
    assert!(text.starts_with("`small`: ") && text.contains("refuses access (403)"), "{text}");

    let silent = HubOptions { endpoint: "http://127.0.0.1:9".into(), ..options.clone() };
    assert!(matches!(hub("some-one/rows", None, &silent).list(), Err(HubError::Silent(_))));
    for (id, revision) in [("rows", None), ("a/b/c", None), ("a/b", Some("../x")), ("a/b", Some(""))] {
        assert!(matches!(Hub::new(Kind::Dataset, id, revision, &options), Err(HubError::Refused(_))), "{id}");
    }
    let nowhere = HubOptions { cache: None, ..options };
    assert!(Hub::new(Kind::Dataset, "a/b", None, &nowhere).err().unwrap().to_string().contains("HF_HOME or HOME"));
}
