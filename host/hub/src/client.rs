//! Requests to the hub, and to where it sends its callers. Owns who gets the token, how long an answer may take, and which
//! failures are tried again; must not know the cache, nor what an answer holds.

use crate::{HubError, HubOptions};
use std::io::{self, Read};
use std::time::{Duration, Instant};
use ureq::http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode, header};
use ureq::{Agent, Body};
use url::Url;

/// How often something is asked for that fails in passing.
const TRIES: u32 = 5;
/// Redirects on the way to an answer.
const MAX_REDIRECTS: u32 = 10;
/// An answer that says what there is may take so many times the patience with silence.
const LISTING: u32 = 6;
/// A name of content is no longer than this: it becomes the name of a file.
const MAX_NAME: usize = 128;
/// A hub that wants to be left alone for longer than this is told of, not waited for.
const MAX_WAIT: Duration = Duration::from_secs(300);

/// What the hub calls the content of a file that is kept elsewhere.
const LINKED_ETAG: HeaderName = HeaderName::from_static("x-linked-etag");
/// And its bytes.
const LINKED_SIZE: HeaderName = HeaderName::from_static("x-linked-size");
/// The commit of an answer.
const COMMIT: HeaderName = HeaderName::from_static("x-repo-commit");

/// Why an attempt gave nothing.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// Nobody is there, or says anything.
    Away(String),
    /// It may go well the next time.
    Passing {
        /// What happened.
        reason: String,
        /// How long the hub asks to be left alone.
        wait: Option<Duration>,
        /// Whether much has come nevertheless, so that it is as good as the first time.
        moved: bool,
    },
    /// An answer that is none.
    Status(StatusCode),
    /// An answer that cannot be used.
    Bad(String),
    /// What came cannot be kept.
    Disk(io::Error),
}

impl Trouble {
    /// A failure that may not be one the next time.
    pub fn passing(reason: impl ToString) -> Self {
        Trouble::Passing { reason: reason.to_string(), wait: None, moved: false }
    }

    fn of(error: ureq::Error) -> Self {
        use io::ErrorKind::{ConnectionRefused, HostUnreachable, NetworkUnreachable};
        match &error {
            ureq::Error::Io(e) if matches!(e.kind(), ConnectionRefused | HostUnreachable | NetworkUnreachable) => {
                Trouble::Away(error.to_string())
            }
            ureq::Error::Io(_) | ureq::Error::Protocol(_) => Trouble::passing(error),
            _ => Trouble::Away(error.to_string()),
        }
    }
}

/// What the hub says of a file.
pub(crate) struct Told {
    /// The name of its content.
    pub etag: String,
    /// Bytes.
    pub size: Option<u64>,
    /// The commit that this is of.
    pub commit: Option<String>,
}

/// A caller of one hub.
pub(crate) struct Client {
    agent: Agent,
    home: Url,
    token: Option<HeaderValue>,
    patience: Duration,
    pause: Duration,
}

impl Client {
    /// Asks nothing.
    ///
    /// # Errors
    /// An address or a token that is none.
    pub fn new(options: &HubOptions) -> Result<Self, HubError> {
        let home = Url::parse(&options.endpoint).ok().filter(|url| ["http", "https"].contains(&url.scheme()));
        let home = home.ok_or_else(|| {
            let endpoint = &options.endpoint;
            HubError::Refused(format!(
                "HF_ENDPOINT is `{endpoint}`, which is no address of a hub: it begins with https://"
            ))
        })?;
        let bearer = |token: &String| {
            let token = Some(token).filter(|token| token.bytes().all(|byte| byte.is_ascii_graphic()));
            token.and_then(|token| HeaderValue::from_str(&format!("Bearer {token}")).ok()).ok_or_else(|| {
                HubError::Refused(
                    "HF_TOKEN, or the file of the token, has a blank, a line break or a letter that no token has: copy it anew"
                        .into(),
                )
            })
        };
        let mut token = options.token.as_ref().map(bearer).transpose()?;
        token.iter_mut().for_each(|token| token.set_sensitive(true));
        let patience = options.patience;
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .accept_encoding("identity")
            .user_agent(concat!("prl/", env!("CARGO_PKG_VERSION")))
            .timeout_resolve(Some(patience))
            .timeout_connect(Some(patience))
            .timeout_recv_response(Some(patience))
            .timeout_per_read(Some(patience))
            .build();
        Ok(Client { agent: Agent::new_with_config(config), home, token, patience, pause: options.pause })
    }

