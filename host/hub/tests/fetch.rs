//! Files of a repository in the cache: whole or not there, asked for once.

mod common;

use common::{COMMIT, RENAMED, StandIn, TOKEN};
use prl_hub::{Cached, Hub, HubError, HubOptions, Kind, Listed, Listing};
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Another commit with the same content.
const NEXT: &str = "89abcdef0123456789abcdef0123456789abcdef";
/// Names that are no addresses as they are.
const ODD: [&str; 4] = ["data/a b.jsonl", "data/50% of #1?.jsonl", "data/%20.jsonl", "größe/日本.jsonl"];

fn big() -> Vec<u8> {
    (0..200_000u32).flat_map(u32::to_le_bytes).collect()
}

fn stand_in() -> StandIn {
    let files = || {
        let mut files = HashMap::from([
            ("data/big.bin".to_string(), big()),
            ("small".to_string(), b"little".to_vec()),
            ("empty".to_string(), Vec::new()),
            ("../../outside".to_string(), b"x".to_vec()),
            ("/tmp/outside".to_string(), b"x".to_vec()),
            ("a/../../b".to_string(), b"x".to_vec()),
            ("a\0b".to_string(), b"x".to_vec()),
        ]);
        files.extend(ODD.iter().map(|name| (name.to_string(), name.as_bytes().to_vec())));
        files
    };
    StandIn::start(HashMap::from([("datasets/some-one/rows", files()), ("datasets/gated/rows", files())]))
}

fn hub<'a>(id: &'a str, revision: Option<&'a str>, options: &'a HubOptions) -> Hub<'a> {
    Hub::new(Kind::Dataset, id, revision, options).unwrap()
}

const LINKED: Option<fn(&[u8]) -> String> = Some(sha256);

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Every file below `dir` that could be taken for a whole one.
fn whole(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).into_iter().flatten() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(whole(&path)),
            false if path.extension().is_some_and(|e| e == "incomplete" || e == "lock") => {}
            false => found.push(path),
        }
    }
    found
}

fn blobs(home: &Path) -> PathBuf {
    home.join("hub/datasets--some-one--rows/blobs")
}

/// The one file that a download goes on in.
fn part(home: &Path) -> PathBuf {
    let all = std::fs::read_dir(blobs(home)).unwrap().map(|entry| entry.unwrap().path());
    let mut parts: Vec<PathBuf> = all.filter(|path| path.extension().is_some_and(|e| e == "incomplete")).collect();
    assert_eq!(parts.len(), 1, "{parts:?}");
    parts.remove(0)
}

fn one(file: &str) -> Vec<String> {
    vec![file.to_owned()]
}

#[test]
fn a_download_that_breaks_off_leaves_nothing_half_written_and_is_gone_on_with() {
    let (stand_in, home) = (stand_in(), TempDir::new().unwrap());
    let options = stand_in.options(home.path());
    let hub = hub("some-one/rows", None, &options);
    let listing = hub.list().unwrap();
    stand_in.break_off(1000, u32::MAX);
    let error = hub.fetch(&listing, &one("data/big.bin")).unwrap_err().to_string();
    assert!(error.starts_with("`data/big.bin`: cannot be fetched from http://127.0.0.1"), "{error}");
    assert!(error.contains("broke off after 5000 bytes"), "each attempt goes on: {error}");
    // But for what says which files there are.
    let about = |file: &PathBuf| file.ends_with(COMMIT) || file.ends_with(format!("listings/{COMMIT}.json"));
    assert!(whole(home.path()).iter().all(about), "{:?}", whole(home.path()));
    assert!(hub.cached().is_none(), "nothing stands for the revision yet");
    // It breaks off twice more; what is there is not asked for again.
    let before = stand_in.requests();
    stand_in.break_off(300_000, 2);
    let dir = hub.fetch(&listing, &one("data/big.bin")).unwrap();
    assert!(std::fs::read(dir.join("data/big.bin")).unwrap() == big());
    let ranges: Vec<_> = stand_in.asked().split_off(before).into_iter().filter_map(|asked| asked.range).collect();
    assert_eq!(ranges, ["bytes=5000-", "bytes=305000-", "bytes=605000-"]);
    hub.keep(&listing).unwrap();
    let cached = hub.cached().unwrap();
    assert!(cached.has("data/big.bin") && !cached.has("small"));
    assert_eq!((cached.dir, cached.listing.unwrap(), cached.commit.as_str()), (dir, listing.clone(), COMMIT));
    let requests = stand_in.requests();
    hub.fetch(&listing, &one("data/big.bin")).unwrap();
    assert_eq!(stand_in.requests(), requests, "what is there is not asked for");
}

