//! The distribution API: blobs and manifests, and tokens where a registry wants them. Owns the requests; what is in them
//! is `artifact`'s.

use crate::artifact::{Descriptor, MANIFEST, Package, sha256};
use crate::{Reference, RegistryError};
use serde_json::Value;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use ureq::http::{Response, StatusCode, header};
use ureq::{Agent, Body};

/// Longest manifest, bytes.
const MAX_MANIFEST: u64 = 4 << 20;
/// Longest blob, bytes.
const MAX_BLOB: u64 = 2 << 30;
/// Wait for a connection and for an answer to begin.
const PATIENCE: Duration = Duration::from_secs(60);

/// An account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// Its name.
    pub user: String,
    /// Its password or token.
    pub password: String,
}

/// A registry's repository.
pub struct Registry {
    agent: Agent,
    reference: Reference,
    credentials: Option<Credentials>,
    /// The header that the registry wants, once it said so.
    authorization: Mutex<Option<String>>,
}

impl Registry {
    /// Of the repository that `reference` names. A registry on this machine is asked without TLS, any other with it.
    pub fn new(reference: &Reference, credentials: Option<Credentials>) -> Self {
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .timeout_connect(Some(PATIENCE))
            .timeout_recv_response(Some(PATIENCE))
            .user_agent(concat!("prl/", env!("CARGO_PKG_VERSION")))
            .build();
        Registry {
            agent: Agent::new_with_config(config),
            reference: reference.clone(),
            credentials,
            authorization: Mutex::default(),
        }
    }

    /// Publishes a package; gives the manifest's SHA-256 in hex.
    ///
    /// # Errors
    /// The registry cannot be reached or refuses.
    pub fn push(&self, package: &Package) -> Result<String, RegistryError> {
        let (blobs, manifest) = package.encode();
        for (descriptor, bytes) in &blobs {
            self.push_blob(descriptor, bytes)?;
        }
        let digest = sha256(&manifest);
        let version = self.reference.version.clone().unwrap_or_else(|| format!("sha256:{digest}"));
        let url = self.url(&format!("manifests/{version}"));
        self.ask("PUT", &url, Some((MANIFEST, &manifest)))?;
        Ok(digest)
    }

    fn push_blob(&self, descriptor: &Descriptor, bytes: &[u8]) -> Result<(), RegistryError> {
        match self.ask("HEAD", &self.url(&format!("blobs/{}", descriptor.digest)), None) {
            Ok(_) => return Ok(()),
            Err(RegistryError::Status { status: 404, .. }) => {}
            Err(error) => return Err(error),
        }
        let url = self.url("blobs/uploads/");
        let begun = self.ask("POST", &url, None)?;
        let location = begun.headers().get(header::LOCATION).and_then(|value| value.to_str().ok());
        let location = location.ok_or_else(|| RegistryError::Transport {
            url: url.clone(),
            reason: "the registry does not say where to upload to".into(),
        })?;
        let location = if location.starts_with('/') { self.root() + location } else { location.to_owned() };
        let joint = if location.contains('?') { '&' } else { '?' };
        let upload = format!("{location}{joint}digest={}", descriptor.digest);
        self.ask("PUT", &upload, Some(("application/octet-stream", bytes))).map(|_| ())
    }

    /// The manifest's bytes, of the reference's digest if it has one.
    ///
    /// # Errors
    /// The registry cannot be reached or refuses, or gives something else.
    pub(crate) fn manifest(&self) -> Result<Vec<u8>, RegistryError> {
        let url = self.url(&format!("manifests/{}", self.reference.wanted()));
        let bytes = read(&url, self.ask("GET", &url, None)?, MAX_MANIFEST)?;
        match &self.reference.digest {
            Some(wanted) => verified(format!("the manifest of `{}`", self.reference), wanted, bytes),
            None => Ok(bytes),
        }
    }

    /// A blob's bytes, verified.
    ///
    /// # Errors
    /// The registry cannot be reached or refuses, or gives something else.
    pub(crate) fn blob(&self, descriptor: &Descriptor) -> Result<Vec<u8>, RegistryError> {
        let url = self.url(&format!("blobs/{}", descriptor.digest));
        let bytes = read(&url, self.ask("GET", &url, None)?, descriptor.size.min(MAX_BLOB))?;
        verified(format!("a layer of `{}`", self.reference), descriptor.hex(), bytes)
    }

    fn root(&self) -> String {
        let scheme = if self.reference.is_local() { "http" } else { "https" };
        format!("{scheme}://{}", self.reference.registry)
    }

    fn url(&self, rest: &str) -> String {
        format!("{}/v2/{}/{rest}", self.root(), self.reference.repository)
    }