    /// An address of the hub; what cannot be in an address is written as it has to be.
    pub fn url<'a>(&self, segments: impl IntoIterator<Item = &'a str>) -> Url {
        let mut url = self.home.clone();
        if let Ok(mut path) = url.path_segments_mut() {
            path.pop_if_empty().extend(segments);
        }
        url
    }

    /// What the hub says of the file at `url`.
    ///
    /// # Errors
    /// It says nothing, or no name.
    pub fn head(&self, url: &Url) -> Result<Told, Trouble> {
        let response = self.ask(Method::HEAD, url, 0)?;
        let of = |name: HeaderName| response.headers().get(name).and_then(|value| value.to_str().ok());
        let etag =
            of(LINKED_ETAG).or_else(|| of(header::ETAG)).map(|tag| tag.trim_start_matches("W/").trim_matches('"'));
        let etag = etag.ok_or_else(|| Trouble::Bad("the hub does not name its content (ETag)".into()))?;
        if !crate::is_plain_name(etag) || etag.len() > MAX_NAME {
            let etag: String = etag.chars().take(MAX_NAME).collect();
            return Err(Trouble::Bad(format!(
                "the hub names its content {etag:?} (ETag), which cannot be a file's name"
            )));
        }
        // The length of a redirect is not that of the file.
        let length = if response.status().is_redirection() { None } else { of(header::CONTENT_LENGTH) };
        let size = of(LINKED_SIZE).or(length).and_then(|size| size.parse().ok());
        Ok(Told { etag: etag.to_owned(), size, commit: of(COMMIT).map(str::to_owned) })
    }

    /// What is at `url`, without its first `from` bytes where whoever has it can leave them out.
    ///
    /// # Errors
    /// Any answer but 200, 206 and, with `from`, 416.
    pub fn get(&self, url: &Url, from: u64) -> Result<Response<Body>, Trouble> {
        self.ask(Method::GET, url, from)
    }

    /// All of what is at `url`, if it is at most `limit` bytes and has come after six times the patience with silence.
    ///
    /// # Errors
    /// Any answer but 200; one that is too long or takes too long.
    pub fn text(&self, url: &Url, limit: u64) -> Result<Vec<u8>, Trouble> {
        let begun = Instant::now();
        let mut response = self.get(url, 0)?;
        let mut body = response.body_mut().as_reader().take(limit + 1);
        let (mut text, mut chunk) = (Vec::new(), vec![0; 1 << 16]);
        loop {
            match body.read(&mut chunk) {
                Ok(0) => return Ok(text),
                Ok(got) => text.extend_from_slice(&chunk[..got]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Trouble::passing(error)),
            }
            if text.len() as u64 > limit {
                return Err(Trouble::Bad(format!("its answer has more than {} MiB", limit >> 20)));
            }
            // Whoever sends a byte now and then is never silent.
            let (limit, so_far) = (self.patience * LISTING, text.len());
            if begun.elapsed() > limit {
                let seconds = limit.as_secs_f64();
                return Err(Trouble::Away(format!("its answer is not complete after {seconds:.0} s ({so_far} bytes)")));
            }
        }
    }

    /// Follows redirects, with the token for the hub alone.
    fn ask(&self, method: Method, url: &Url, from: u64) -> Result<Response<Body>, Trouble> {
        let mut url = url.clone();
        for _ in 0..=MAX_REDIRECTS {
            let mut request = Request::builder().method(&method).uri(url.as_str());
            if let Some(token) = self.token.as_ref().filter(|_| url.origin() == self.home.origin()) {
                request = request.header(header::AUTHORIZATION, token);
            }
            if from > 0 {
                request = request.header(header::RANGE, format!("bytes={from}-"));
            }
            let request = request.body(()).map_err(|e| Trouble::Bad(e.to_string()))?;
            let response = self.agent.run(request).map_err(Trouble::of)?;
            let status = response.status();
            let to = response.headers().get(header::LOCATION).filter(|_| status.is_redirection());
            let Some(to) = to else { return answer(response, from) };
            // Whose place is elsewhere, the hub says all of before it sends its callers there.
            if method == Method::HEAD && response.headers().contains_key(LINKED_ETAG) {
                return Ok(response);
            }
            let (at, next) = (place(&url), to.to_str().ok().and_then(|to| url.join(to).ok()));
            let next = next.filter(|url| ["http", "https"].contains(&url.scheme()));
            url = next.ok_or_else(|| Trouble::Bad(format!("{at} sends its callers nowhere")))?;
        }
        Err(Trouble::Bad(format!("more than {MAX_REDIRECTS} redirects, the last one to {}", place(&url))))
    }

    /// Tries until it goes well, has failed often enough, or fails for good. Where nobody is there at all it is given up at
    /// once, unless there was somebody before (`met`).
    pub fn persist<T>(
        &self,
        (subject, met): (&str, bool),
        mut once: impl FnMut() -> Result<T, Trouble>,
    ) -> Result<T, Trouble> {
        let (mut left, mut pause) = (TRIES - 1, self.pause);
        loop {
            let (reason, wait) = match once() {
                Err(Trouble::Passing { reason, wait, moved }) if left > 0 || moved => {
                    if moved {
                        (left, pause) = (TRIES, self.pause);
                    }
                    (reason, wait)
                }
                Err(Trouble::Away(reason)) if met && left > 0 => (reason, None),
                other => return other,
            };
            if let Some(wait) = wait.filter(|wait| *wait > MAX_WAIT) {
                return Err(Trouble::Away(format!("{reason}, and wants no question for {} s", wait.as_secs())));
            }
            let wait = wait.unwrap_or(pause);
            tracing::warn!("{subject}: {reason}; trying again in {:.1} s", wait.as_secs_f64());
            std::thread::sleep(wait);
            left -= 1;
            pause *= 2;
        }
    }
}

fn answer(response: Response<Body>, from: u64) -> Result<Response<Body>, Trouble> {
    let status = response.status();
    match status {
        StatusCode::OK | StatusCode::PARTIAL_CONTENT => Ok(response),
        StatusCode::RANGE_NOT_SATISFIABLE if from > 0 => Ok(response),
        _ if status == StatusCode::TOO_MANY_REQUESTS || status.is_server_error() => {
            let wait = response.headers().get(header::RETRY_AFTER).and_then(|value| value.to_str().ok());
            let wait = wait.and_then(|value| value.trim().parse().ok()).map(Duration::from_secs);
            Err(Trouble::Passing { reason: format!("status {}", status.as_u16()), wait, moved: false })
        }
        _ => Err(Trouble::Status(status)),
    }
}

/// An address without what may be secret in it.
fn place(url: &Url) -> String {
    format!("{}{}", url.origin().ascii_serialization(), url.path())
}
