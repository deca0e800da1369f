//! A stand-in of the hub on the loopback interface, for the tests of every crate that asks it.
#![allow(dead_code)] // each test file uses its part

use prl_hub::HubOptions;
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The commit that everything is at.
pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
/// What opens what is gated.
pub const TOKEN: &str = "hf_secret";
/// Another name of `gated/rows`.
pub const RENAMED: (&str, &str) = ("gated/old-rows", "gated/rows");

/// Name and content of the files of each repository, by its path: `owner/model`, `datasets/owner/dataset`. Those of owner
/// `gated` need the token.
pub type Repos = HashMap<&'static str, HashMap<String, Vec<u8>>>;

/// Speaks as much of the hub's API as a download needs: `/api/{models,datasets}/<id>/revision/<rev>` and ranged
/// `/<path>/resolve/<rev>/<file>`, to which a second server belongs that big files may be kept at.
pub struct StandIn {
    pub endpoint: String,
    state: Arc<State>,
}

struct State {
    repos: Repos,
    elsewhere: String,
    asked: Mutex<Vec<Asked>>,
    odd: Mutex<Odd>,
}

/// A request.
#[derive(Clone)]
pub struct Asked {
    pub method: String,
    /// Without what stands for characters that an address cannot have.
    pub path: String,
    /// At the second server.
    pub elsewhere: bool,
    pub token: bool,
    pub range: Option<String>,
}

impl Asked {
    fn is_download(&self) -> bool {
        self.method == "GET" && self.path.contains("/resolve/")
    }
}

/// What is out of the ordinary.
pub struct Odd {
    /// The commit of the main branch.
    pub commit: String,
    /// The next downloads break off after so many bytes, that many times.
    pub broken: (usize, u32),
    /// The next answers about this (a part of the path) are this status and header, that many times.
    pub refused: (&'static str, u16, &'static str, u32),
    /// Names content, which is then kept elsewhere.
    pub linked: Option<fn(&[u8]) -> String>,
    /// The next downloads have another byte in the middle, that many times.
    pub spoiled: u32,
    /// Ranges are not listened to.
    pub whole: bool,
}

impl StandIn {
    pub fn start(repos: Repos) -> StandIn {
        let listen = || {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let endpoint = format!("http://{}", listener.local_addr().unwrap());
            (listener, endpoint)
        };
        let ((hub, endpoint), (other, elsewhere)) = (listen(), listen());
        let odd = Odd {
            commit: COMMIT.into(),
            broken: (0, 0),
            refused: ("", 0, "", 0),
            linked: None,
            spoiled: 0,
            whole: false,
        };
        let state = Arc::new(State { repos, elsewhere, asked: Mutex::default(), odd: Mutex::new(odd) });
        for (listener, elsewhere) in [(hub, false), (other, true)] {
            let of_thread = state.clone();
            std::thread::spawn(move || {
                for stream in listener.incoming().flatten() {
                    let state = of_thread.clone();
                    std::thread::spawn(move || serve(stream, &state, elsewhere));
                }
            });
        }
        StandIn { endpoint, state }
    }

    /// Changes what is out of the ordinary.
    pub fn odd(&self, change: impl FnOnce(&mut Odd)) {
        change(&mut self.state.odd.lock().unwrap());
    }

    /// The next downloads break off after so many bytes, that many times.
    pub fn break_off(&self, after: usize, times: u32) {
        self.odd(|odd| odd.broken = (after, times));
    }

    /// Files that were downloaded, in order; parts of one in a row count once.
    pub fn downloads(&self) -> Vec<String> {
        let mut all: Vec<String> = self.asked().iter().filter(|asked| asked.is_download()).map(file).collect();
        all.dedup();
        all
    }

    /// All requests so far.
    pub fn asked(&self) -> Vec<Asked> {
        self.state.asked.lock().unwrap().clone()
    }

    /// Requests so far.
    pub fn requests(&self) -> usize {
        self.asked().len()
    }

    /// Options for it, with a cache below `home`.
    pub fn options(&self, home: &Path) -> HubOptions {
        let (home, endpoint) = (home.display().to_string(), format!("{}/", self.endpoint));
        let options = HubOptions::from_vars(|name| match name {
            "HF_HOME" => Some(home.clone()),
            "HF_ENDPOINT" => Some(endpoint.clone()),
            _ => None,
        });
        HubOptions { pause: Duration::from_millis(1), ..options }
    }
}

fn file(asked: &Asked) -> String {
    asked.path.rsplit('/').next().unwrap().to_string()
}

/// What an address says where it has `%20` and the like.
fn decoded(path: &str) -> String {
    let (mut bytes, mut rest) = (Vec::new(), path.as_bytes());
    while let [first, after @ ..] = rest {
        let code = after.get(..2).filter(|_| *first == b'%');
        let code = code.and_then(|code| u8::from_str_radix(std::str::from_utf8(code).ok()?, 16).ok());
        bytes.push(code.unwrap_or(*first));
        rest = if code.is_some() { &after[2..] } else { after };
    }
    String::from_utf8(bytes).unwrap()
}

