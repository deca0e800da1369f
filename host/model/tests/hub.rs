//! Resolving model names against a stand-in of the hub on the loopback interface.

mod common;
#[path = "../../hub/tests/common/mod.rs"]
mod stand_in;

use common::{cpu, folder};
use prl_hub::HubOptions;
use prl_model::{Decoder, resolve};
use stand_in::{COMMIT, StandIn, TOKEN};
use std::collections::HashMap;
use std::net::TcpListener;
use std::path::Path;
use tempfile::TempDir;

fn files(dir: &Path, more: &[&str]) -> HashMap<String, Vec<u8>> {
    let mut out: HashMap<String, Vec<u8>> = std::fs::read_dir(dir)
        .unwrap()
        .map(|e| e.unwrap())
        .map(|e| (e.file_name().into_string().unwrap(), std::fs::read(e.path()).unwrap()))
        .collect();
    out.extend(more.iter().map(|f| (f.to_string(), b"x".to_vec())));
    out
}

fn hub() -> StandIn {
    let sharded = TempDir::new().unwrap();
    let save = prl_model::SaveOptions { max_shard_bytes: 40_000, ..Default::default() };
    common::load("llama").save_hf(sharded.path(), &save).unwrap();
    StandIn::start(HashMap::from([
        ("some-one/tiny.1", files(&folder("qwen3"), &["pytorch_model.bin", "README.md", "tokenizer.json"])),
        ("some-one/sharded", files(sharded.path(), &["consolidated.safetensors"])),
        ("some-one/weightless", HashMap::from([("config.json".to_string(), b"{}".to_vec())])),
        ("gated/tiny", files(&folder("llama"), &[])),
    ]))
}

fn error(name: &str, options: &HubOptions) -> String {
    resolve(name, options).unwrap_err().to_string()
}

#[test]
fn fetches_what_is_needed_once_and_then_works_offline_and_without_the_hub() {
    let (hub, cache) = (hub(), TempDir::new().unwrap());
    let online = hub.options(cache.path());
    let dir = resolve("some-one/tiny.1", &online).unwrap();
    Decoder::load_hf(&dir, &cpu()).unwrap();
    assert!(dir.starts_with(cache.path().join("hub/models--some-one--tiny.1/snapshots").join(COMMIT)));
    assert_eq!(prl_model::name_of(&dir), "some-one/tiny.1");
    assert_eq!(prl_model::name_of(cache.path()), cache.path().display().to_string());
    let mut downloads = hub.downloads();
    downloads.sort();
    assert_eq!(downloads, ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json"]);

    assert_eq!(resolve("some-one/tiny.1", &online).unwrap(), dir);
    assert_eq!(hub.downloads().len(), 4, "nothing is fetched twice");
    let offline = HubOptions { offline: true, ..online.clone() };
    assert_eq!(resolve("some-one/tiny.1", &offline).unwrap(), dir);
    let unreachable = HubOptions { endpoint: "http://127.0.0.1:9".into(), ..online };
    assert_eq!(resolve("some-one/tiny.1", &unreachable).unwrap(), dir);

    let sharded = resolve("some-one/sharded", &hub.options(cache.path())).unwrap();
    Decoder::load_hf(&sharded, &cpu()).unwrap();
    assert!(!hub.downloads().contains(&"consolidated.safetensors".to_string()));
    let shard =
        std::fs::read_dir(&sharded).unwrap().map(|e| e.unwrap().path()).find(|p| p.to_string_lossy().contains("00002"));
    std::fs::remove_file(shard.unwrap()).unwrap();
    assert!(error("some-one/sharded", &offline).contains("not in the cache"));

    // Cut short, a file is as good as none.
    std::fs::write(std::fs::canonicalize(dir.join("model.safetensors")).unwrap(), "cut").unwrap();
    assert!(error("some-one/tiny.1", &offline).contains("not in the cache"));
    Decoder::load_hf(&resolve("some-one/tiny.1", &hub.options(cache.path())).unwrap(), &cpu()).unwrap();
}

#[test]
fn every_failure_says_what_to_do() {
    let (hub, cache) = (hub(), TempDir::new().unwrap());
    let online = hub.options(cache.path());
    let text = error("some-one/unknown", &online);
    assert!(text.contains("model `some-one/unknown`") && text.contains("no such model at http://127.0.0.1"), "{text}");
    let text = error("gated/tiny", &online);
    assert!(text.contains("(401)") && text.contains("set HF_TOKEN"), "{text}");
    let wrong = HubOptions { token: Some("hf_wrong".into()), ..online.clone() };
    let text = error("gated/tiny", &wrong);
    assert!(text.contains("the token given has no access") && !text.contains("hf_wrong"), "{text}");
    assert!(!format!("{wrong:?}").contains("hf_wrong"));
    let right = HubOptions { token: Some(TOKEN.into()), ..online.clone() };
    Decoder::load_hf(&resolve("gated/tiny", &right).unwrap(), &cpu()).unwrap();
    assert!(error("some-one/weightless", &online).contains("no safetensors weights"));

    let offline = HubOptions { offline: true, ..online.clone() };
    let text = error("some-one/tiny.1", &offline);
    assert!(text.contains("HF_HUB_OFFLINE is set") && text.contains("not in the cache"), "{text}");
    let unreachable = HubOptions { endpoint: "http://127.0.0.1:9".into(), ..online.clone() };
    let text = error("some-one/tiny.1", &unreachable);
    assert!(text.contains("the hub at http://127.0.0.1:9 does not answer"), "{text}");
    // It accepts and says nothing.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", silent.local_addr().unwrap());
    let patience = std::time::Duration::from_millis(200);
    let text = error("some-one/tiny.1", &HubOptions { endpoint, patience, ..online.clone() });
    assert!(text.contains("does not answer") && text.contains("there is no such folder here"), "{text}");

    for name in ["no-such-folder", "./no/such", "a/b/c", "/no/such", "a/", "../x", "a b/c", ""] {
        let text = error(name, &online);
        assert!(text.contains("there is no such folder, and a hub id looks like `owner/name`"), "{name}: {text}");
    }
    assert!(error(&format!("{}/config.json", folder("llama").display()), &online).contains("is a file"));
    assert_eq!(resolve(folder("llama").to_str().unwrap(), &online).unwrap(), folder("llama"));
}