    /// Asks, with a token once the registry wants one.
    fn ask(&self, method: &str, url: &str, body: Option<(&str, &[u8])>) -> Result<Response<Body>, RegistryError> {
        let mut answer = self.once(method, url, body)?;
        if answer.status() == StatusCode::UNAUTHORIZED
            && let Some(challenge) = answer.headers().get(header::WWW_AUTHENTICATE)
            && let Some(authorization) = self.authorize(&String::from_utf8_lossy(challenge.as_bytes()))?
        {
            *self.authorization.lock().unwrap_or_else(PoisonError::into_inner) = Some(authorization);
            answer = self.once(method, url, body)?;
        }
        if answer.status().is_success() {
            return Ok(answer);
        }
        let status = answer.status().as_u16();
        let body = answer.body_mut().with_config().limit(MAX_MANIFEST).read_to_string().unwrap_or_default();
        let json: Value = serde_json::from_str(&body).unwrap_or_default();
        let said = json["errors"][0]["message"].as_str().map_or(body.as_str(), |said| said);
        let said: String = said.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(200).collect();
        Err(RegistryError::Status { url: url.into(), status, said })
    }

    fn once(&self, method: &str, url: &str, body: Option<(&str, &[u8])>) -> Result<Response<Body>, RegistryError> {
        let failed = |reason: String| RegistryError::Transport { url: url.into(), reason };
        let mut request = ureq::http::Request::builder().method(method).uri(url).header(header::ACCEPT, MANIFEST);
        // A blob may be uploaded to another host, which must not see the token.
        if url.starts_with(&(self.root() + "/")) {
            let authorization = self.authorization.lock().unwrap_or_else(PoisonError::into_inner);
            request = authorization.iter().fold(request, |request, value| request.header(header::AUTHORIZATION, value));
        }
        if let Some((kind, _)) = body {
            request = request.header(header::CONTENT_TYPE, kind);
        }
        let sent = match body {
            Some((_, bytes)) => self.agent.run(request.body(bytes).map_err(|e| failed(e.to_string()))?),
            None if method == "POST" => self.agent.run(request.body(&b""[..]).map_err(|e| failed(e.to_string()))?),
            None => self.agent.run(request.body(()).map_err(|e| failed(e.to_string()))?),
        };
        sent.map_err(|error| failed(error.to_string()))
    }

    /// The header that answers a challenge: `Basic`, or `Bearer` with a token of the server it names.
    fn authorize(&self, challenge: &str) -> Result<Option<String>, RegistryError> {
        let basic = self.credentials.as_ref().map(|account| {
            let pair = format!("{}:{}", account.user, account.password);
            format!("Basic {}", base64(pair.as_bytes()))
        });
        let Some(parameters) = challenge.strip_prefix("Bearer ") else {
            return Ok(basic.filter(|_| challenge.starts_with("Basic")));
        };
        let parameter = |name: &str| {
            let at = parameters.find(&format!("{name}=\""))? + name.len() + 2;
            parameters[at..].split('"').next()
        };
        let Some(realm) = parameter("realm").filter(|realm| realm.starts_with("https://") || self.reference.is_local())
        else {
            return Ok(None);
        };
        let mut request = self.agent.get(realm);
        for name in ["service", "scope"] {
            request = parameter(name).into_iter().fold(request, |request, value| request.query(name, value));
        }
        request = basic.iter().fold(request, |request, value| request.header(header::AUTHORIZATION, value));
        let answer = request.call();
        let answer = answer.map_err(|e| RegistryError::Transport { url: realm.into(), reason: e.to_string() })?;
        if !answer.status().is_success() {
            return Ok(None);
        }
        let json: Value = serde_json::from_slice(&read(realm, answer, MAX_MANIFEST)?).unwrap_or_default();
        let token = json["token"].as_str().or(json["access_token"].as_str());
        Ok(token.map(|token| format!("Bearer {token}")))
    }
}

fn read(url: &str, mut answer: Response<Body>, limit: u64) -> Result<Vec<u8>, RegistryError> {
    let body = answer.body_mut().with_config().limit(limit).read_to_vec();
    body.map_err(|error| RegistryError::Transport { url: url.into(), reason: error.to_string() })
}

/// The bytes, if they are the ones that were wanted.
pub(crate) fn verified(what: String, wanted: &str, bytes: Vec<u8>) -> Result<Vec<u8>, RegistryError> {
    let got = sha256(&bytes);
    if got == wanted {
        return Ok(bytes);
    }
    Err(RegistryError::Digest { what, wanted: wanted.into(), got })
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::new();
    for chunk in bytes.chunks(3) {
        let word = chunk.iter().fold(0u32, |word, byte| word << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for at in 0..4 {
            let digit = DIGITS[(word >> (18 - 6 * at) & 63) as usize] as char;
            out.push(if at <= chunk.len() { digit } else { '=' });
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_the_usual_one() {
        for (text, wanted) in [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("a:b~", "YTpifg==")] {
            assert_eq!(base64(text.as_bytes()), wanted);
        }
    }
}
