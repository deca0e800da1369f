//! Resolving model names against a stand-in of the hub on the loopback interface.

mod common;

use common::{cpu, folder};
use prl_model::{Decoder, HubOptions, resolve};
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use tempfile::TempDir;

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
const TOKEN: &str = "hf_secret";

/// Speaks as much of the hub's API as a download needs: `/api/models/<id>/revision/<rev>` and ranged
/// `/<id>/resolve/<rev>/<file>`.
struct Hub {
    endpoint: String,
    requests: Arc<Mutex<Vec<String>>>,
}

type Models = HashMap<&'static str, HashMap<String, Vec<u8>>>;

impl Hub {
    fn start(models: Models) -> Hub {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (log, models) = (requests.clone(), Arc::new(models));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (log, models) = (log.clone(), models.clone());
                std::thread::spawn(move || serve(stream, &models, &log));
            }
        });
        Hub { endpoint, requests }
    }

    fn downloads(&self) -> Vec<String> {
        let mut all = self.requests.lock().unwrap().clone();
        all.retain(|r| r.contains("/resolve/"));
        all.iter_mut().for_each(|r| *r = r.rsplit('/').next().unwrap().to_string());
        all.dedup();
        all
    }
}

fn serve(stream: TcpStream, models: &Models, log: &Mutex<Vec<String>>) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut out = stream;
    loop {
        let (mut line, mut headers) = (String::new(), HashMap::new());
        if reader.read_line(&mut line).unwrap_or(0) == 0 {
            return;
        }
        loop {
            let mut header = String::new();
            if reader.read_line(&mut header).unwrap_or(0) == 0 || header.trim().is_empty() {
                break;
            }
            let (name, value) = header.split_once(':').unwrap();
            headers.insert(name.to_lowercase(), value.trim().to_string());
        }
        let path = line.split(' ').nth(1).unwrap().to_string();
        log.lock().unwrap().push(path.clone());
        let answer = respond(&path, &headers, models);
        if out.write_all(&answer).is_err() {
            return;
        }
    }
}

fn respond(path: &str, headers: &HashMap<String, String>, models: &Models) -> Vec<u8> {
    let status = |code: u16| format!("HTTP/1.1 {code} X\r\ncontent-length: 0\r\n\r\n").into_bytes();
    let allowed =
        |id: &str| !id.starts_with("gated/") || headers.get("authorization") == Some(&format!("Bearer {TOKEN}"));
    if let Some((id, _)) = path.strip_prefix("/api/models/").and_then(|p| p.split_once("/revision/")) {
        let Some(files) = models.get(id) else { return status(404) };
        if !allowed(id) {
            return status(401);
        }
        let siblings: Vec<_> = files.keys().map(|f| serde_json::json!({ "rfilename": f })).collect();
        let body = serde_json::json!({ "siblings": siblings, "sha": COMMIT }).to_string();
        return format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len()).into_bytes();
    }
    let Some((id, rest)) = path[1..].split_once("/resolve/") else { return status(400) };
    let file = rest.split_once('/').map(|(_, f)| f);
    let Some(bytes) = models.get(id).and_then(|m| m.get(file?)) else { return status(404) };
    if !allowed(id) {
        return status(403);
    }
    let range = headers.get("range").unwrap().trim_start_matches("bytes=");
    let (start, end) = range.split_once('-').unwrap();
    let start: usize = start.parse().unwrap();
    let end = end.parse().unwrap_or(bytes.len() - 1).min(bytes.len() - 1);
    let part = &bytes[start..=end];
    let mut out = format!(
        "HTTP/1.1 206 Partial Content\r\ncontent-length: {}\r\ncontent-range: bytes {start}-{end}/{}\r\n\
         etag: \"{:x}-{}\"\r\nx-repo-commit: {COMMIT}\r\n\r\n",
        part.len(),
        bytes.len(),
        bytes.iter().fold(0u64, |h, b| h.wrapping_mul(31).wrapping_add(u64::from(*b))),
        file.unwrap_or("").replace(['.', '-'], "_"),
    )
    .into_bytes();
    out.extend_from_slice(part);
    out
}

