//! Hubs that answer as none should: what they name is no path, and nothing that they do is waited for without end.

use prl_hub::{Hub, HubError, HubOptions, Kind, Listing};
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
const ROWS: &[u8] = b"{\"n\": 0}\n{\"n\": 1}\n";

/// A request, and where its answer goes. The connection ends with the call.
struct Call {
    method: String,
    path: String,
    /// The first byte that is asked for.
    from: Option<usize>,
    to: TcpStream,
}

impl Call {
    fn say(&mut self, text: impl AsRef<[u8]>) -> bool {
        self.to.write_all(text.as_ref()).and_then(|()| self.to.flush()).is_ok()
    }

    fn answer(&mut self, status: u16, headers: &str, body: &[u8]) {
        let head = format!("HTTP/1.1 {status} X\r\nconnection: close\r\n{headers}");
        self.say(format!("{head}content-length: {}\r\n\r\n", body.len()));
        if self.method == "GET" {
            self.say(body);
        }
    }
}

/// Calls `answer` for every request; returns the address.
fn serve(answer: impl Fn(Call) + Copy + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for to in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let mut lines = BufReader::new(to.try_clone().unwrap()).lines().map_while(Result::ok);
                let Some(first) = lines.next() else { return };
                let (mut words, mut from) = (first.split(' ').map(str::to_owned), None);
                for line in lines.take_while(|line| !line.is_empty()) {
                    let line = line.to_lowercase();
                    let range = line.strip_prefix("range: bytes=").and_then(|range| range.strip_suffix('-'));
                    from = from.or(range.map(|at| at.parse().unwrap()));
                }
                answer(Call { method: words.next().unwrap(), path: words.next().unwrap(), from, to });
            });
        }
    });
    endpoint
}

fn options(endpoint: String, home: &Path) -> HubOptions {
    let cache = Some(home.join("hub"));
    let pause = Duration::from_millis(1);
    HubOptions { cache, endpoint, pause, patience: Duration::from_millis(500), ..HubOptions::from_vars(|_| None) }
}

fn hub(options: &HubOptions) -> Hub<'_> {
    Hub::new(Kind::Dataset, "some-one/rows", None, options).unwrap()
}

fn fetch(options: &HubOptions) -> Result<Vec<u8>, String> {
    let listing = Listing { commit: COMMIT.into(), files: [("rows.jsonl".to_owned(), None)].into() };
    let dir = hub(options).fetch(&listing, &["rows.jsonl".into()]).map_err(|e| e.to_string())?;
    Ok(std::fs::read(dir.join("rows.jsonl")).unwrap())
}

/// What is said of a file whose headers are these.
fn told(headers: &'static str) -> String {
    let home = TempDir::new().unwrap();
    let precious = home.path().join("precious");
    std::fs::write(&precious, "mine").unwrap();
    let endpoint = serve(move |mut call| call.answer(200, headers, ROWS));
    let error = fetch(&options(endpoint, home.path())).unwrap_err();
    assert_eq!(std::fs::read(&precious).unwrap(), b"mine");
    assert!(!home.path().join("hub/datasets--some-one--rows/blobs").exists());
    error
}

#[test]
fn names_are_no_paths() {
    for headers in [
        "etag: \"../../../precious\"\r\n",
        "etag: \"/tmp/precious\"\r\n",
        "x-linked-etag: \"..\"\r\netag: \"abc\"\r\n",
        "etag: \"\"\r\n",
        Box::leak(format!("etag: \"{}\"\r\n", "0".repeat(200)).into_boxed_str()),
    ] {
        let told = told(headers);
        assert!(told.starts_with("`rows.jsonl`: cannot be fetched from http://127.0.0.1"), "{told}");
        assert!(told.contains("(ETag), which cannot be a file's name"), "{told}");
    }
    assert!(told("").ends_with("the hub does not name its content (ETag)"));
    for headers in ["etag: \"abc\"\r\nx-repo-commit: ../../precious\r\n", "etag: \"abc\"\r\nx-repo-commit: 1111\r\n"] {
        assert!(told(headers).contains("and answers for"));
    }
    let home = TempDir::new().unwrap();
    let endpoint = serve(|mut call| call.answer(200, "", b"{\"sha\": \"../../precious\", \"siblings\": []}"));
    let error = hub(&options(endpoint, home.path())).list().unwrap_err();
    assert!(error.to_string().ends_with("it gives no commit"), "{error}");
}

#[test]
fn redirects_end() {
    let home = TempDir::new().unwrap();
    let told = |answer: fn(Call)| fetch(&options(serve(answer), home.path())).unwrap_err();
    let text = told(|mut call| {
        let headers = format!("etag: \"abc\"\r\nlocation: {}\r\n", call.path);
        call.answer(302, &headers, b"");
    });
    assert!(text.contains("more than 10 redirects, the last one to http://127.0.0.1"), "{text}");
    let text = told(|mut call| call.answer(302, "etag: \"abc\"\r\n", b""));
    assert!(text.ends_with("answers with status 302"), "{text}");
    let text = told(|mut call| call.answer(302, "etag: \"abc\"\r\nlocation: file:///etc/passwd\r\n", b""));
    assert!(text.ends_with("sends its callers nowhere"), "{text}");
}

#[test]
fn silence_and_trickles_end() {
    let home = TempDir::new().unwrap();
    let told = |answer: fn(Call)| match hub(&options(serve(answer), home.path())).list() {
        Err(HubError::Silent(text)) => text,
        other => panic!("{other:?}"),
    };
    let text = told(|call| {
        // Until nobody is at the other end.
        let mut end = [0];
        let _ = std::io::Read::read(&mut &call.to, &mut end);
    });
    assert!(text.contains("does not answer: timeout"), "{text}");
    let text = told(|mut call| {
        call.say("HTTP/1.1 200 X\r\ncontent-length: 100000000\r\n\r\n");
        while call.say(" ") {
            std::thread::sleep(Duration::from_millis(2));
        }
    });
    assert!(text.contains("its answer is not complete after 3 s"), "{text}");
}

#[test]
fn half_a_file_is_none_though_nobody_says_its_size() {
    let home = TempDir::new().unwrap();
    let endpoint = serve(|mut call| {
        let head = "connection: close\r\netag: \"abc\"\r\n";
        match (call.method.as_str(), call.from) {
            ("HEAD", _) => drop(call.say(format!("HTTP/1.1 200 X\r\n{head}transfer-encoding: chunked\r\n\r\n"))),
            // It breaks off.
            (_, None) => drop(call.say(format!(
                "HTTP/1.1 200 X\r\n{head}transfer-encoding: chunked\r\n\r\n3\r\n{}\r\n",
                std::str::from_utf8(&ROWS[..3]).unwrap()
            ))),
            (_, Some(from)) => {
                let range = format!("etag: \"abc\"\r\ncontent-range: bytes {from}-{}/{}\r\n", from + 3, ROWS.len());
                call.answer(206, &range, &ROWS[from..(from + 4).min(ROWS.len())]);
            }
        }
    });
    assert_eq!(fetch(&options(endpoint, home.path())).unwrap(), ROWS);
}
