//! Push and pull against a registry in memory: what goes up comes back, what is changed is refused, and a registry that
//! wants a token gets one.

use prl_registry::{Asset, Credentials, Package, Reference, Registry, RegistryError, cached};
use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// Blobs and manifests by path.
type Content = Arc<Mutex<HashMap<String, Vec<u8>>>>;

struct Server {
    address: String,
    content: Content,
    requests: Arc<Mutex<Vec<String>>>,
}

impl Server {
    /// With `token`, every request needs it, and `me:secret` gets it.
    fn start(token: Option<&'static str>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (content, requests) = (Content::default(), Arc::new(Mutex::new(Vec::new())));
        let server = Server { address: address.clone(), content: content.clone(), requests: requests.clone() };
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                answer(stream.unwrap(), &address, token, &content, &requests);
            }
        });
        server
    }

    fn reference(&self, rest: &str) -> Reference {
        Reference::parse(&format!("oci://{}/{rest}", self.address)).unwrap()
    }
}

fn answer(stream: TcpStream, address: &str, token: Option<&str>, content: &Content, requests: &Mutex<Vec<String>>) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut head = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        if line.trim().is_empty() {
            break;
        }
        head.push(line.trim().to_owned());
    }
    let Some(first) = head.first().cloned() else { return };
    let header = |name: &str| {
        head.iter().find_map(|line| {
            let (key, value) = line.split_once(": ")?;
            key.eq_ignore_ascii_case(name).then(|| value.to_owned())
        })
    };
    let mut body = vec![0; header("content-length").map_or(0, |n| n.parse().unwrap())];
    reader.read_exact(&mut body).unwrap();
    requests.lock().unwrap().push(first.clone());
    let (method, rest) = first.split_once(' ').unwrap();
    let target = rest.split(' ').next().unwrap();
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let mut content = content.lock().unwrap();
    let mut extra = String::new();
    let allowed = token.is_none_or(|token| header("authorization") == Some(format!("Bearer {token}")));
    let (status, answer) = if path == "/token" {
        let known = header("authorization").as_deref() == Some("Basic bWU6c2VjcmV0");
        let token = format!("{{\"token\": \"{}\"}}", token.unwrap_or_default());
        if known { (200, token.into_bytes()) } else { (401, Vec::new()) }
    } else if !allowed {
        extra =
            format!("www-authenticate: Bearer realm=\"http://{address}/token\",service=\"r\",scope=\"a:b:pull\"\r\n");
        (401, br#"{"errors": [{"message": "authentication required"}]}"#.to_vec())
    } else {
        match (method, path.contains("/uploads/")) {
            ("POST", true) => {
                extra = format!("location: {path}1?state=x\r\n");
                (202, Vec::new())
            }
            ("PUT", true) => {
                let digest = query.split_once("digest=").unwrap().1;
                let place = path.split("uploads/").next().unwrap();
                content.insert(format!("{place}{digest}"), body);
                (201, Vec::new())
            }
            ("PUT", false) => {
                content.insert(path.to_owned(), body);
                (201, Vec::new())
            }
            _ => match content.get(path) {
                Some(bytes) => (200, bytes.clone()),
                None => (404, br#"{"errors": [{"message": "unknown"}]}"#.to_vec()),
            },
        }
    };
    let head = format!("HTTP/1.1 {status} X\r\ncontent-length: {}\r\n{extra}connection: close\r\n\r\n", answer.len());
    let mut stream = stream;
    // Whoever asked may be gone.
    let _ = stream.write_all(head.as_bytes());
    if method != "HEAD" {
        let _ = stream.write_all(&answer);
    }
}

fn package() -> Package {
    let asset = Asset { name: "words/en.txt".into(), bytes: b"apple".to_vec() };
    Package { component: b"\0asm component".to_vec(), assets: vec![asset], ..Package::default() }
}

#[test]
fn what_goes_up_comes_back_and_stays() {
    let (server, cache) = (Server::start(None), tempfile::tempdir().unwrap());
    let reference = server.reference("envs/words:1.0.0");
    let digest = Registry::new(&reference, None).push(&package()).unwrap();
    assert_eq!(Registry::new(&reference, None).push(&package()).unwrap(), digest, "the same package, the same digest");
    let pulled = Registry::new(&reference, None).pull(&reference, cache.path()).unwrap();
    assert_eq!((&pulled.digest, fs::read(&pulled.component).unwrap()), (&digest, package().component));
    let asset = pulled.component.with_file_name("assets").join("words/en.txt");
    assert_eq!(fs::read(&asset).unwrap(), b"apple");

    // From now on without the registry, as long as nothing is changed.
    let pinned = reference.pinned(&digest);
    let count = || server.requests.lock().unwrap().len();
    let before = count();
    assert_eq!(Registry::new(&pinned, None).pull(&pinned, cache.path()).unwrap(), pulled);
    assert_eq!(count(), before);
    // A registry answers to the digest of a manifest, too.
    let manifest = server.content.lock().unwrap()["/v2/envs/words/manifests/1.0.0"].clone();
    server.content.lock().unwrap().insert(format!("/v2/envs/words/manifests/sha256:{digest}"), manifest);
    fs::write(&asset, "pear").unwrap();
    assert!(cached(&pinned, cache.path()).is_none());
    Registry::new(&pinned, None).pull(&pinned, cache.path()).unwrap();
    assert_eq!(fs::read(&asset).unwrap(), b"apple");
    assert_eq!(fs::read_dir(cache.path()).unwrap().count(), 1, "nothing is left over");
}

#[test]
fn what_was_changed_is_refused() {
    let (server, cache) = (Server::start(None), tempfile::tempdir().unwrap());
    let reference = server.reference("envs/words:1.0.0");
    let digest = Registry::new(&reference, None).push(&package()).unwrap();
    let pull = |reference: &Reference| Registry::new(reference, None).pull(reference, cache.path());
    {
        let mut content = server.content.lock().unwrap();
        let component = content.iter_mut().find(|(path, bytes)| path.contains("blobs") && bytes.starts_with(b"\0asm"));
        component.unwrap().1[5] = b'X';
    }
    assert!(matches!(pull(&reference), Err(RegistryError::Digest { .. })));
    let pinned = reference.pinned(&digest);
    let manifest = server.content.lock().unwrap()["/v2/envs/words/manifests/1.0.0"].clone();
    let changed = String::from_utf8(manifest).unwrap().replace("words/en.txt", "words/de.txt");
    let path = format!("/v2/envs/words/manifests/sha256:{digest}");
    server.content.lock().unwrap().insert(path, changed.into_bytes());
    let error = pull(&pinned).unwrap_err().to_string();
    assert!(error.contains("the manifest of") && error.contains(&digest), "{error}");
    assert_eq!(fs::read_dir(cache.path()).unwrap().count(), 0, "nothing is left over");
    assert!(matches!(pull(&server.reference("envs/none:1")), Err(RegistryError::Status { status: 404, .. })));
    let nowhere = Reference::parse("oci://127.0.0.1:9/words:1").unwrap();
    assert!(matches!(pull(&nowhere), Err(RegistryError::Transport { .. })));
}

#[test]
fn a_token_is_fetched_where_one_is_wanted() {
    let (server, cache) = (Server::start(Some("t0ken")), tempfile::tempdir().unwrap());
    let reference = server.reference("envs/words:1.0.0");
    let account = |password: &str| Some(Credentials { user: "me".into(), password: password.into() });
    Registry::new(&reference, account("secret")).push(&package()).unwrap();
    Registry::new(&reference, account("secret")).pull(&reference, cache.path()).unwrap();
    for bad in [None, account("guess")] {
        let error = Registry::new(&reference, bad).push(&package()).unwrap_err().to_string();
        assert!(error.contains("status 401") && error.contains("PRL_REGISTRY_USER"), "{error}");
    }
}