/// Everything is where the Python library looks for it.
#[test]
fn the_cache_is_that_of_the_python_library() {
    let (stand_in, home) = (stand_in(), TempDir::new().unwrap());
    let options = stand_in.options(home.path());
    let hub = hub("some-one/rows", None, &options);
    let listing = hub.list().unwrap();
    stand_in.odd(|odd| odd.linked = LINKED);
    hub.fetch(&listing, &one("data/big.bin")).unwrap();
    hub.keep(&listing).unwrap();
    let repo = home.path().join("hub/datasets--some-one--rows");
    assert_eq!(std::fs::read_to_string(repo.join("refs/main")).unwrap(), COMMIT);
    let pointer = repo.join("snapshots").join(COMMIT).join("data/big.bin");
    let blob = sha256(&big());
    assert_eq!(std::fs::read_link(pointer).unwrap(), Path::new("../../../blobs").join(&blob));
    assert!(std::fs::read(repo.join("blobs").join(blob)).unwrap() == big());
    let of_model = Hub::new(Kind::Model, "some-one/rows", None, &options).unwrap().snapshot(COMMIT);
    assert_eq!(of_model, home.path().join("hub/models--some-one--rows/snapshots").join(COMMIT));
}

#[test]
fn left_over_bytes_of_something_else_are_no_obstacle() {
    let (stand_in, home) = (stand_in(), TempDir::new().unwrap());
    let options = stand_in.options(home.path());
    let hub = hub("some-one/rows", None, &options);
    let listing = hub.list().unwrap();
    for linked in [None, Some(sha256 as fn(&[u8]) -> String)] {
        stand_in.odd(|odd| (odd.linked, odd.broken) = (linked, (10, u32::MAX)));
        hub.fetch(&listing, &one("data/big.bin")).unwrap_err();
        stand_in.break_off(0, 0);
        let part = part(home.path());
        let mut left_overs = vec![vec![1; big().len() + 1], vec![1; big().len()]];
        // Only a sum tells them.
        left_overs.extend(linked.map(|_| vec![1; big().len() / 2]));
        for left_over in left_overs {
            std::fs::write(&part, left_over).unwrap();
            let dir = hub.fetch(&listing, &one("data/big.bin")).unwrap();
            assert!(std::fs::read(dir.join("data/big.bin")).unwrap() == big());
            std::fs::remove_file(std::fs::canonicalize(dir.join("data/big.bin")).unwrap()).unwrap();
            std::fs::remove_file(dir.join("data/big.bin")).unwrap();
        }
    }
    // Nor is a server that does not know ranges.
    stand_in.odd(|odd| (odd.linked, odd.broken, odd.whole) = (None, (300_000, 1), true));
    let dir = hub.fetch(&listing, &one("data/big.bin")).unwrap();
    assert!(std::fs::read(dir.join("data/big.bin")).unwrap() == big());
}