fn files(dir: &Path, more: &[&str]) -> HashMap<String, Vec<u8>> {
    let mut out: HashMap<String, Vec<u8>> = std::fs::read_dir(dir)
        .unwrap()
        .map(|e| e.unwrap())
        .map(|e| (e.file_name().into_string().unwrap(), std::fs::read(e.path()).unwrap()))
        .collect();
    out.extend(more.iter().map(|f| (f.to_string(), b"x".to_vec())));
    out
}

fn options(hub: &Hub, cache: &Path) -> HubOptions {
    let (home, endpoint) = (cache.display().to_string(), format!("{}/", hub.endpoint));
    HubOptions::from_vars(|name| match name {
        "HF_HOME" => Some(home.clone()),
        "HF_ENDPOINT" => Some(endpoint.clone()),
        _ => None,
    })
}

fn hub() -> Hub {
    let sharded = TempDir::new().unwrap();
    let save = prl_model::SaveOptions { max_shard_bytes: 40_000, ..Default::default() };
    common::load("llama").save_hf(sharded.path(), &save).unwrap();
    Hub::start(HashMap::from([
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
    let online = options(&hub, cache.path());
    let dir = resolve("some-one/tiny.1", &online).unwrap();
    Decoder::load_hf(&dir, &cpu()).unwrap();
    assert!(dir.starts_with(cache.path().join("hub/models--some-one--tiny.1/snapshots").join(COMMIT)));
    let mut downloads = hub.downloads();
    downloads.sort();
    assert_eq!(downloads, ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json"]);

    assert_eq!(resolve("some-one/tiny.1", &online).unwrap(), dir);
    assert_eq!(hub.downloads().len(), 4, "nothing is fetched twice");
    let offline = HubOptions { offline: true, ..online.clone() };
    assert_eq!(resolve("some-one/tiny.1", &offline).unwrap(), dir);
    let unreachable = HubOptions { endpoint: "http://127.0.0.1:9".into(), ..online };
    assert_eq!(resolve("some-one/tiny.1", &unreachable).unwrap(), dir);

    let sharded = resolve("some-one/sharded", &options(&hub, cache.path())).unwrap();
    Decoder::load_hf(&sharded, &cpu()).unwrap();
    assert!(!hub.downloads().contains(&"consolidated.safetensors".to_string()));
    let shard =
        std::fs::read_dir(&sharded).unwrap().map(|e| e.unwrap().path()).find(|p| p.to_string_lossy().contains("00002"));
    std::fs::remove_file(shard.unwrap()).unwrap();
    assert!(error("some-one/sharded", &offline).contains("not in the cache"));
}

#[test]
fn every_failure_says_what_to_do() {
    let (hub, cache) = (hub(), TempDir::new().unwrap());
    let online = options(&hub, cache.path());
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

#[test]
fn the_environment_means_what_it_means_in_python() {
    let vars = |pairs: &'static [(&str, &str)]| {
        HubOptions::from_vars(move |name| pairs.iter().find(|(n, _)| *n == name).map(|(_, v)| v.to_string()))
    };
    let o = vars(&[("HOME", "/h")]);
    assert_eq!((o.cache.unwrap(), o.endpoint.as_str()), ("/h/.cache/huggingface/hub".into(), "https://huggingface.co"));
    assert!(!o.offline && o.token.is_none());
    let o = vars(&[("HOME", "/h"), ("XDG_CACHE_HOME", "/x"), ("HF_HUB_OFFLINE", "1"), ("HF_TOKEN", " t ")]);
    assert_eq!((o.cache.unwrap(), o.token.unwrap(), o.offline), ("/x/huggingface/hub".into(), "t".into(), true));
    let o = vars(&[("HF_HOME", "/f"), ("HF_HUB_CACHE", "/c"), ("HF_HUB_OFFLINE", "0"), ("HF_ENDPOINT", "http://m/")]);
    assert_eq!((o.cache.unwrap(), o.endpoint.as_str(), o.offline), ("/c".into(), "http://m", false));
    assert!(vars(&[]).cache.is_none());
    let home = TempDir::new().unwrap();
    std::fs::write(home.path().join("token"), "stored\n").unwrap();
    let path = home.path().display().to_string();
    assert_eq!(HubOptions::from_vars(|n| (n == "HF_HOME").then(|| path.clone())).token.unwrap(), "stored");
}