fn serve(stream: TcpStream, state: &State, elsewhere: bool) {
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
        let (method, path) = line.split_once(' ').unwrap();
        let asked = Asked {
            method: method.into(),
            path: decoded(path.split([' ', '?']).next().unwrap()),
            elsewhere,
            token: headers.contains_key("authorization"),
            range: headers.get("range").cloned(),
        };
        state.asked.lock().unwrap().push(asked.clone());
        let answer = respond(&asked, headers.get("authorization"), state);
        let mut bytes = answer.head.into_bytes();
        let mut cut = false;
        if method == "GET" {
            let mut odd = state.odd.lock().unwrap();
            let mut body = answer.body;
            if answer.is_content && odd.broken.1 > 0 {
                odd.broken.1 -= 1;
                body.truncate(odd.broken.0);
                cut = true;
            }
            if answer.is_content && odd.spoiled > 0 {
                odd.spoiled -= 1;
                let middle = body.len() / 2;
                body[middle] ^= 1;
            }
            bytes.extend(body);
        }
        if out.write_all(&bytes).is_err() || cut {
            return;
        }
    }
}

struct Answer {
    head: String,
    body: Vec<u8>,
    /// Of a file.
    is_content: bool,
}

fn answer(status: u16, headers: &str, body: Vec<u8>) -> Answer {
    let headers = if headers.is_empty() { String::new() } else { format!("{headers}\r\n") };
    let head = format!("HTTP/1.1 {status} X\r\ncontent-length: {}\r\n{headers}\r\n", body.len());
    Answer { head, body, is_content: false }
}

fn respond(asked: &Asked, authorization: Option<&String>, state: &State) -> Answer {
    let status = |code: u16| answer(code, "", Vec::new());
    let mut odd = state.odd.lock().unwrap();
    let Odd { commit, linked, whole, refused: (about, code, header, times), .. } = &mut *odd;
    let path = asked.path.as_str();
    if *times > 0 && path.contains(*about) {
        *times -= 1;
        return answer(*code, header, Vec::new());
    }
    if path.contains(RENAMED.0) {
        return answer(307, &format!("location: {}", path.replace(RENAMED.0, RENAMED.1)), Vec::new());
    }
    let gated = |id: &str| id.trim_start_matches("datasets/").starts_with("gated/");
    let allowed = |id: &str| !gated(id) || authorization == Some(&format!("Bearer {TOKEN}"));
    let known = |revision: &str| ["main", "v1", "pr/2", COMMIT].contains(&revision) || revision == *commit;
    if let Some((id, revision)) = path.strip_prefix("/api/").and_then(|p| p.split_once("/revision/")) {
        let id = id.strip_prefix("models/").unwrap_or(id);
        let Some(files) = state.repos.get(id).filter(|_| known(revision)) else { return status(404) };
        if !allowed(id) {
            return status(401);
        }
        let sibling = |(name, bytes): (&String, &Vec<u8>)| serde_json::json!({"rfilename": name, "size": bytes.len()});
        let siblings: Vec<_> = files.iter().map(sibling).collect();
        return answer(200, "", serde_json::json!({ "siblings": siblings, "sha": commit }).to_string().into_bytes());
    }
    let Some((id, rest)) = path[1..].split_once("/resolve/") else { return status(400) };
    let (revision, file) = rest.split_once('/').unwrap_or_default();
    let Some(bytes) = state.repos.get(id).and_then(|files| files.get(file)) else { return status(404) };
    if !asked.elsewhere {
        if !allowed(id) {
            return status(403);
        }
        if let Some(named) = linked {
            let (name, to) = (named(bytes), &state.elsewhere);
            let link = format!("x-linked-etag: \"{name}\"\r\nx-linked-size: {}", bytes.len());
            let at = format!("location: {to}{}?signed=yes\r\nx-repo-commit: {revision}", encoded(path));
            return answer(302, &format!("{link}\r\n{at}"), b"look there".to_vec());
        }
    }
    let sum = bytes.iter().fold(0u64, |h, b| h.wrapping_mul(31).wrapping_add(u64::from(*b)));
    let headers = format!("etag: W/\"{sum:x}-{}\"\r\nx-repo-commit: {revision}", bytes.len());
    let range = asked.range.as_ref().filter(|_| !*whole);
    let mut answer = match range {
        None => answer(200, &headers, bytes.clone()),
        Some(range) => {
            let (start, end) = range.trim_start_matches("bytes=").split_once('-').unwrap();
            let start: usize = start.parse().unwrap();
            if start >= bytes.len() {
                return status(416);
            }
            let end = end.parse().unwrap_or(bytes.len() - 1).min(bytes.len() - 1);
            let range = format!("content-range: bytes {start}-{end}/{}", bytes.len());
            answer(206, &format!("{range}\r\n{headers}"), bytes[start..=end].to_vec())
        }
    };
    answer.is_content = true;
    answer
}

fn encoded(path: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/-._".contains(&byte);
    path.bytes().map(|b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}