#[test]
fn what_is_short_or_spoiled_is_not_accepted_wherever_it_is_found() {
    let (stand_in, home) = (stand_in(), TempDir::new().unwrap());
    let options = stand_in.options(home.path());
    let hub = hub("some-one/rows", None, &options);
    let listing = hub.list().unwrap();
    // A file that is not as long as it was listed is not kept.
    let mut other = listing.clone();
    other.files.insert("small".into(), Some(7));
    let error = hub.fetch(&other, &one("small")).unwrap_err().to_string();
    assert!(error.contains("the hub has 6 bytes of it, and lists 7; try again"), "{error}");
    assert!(!hub.snapshot(COMMIT).join("small").exists());
    // One that has other bytes than its name says, neither.
    stand_in.odd(|odd| (odd.linked, odd.spoiled) = (LINKED, u32::MAX));
    let error = hub.fetch(&listing, &one("data/big.bin")).unwrap_err().to_string();
    assert!(error.contains("do not have the SHA-256") && error.ends_with("try again"), "{error}");
    assert!(!hub.snapshot(COMMIT).join("data/big.bin").exists());
    stand_in.odd(|odd| odd.spoiled = 0);
    let dir = hub.fetch(&listing, &one("data/big.bin")).unwrap();
    hub.keep(&listing).unwrap();
    // Cut short where it lies, it is fetched again, and does not do where nobody may be asked.
    let blob = std::fs::canonicalize(dir.join("data/big.bin")).unwrap();
    std::fs::write(&blob, b"cut").unwrap();
    assert!(!hub.cached().unwrap().has("data/big.bin"));
    hub.fetch(&listing, &one("data/big.bin")).unwrap();
    assert!(std::fs::read(dir.join("data/big.bin")).unwrap() == big());
    // The same where only the blob is there.
    std::fs::write(&blob, b"cut").unwrap();
    std::fs::remove_file(dir.join("data/big.bin")).unwrap();
    hub.fetch(&listing, &one("data/big.bin")).unwrap();
    assert!(std::fs::read(dir.join("data/big.bin")).unwrap() == big());
}

#[test]
fn the_token_is_for_the_hub_alone() {
    let (stand_in, home) = (stand_in(), TempDir::new().unwrap());
    let options = HubOptions { token: Some(TOKEN.into()), ..stand_in.options(home.path()) };
    stand_in.odd(|odd| odd.linked = LINKED);
    let (gated, renamed) = (hub("gated/rows", None, &options), hub(RENAMED.0, None, &options));
    for hub in [gated, renamed] {
        let listing = hub.list().unwrap();
        let dir = hub.fetch(&listing, &one("data/big.bin")).unwrap();
        assert!(std::fs::read(dir.join("data/big.bin")).unwrap() == big());
    }
    let asked = stand_in.asked();
    assert_eq!(asked.iter().filter(|asked| asked.elsewhere).count(), 2);
    for asked in asked {
        assert_eq!(asked.token, !asked.elsewhere, "{} {}", asked.method, asked.path);
    }
}

#[test]
fn content_that_is_there_is_not_fetched_for_another_commit() {
    let (stand_in, home) = (stand_in(), TempDir::new().unwrap());
    let options = stand_in.options(home.path());
    let hub = hub("some-one/rows", None, &options);
    hub.fetch(&hub.list().unwrap(), &one("data/big.bin")).unwrap();
    stand_in.odd(|odd| odd.commit = NEXT.into());
    let listing = hub.list().unwrap();
    assert_eq!(listing.commit, NEXT);
    let dir = hub.fetch(&listing, &one("data/big.bin")).unwrap();
    assert!(dir.ends_with(NEXT) && std::fs::read(dir.join("data/big.bin")).unwrap() == big());
    assert_eq!(stand_in.asked().iter().filter(|a| a.method == "GET" && a.path.contains("/resolve/")).count(), 1);
    assert_eq!(std::fs::read_dir(blobs(home.path())).unwrap().count(), 1);
}

#[test]
fn what_fails_in_passing_is_asked_for_again() {
    let (stand_in, home) = (stand_in(), TempDir::new().unwrap());
    let options = stand_in.options(home.path());
    let hub = hub("some-one/rows", None, &options);
    for (status, header) in [(503, ""), (500, ""), (429, "retry-after: 0")] {
        stand_in.odd(|odd| odd.refused = ("/api/", status, header, 2));
        let listing = hub.list().unwrap();
        stand_in.odd(|odd| odd.refused = ("/resolve/", status, header, 3));
        let dir = hub.fetch(&listing, &one("small")).unwrap();
        std::fs::remove_file(dir.join("small")).unwrap();
    }
    let listing = hub.list().unwrap();
    stand_in.odd(|odd| odd.refused = ("/resolve/", 502, "", u32::MAX));
    let before = stand_in.requests();
    let error = hub.fetch(&listing, &one("small")).unwrap_err().to_string();
    assert!(error.starts_with("`small`: cannot be fetched from") && error.ends_with(": status 502"), "{error}");
    assert_eq!(stand_in.requests() - before, 5, "a few times");
    // Who asks for an hour is not waited for, and what was fetched before may do.
    stand_in.odd(|odd| odd.refused = ("/api/", 429, "retry-after: 3600", u32::MAX));
    let before = stand_in.requests();
    let Err(HubError::Silent(text)) = hub.list() else { panic!("a listing") };
    assert!(text.contains("does not answer: status 429, and wants no question for 3600 s"), "{text}");
    assert_eq!(stand_in.requests() - before, 1);
}

