//! A stand-in of the hub on the loopback interface, for the tests of every crate that asks it.
#![allow(dead_code)] // each test file uses its part

use prl_hub::HubOptions;
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};

/// The commit that everything is at.
pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
/// What opens what is gated.
pub const TOKEN: &str = "hf_secret";

/// Name and content of the files of each repository, by its path: `owner/model`, `datasets/owner/dataset`. Those of owner
/// `gated` need the token.
pub type Repos = HashMap<&'static str, HashMap<String, Vec<u8>>>;

/// Speaks as much of the hub's API as a download needs: `/api/{models,datasets}/<id>/revision/<rev>` and ranged
/// `/<path>/resolve/<rev>/<file>`.
pub struct StandIn {
    pub endpoint: String,
    state: Arc<State>,
}

struct State {
    repos: Repos,
    requests: Mutex<Vec<String>>,
    broken: Mutex<Option<(usize, u32)>>,
}

impl StandIn {
    pub fn start(repos: Repos) -> StandIn {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let state = Arc::new(State { repos, requests: Mutex::default(), broken: Mutex::default() });
        let of_thread = state.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let state = of_thread.clone();
                std::thread::spawn(move || serve(stream, &state));
            }
        });
        StandIn { endpoint, state }
    }

    /// The next downloads break off after so many bytes, that many times.
    pub fn break_off(&self, after: usize, times: u32) {
        *self.state.broken.lock().unwrap() = Some((after, times));
    }

    /// Files that were downloaded, in order; parts of one in a row count once.
    pub fn downloads(&self) -> Vec<String> {
        let mut all = self.state.requests.lock().unwrap().clone();
        all.retain(|request| request.contains("/resolve/"));
        all.iter_mut().for_each(|request| *request = request.rsplit('/').next().unwrap().to_string());
        all.dedup();
        all
    }

    /// Requests so far.
    pub fn requests(&self) -> usize {
        self.state.requests.lock().unwrap().len()
    }

    /// Options for it, with a cache below `home`.
    pub fn options(&self, home: &Path) -> HubOptions {
        let (home, endpoint) = (home.display().to_string(), format!("{}/", self.endpoint));
        HubOptions::from_vars(|name| match name {
            "HF_HOME" => Some(home.clone()),
            "HF_ENDPOINT" => Some(endpoint.clone()),
            _ => None,
        })
    }
}

fn serve(stream: TcpStream, state: &State) {
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
        let path = line.split(' ').nth(1).unwrap().split('?').next().unwrap().to_string();
        state.requests.lock().unwrap().push(path.clone());
        let mut answer = respond(&path, &headers, &state.repos);
        let broken = path.contains("/resolve/") && headers.get("range").is_some_and(|range| range != "bytes=0-0");
        let cut = match &mut *state.broken.lock().unwrap() {
            Some((after, times)) if broken && *times > 0 => {
                *times -= 1;
                Some(*after)
            }
            _ => None,
        };
        if let Some(after) = cut {
            let head = answer.windows(4).position(|w| w == b"\r\n\r\n").unwrap() + 4;
            answer.truncate(head + after);
        }
        if out.write_all(&answer).is_err() || cut.is_some() {
            return;
        }
    }
}

fn respond(path: &str, headers: &HashMap<String, String>, repos: &Repos) -> Vec<u8> {
    let status = |code: u16| format!("HTTP/1.1 {code} X\r\ncontent-length: 0\r\n\r\n").into_bytes();
    let gated = |id: &str| id.trim_start_matches("datasets/").starts_with("gated/");
    let allowed = |id: &str| !gated(id) || headers.get("authorization") == Some(&format!("Bearer {TOKEN}"));
    if let Some((id, revision)) = path.strip_prefix("/api/").and_then(|p| p.split_once("/revision/")) {
        let id = id.strip_prefix("models/").unwrap_or(id);
        let known = ["main", "v1", COMMIT].contains(&revision);
        let Some(files) = repos.get(id).filter(|_| known) else { return status(404) };
        if !allowed(id) {
            return status(401);
        }
        let sibling = |(name, bytes): (&String, &Vec<u8>)| serde_json::json!({"rfilename": name, "size": bytes.len()});
        let siblings: Vec<_> = files.iter().map(sibling).collect();
        let body = serde_json::json!({ "siblings": siblings, "sha": COMMIT }).to_string();
        return format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len()).into_bytes();
    }
    let Some((id, rest)) = path[1..].split_once("/resolve/") else { return status(400) };
    let file = rest.split_once('/').map(|(_, f)| f);
    let Some(bytes) = repos.get(id).and_then(|files| files.get(file?)) else { return status(404) };
    if !allowed(id) {
        return status(403);
    }
    let range = headers.get("range").unwrap().trim_start_matches("bytes=");
    let (start, end) = range.split_once('-').unwrap();
    let start: usize = start.parse().unwrap();
    if start >= bytes.len() {
        return status(416);
    }
    let end = end.parse().unwrap_or(bytes.len() - 1).min(bytes.len() - 1);
    let part = &bytes[start..=end];
    let mut out = format!(
        "HTTP/1.1 206 Partial Content\r\ncontent-length: {}\r\ncontent-range: bytes {start}-{end}/{}\r\n\
         etag: \"{:x}-{}\"\r\nx-repo-commit: {COMMIT}\r\n\r\n",
        part.len(),
        bytes.len(),
        bytes.iter().fold(0u64, |h, b| h.wrapping_mul(31).wrapping_add(u64::from(*b))),
        file.unwrap_or("").replace(['.', '-', '/'], "_"),
    )
    .into_bytes();
    out.extend_from_slice(part);
    out
}