#[test]
fn several_at_once_all_have_it() {
    let (stand_in, home) = (stand_in(), TempDir::new().unwrap());
    stand_in.odd(|odd| (odd.linked, odd.broken) = (LINKED, (200_000, 6)));
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                let options = stand_in.options(home.path());
                let hub = hub("some-one/rows", None, &options);
                let listing = hub.list().unwrap();
                let dir = hub.fetch(&listing, &[ODD[0].into(), "data/big.bin".into()]).unwrap();
                hub.keep(&listing).unwrap();
                assert!(std::fs::read(dir.join("data/big.bin")).unwrap() == big());
            });
        }
    });
    // Another process holds the lock, as the Python library does, and never ends.
    let lock = home.path().join(format!("hub/.locks/datasets--some-one--rows/{}.lock", sha256(b"little")));
    let lock = std::fs::File::create(lock).unwrap();
    lock.lock().unwrap();
    let options = stand_in.options(home.path());
    let hub = hub("some-one/rows", None, &options);
    hub.fetch(&hub.list().unwrap(), &one("small")).unwrap();
    let mut names: Vec<_> =
        std::fs::read_dir(blobs(home.path())).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    let mut want = [sha256(&big()), sha256(b"little"), sha256(ODD[0].as_bytes())];
    want.sort();
    assert_eq!(names, want, "nothing is left over");
}

#[test]
fn a_full_disk_ends_it_at_once() {
    let (stand_in, home) = (stand_in(), TempDir::new().unwrap());
    let options = stand_in.options(home.path());
    let hub = hub("some-one/rows", None, &options);
    let listing = hub.list().unwrap();
    stand_in.break_off(10, u32::MAX);
    hub.fetch(&listing, &one("data/big.bin")).unwrap_err();
    stand_in.break_off(0, 0);
    let part = part(home.path());
    std::fs::remove_file(&part).unwrap();
    // What is written there has no room.
    std::os::unix::fs::symlink("/dev/full", &part).unwrap();
    let before = stand_in.requests();
    let error = hub.fetch(&listing, &one("data/big.bin")).unwrap_err().to_string();
    assert!(
        error.starts_with("`data/big.bin`: the cache `") && error.contains("cannot be written: No space"),
        "{error}"
    );
    assert!(error.ends_with("make room there, or name another place (HF_HOME)"), "{error}");
    assert_eq!(stand_in.requests() - before, 2, "it is not tried again");
}

#[test]
fn names_are_taken_as_they_are_and_stay_inside() {
    let (stand_in, home) = (stand_in(), TempDir::new().unwrap());
    let options = stand_in.options(home.path());
    let hub = hub("some-one/rows", Some("pr/2"), &options);
    let listing = hub.list().unwrap();
    let mut wanted: Vec<String> = ODD.iter().map(|name| name.to_string()).collect();
    wanted.push("empty".into());
    let dir = hub.fetch(&listing, &wanted).unwrap();
    for name in ODD {
        assert_eq!(std::fs::read(dir.join(name)).unwrap(), name.as_bytes());
    }
    assert_eq!(std::fs::read(dir.join("empty")).unwrap(), b"");
    hub.keep(&listing).unwrap();
    assert!(wanted.iter().all(|name| hub.cached().unwrap().has(name)));
    // What the hub lists outside is not there, and asking for it does not help.
    assert!(listing.files.keys().all(|name| !name.contains('\0') && !name.contains("outside") && name != "a/../../b"));
    for name in ["../../outside", "/tmp/outside", "a/../../b", "a\0b", ""] {
        let mut lying: Listing = listing.clone();
        lying.files.insert(name.into(), Some(1));
        let before = stand_in.requests();
        let error = hub.fetch(&lying, &one(name)).unwrap_err().to_string();
        assert!(error.contains("is no file inside of a dataset"), "{error}");
        assert_eq!(stand_in.requests(), before);
    }
}

#[test]
fn the_cache_stands_in_where_the_hub_is_not_asked_or_does_not_answer() {
    let (stand_in, home) = (stand_in(), TempDir::new().unwrap());
    let options = stand_in.options(home.path());
    let offline = HubOptions { offline: true, ..options.clone() };
    let away = HubOptions { endpoint: "http://127.0.0.1:9".into(), ..options.clone() };
    let small = |options: &HubOptions| {
        let hub = hub("some-one/rows", None, options);
        let cached = |cached: Cached| Ok(Some(cached.dir).filter(|dir| dir.join("small").exists()));
        match hub.list_or(|| hub.cached().map_or(Ok(None), cached)) {
            Ok(Listed::Here(_)) => "asked".to_owned(),
            Ok(Listed::Cached(_)) => "cached".to_owned(),
            Err(HubError::Refused(text) | HubError::Silent(text)) => text,
        }
    };
    assert!(small(&offline).contains("HF_HUB_OFFLINE is set, and the dataset is not in the cache `"));
    let text = small(&away);
    assert!(
        text.contains("and the hub at http://127.0.0.1:9 does not answer") && text.contains("HF_ENDPOINT"),
        "{text}"
    );
    assert_eq!(small(&options), "asked");
    let hub = hub("some-one/rows", None, &options);
    let listing = hub.list().unwrap();
    hub.fetch(&listing, &one("small")).unwrap();
    hub.keep(&listing).unwrap();
    let before = stand_in.requests();
    assert_eq!((small(&offline), small(&away)), ("cached".into(), "cached".into()));
    assert_eq!(stand_in.requests(), before);
    // A hub in trouble is as good as none.
    stand_in.odd(|odd| odd.refused = ("/api/", 500, "", u32::MAX));
    assert_eq!(small(&options), "cached");
    let refused = hub.list_or(|| Err::<Option<()>, _>("what is there is odd".into())).err().unwrap();
    assert_eq!(refused.to_string(), "what is there is odd");
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
    let broken = HubOptions { token: Some("hf\nwrong".into()), ..options.clone() };
    assert!(listed("gated/rows", None, &broken).starts_with("HF_TOKEN, or the file of the token, has a"));
    let broken = HubOptions { token: Some("hf_schlüssel".into()), ..options.clone() };
    assert!(listed("gated/rows", None, &broken).contains("or a letter that no token has"));
    let nowhere = HubOptions { endpoint: "hub.example".into(), ..options.clone() };
    assert!(listed("gated/rows", None, &nowhere).contains("HF_ENDPOINT is `hub.example`, which is no address"));
    // It may be listed, but not read.
    let right = HubOptions { token: Some(TOKEN.into()), ..options.clone() };
    let listing = hub("gated/rows", None, &right).list().unwrap();
    let text = hub("gated/rows", None, &options).fetch(&listing, &one("small")).unwrap_err().to_string();
    assert!(text.starts_with("`small`: ") && text.contains("refuses access (403)"), "{text}");

    let silent = HubOptions { endpoint: "http://127.0.0.1:9".into(), ..options.clone() };
    assert!(matches!(hub("some-one/rows", None, &silent).list(), Err(HubError::Silent(_))));
    for (id, revision) in [("rows", None), ("a/b/c", None), ("a/b", Some("../x")), ("a/b", Some(""))] {
        assert!(matches!(Hub::new(Kind::Dataset, id, revision, &options), Err(HubError::Refused(_))), "{id}");
    }
    let nowhere = HubOptions { cache: None, ..options };
    assert!(Hub::new(Kind::Dataset, "a/b", None, &nowhere).err().unwrap().to_string().contains("HF_HOME or HOME"));
}
