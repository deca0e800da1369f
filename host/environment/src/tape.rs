//! What services answered in a rollout: taken down as it happens, or given out again in place of asking. Owns what is kept
//! of requests and answers, its bound, and how a request is held against the one before; must not know who asks, nor how
//! an answer is had.
//!
//! Of a request there is kept what names a difference: its parts, short ones as they are, longer ones as hash and length
//! (a model is mostly asked about the conversation, which the rollout's record holds anyway). Headers of HTTP requests are
//! neither kept nor compared, paths, queries and bodies only as hashes: keys are sent in them. Where an answer leads on to
//! an address, its query is a hash there, too; a request with that hash for its query is the request of then.

use crate::digest::{hex, sha256};
use crate::services::{HttpRequest, HttpResponse, LlmRequest, LlmResponse, ServiceError};
use prl_types::Message;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes of requests and answers that are kept of one rollout, or of the scoring of one group.
const MAX_BYTES: usize = 4 << 20;
/// Longest part of a request that is kept as it is, bytes.
const PART_BYTES: usize = 512;
/// Headers of responses of which only the names are kept: their values let others in.
const SECRET_HEADERS: [&str; 2] = ["set-cookie", "set-cookie2"];
/// Headers of responses that hold an address, of which the query is kept as a hash.
const ADDRESS_HEADERS: [&str; 2] = ["location", "content-location"];
/// What a query that is kept as a hash begins with.
const SEALED: &str = "prl-sealed=";
/// The call in which an instance is set up.
pub const SETUP: &str = "configure";

/// What passed between a rollout and its services.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Served {
    /// Requests with their answers, in order; those of the instance's `configure` come first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub asked: Vec<Exchange>,
    /// SHA-256 of each published file that was read, `None` for one that is not there; `.` is the list of all files.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub files: BTreeMap<String, Option<String>>,
    /// Why nothing was kept, if that is so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dropped: Option<String>,
}

/// One request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Exchange {
    /// The call of the environment that made it: `configure`, `open`, `start`, `step 0`, `step 1`, …, `score`.
    pub call: String,
    /// Who was asked.
    pub service: Service,
    /// What makes it this request: names and values.
    pub request: Vec<(String, String)>,
    /// What came; `None` where the call ended before.
    pub answer: Option<Answer>,
}

/// Who is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Service {
    /// A model.
    Llm,
    /// A server.
    Http,
    /// The scratch map.
    Kv,
}

/// An answer, whole.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// A model's.
    Llm {
        /// What it said.
        message: Message,
        /// Tokens of the conversation.
        prompt_tokens: u32,
        /// Tokens of the answer.
        completion_tokens: u32,
    },
    /// A server's.
    Http {
        /// Such as 200.
        status: u16,
        /// Names and values.
        headers: Vec<(String, String)>,
        /// Body.
        body: Bytes,
    },
    /// The map's value of a key.
    Value(Option<Bytes>),
    /// The map took a value.
    Taken,
    /// There was none.
    Error(ServiceError),
}

/// Bytes that are written as text where they are text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Written", into = "Written")]
pub struct Bytes(pub Vec<u8>);

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Written {
    Text(String),
    Hex(String),
}

impl From<Bytes> for Written {
    fn from(bytes: Bytes) -> Self {
        match String::from_utf8(bytes.0) {
            Ok(text) => Written::Text(text),
            Err(error) => Written::Hex(hex(error.as_bytes())),
        }
    }
}

impl TryFrom<Written> for Bytes {
    type Error = String;

    fn try_from(written: Written) -> Result<Self, String> {
        let text = match written {
            Written::Text(text) => return Ok(Bytes(text.into_bytes())),
            Written::Hex(text) => text,
        };
        let byte = |at: usize| text.get(at..at + 2).and_then(|pair| u8::from_str_radix(pair, 16).ok());
        let bytes: Option<Vec<u8>> = (0..text.len()).step_by(2).map(byte).collect();
        bytes.map(Bytes).ok_or_else(|| "an answer's bytes are not written in hex".into())
    }
}

impl Service {
    fn name(self) -> &'static str {
        match self {
            Service::Llm => "the model",
            Service::Http => "the server",
            Service::Kv => "the map",
        }
    }
}

impl Served {
    /// Why a rollout cannot be run again with these answers, if that is so.
    pub fn refusal(&self) -> Option<String> {
        if let Some(reason) = &self.dropped {
            return Some(format!("not replayable: {reason}"));
        }
        let at = self.asked.iter().position(|exchange| exchange.answer.is_none())?;
        let Exchange { call, service, .. } = &self.asked[at];
        Some(format!("not replayable: in `{call}` it ended while it waited for {}: request {}", service.name(), at + 1))
    }

    /// Whether it holds what `configure` was answered.
    pub fn has_setup(&self) -> bool {
        self.asked.iter().any(|exchange| exchange.call == SETUP)
    }

    /// What `configure` was answered.
    pub fn setup(&self) -> Served {
        let asked = self.asked.iter().filter(|exchange| exchange.call == SETUP).cloned().collect();
        Served { asked, ..Served::default() }
    }
}

/// Where the requests of a rollout go: by default to the services alone.
#[derive(Clone, Debug, Default)]
pub struct Tape(Option<Arc<Mutex<Reel>>>);

#[derive(Debug, Default)]
struct Reel {
    served: Served,
    bytes: usize,
    playing: Option<Playing>,
}

#[derive(Debug, Default)]
struct Playing {
    next: usize,
    finding: Option<String>,
}

/// Who answers a request.
pub enum Asked {
    /// The service; the place is for the answer.
    Live(usize),
    /// The tape.
    Given(Answer),
}

impl Tape {
    /// Takes down what passes.
    pub fn record() -> Self {
        Tape(Some(Arc::default()))
    }

    /// Answers as before; no service is asked.
    pub fn play(mut served: Served) -> Self {
        for exchange in served.asked.iter_mut().filter(|exchange| exchange.service == Service::Http) {
            seal_path(&mut exchange.request);
        }
        let reel = Reel { served, bytes: 0, playing: Some(Playing::default()) };
        Tape(Some(Arc::new(Mutex::new(reel))))
    }

    /// What is on it.
    pub fn served(&self) -> Served {
        self.reel().map(|reel| reel.served.clone()).unwrap_or_default()
    }

    /// The first request that was not as before, while it plays.
    pub fn finding(&self) -> Option<String> {
        self.reel()?.playing.as_ref()?.finding.clone()
    }

    /// The first request that was not made again.
    pub fn unasked(&self) -> Option<String> {
        let reel = self.reel()?;
        let next = reel.playing.as_ref()?.next;
        let left = reel.served.asked.get(next)?;
        Some(format!("request {} (in `{}`) is no longer made: {}", next + 1, left.call, left.shown()))
    }

    fn reel(&self) -> Option<MutexGuard<'_, Reel>> {
        self.0.as_ref().map(|reel| reel.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether it does anything.
    pub(crate) fn is_on(&self) -> bool {
        self.0.is_some()
    }

    pub(crate) fn is_playing(&self) -> bool {
        self.reel().is_some_and(|reel| reel.playing.is_some())
    }

    /// Where to make an instance: answered by this tape if that plays, else taken down by another.
    pub(crate) fn of_setup(&self) -> Tape {
        if self.is_playing() { self.clone() } else { Tape::record() }
    }

    /// Puts what was taken down when the instance was set up before all else.
    pub(crate) fn precede(&self, setup: &Tape) {
        if self.is_playing() {
            return;
        }
        let Some(mut reel) = self.reel() else { return };
        let Served { asked, files, dropped } = setup.served();
        for exchange in asked {
            reel.push(exchange);
        }
        for (name, digest) in files {
            reel.read(name, digest);
        }
        if let Some(reason) = dropped {
            reel.spoil(reason);
        }
    }

    /// Makes a request.
    pub(crate) fn ask(&self, call: &str, service: Service, request: Vec<(String, String)>) -> Asked {
        let Some(mut reel) = self.reel() else { return Asked::Live(0) };
        let exchange = Exchange { call: call.to_owned(), service, request, answer: None };
        match reel.playing.is_some() {
            true => Asked::Given(reel.give(&exchange)),
            false => Asked::Live(reel.push(exchange)),
        }
    }

    /// Takes down what a service answered.
    pub(crate) fn answer(&self, at: usize, answer: impl FnOnce() -> Answer) {
        let Some(mut reel) = self.reel() else { return };
        if reel.served.dropped.is_some() {
            return;
        }
        let answer = answer();
        if reel.weigh(&answer)
            && let Some(exchange) = reel.served.asked.get_mut(at)
        {
            exchange.answer = Some(answer);
        }
    }

    /// Whether it does not know this file yet.
    pub(crate) fn wants(&self, name: &str) -> bool {
        let wants = |reel: &Reel| reel.playing.is_none() && !reel.served.files.contains_key(name);
        self.reel().is_some_and(|reel| reel.served.dropped.is_none() && wants(&reel))
    }

    /// Takes down that a published file was read.
    pub(crate) fn read(&self, name: &str, digest: std::io::Result<Option<String>>) {
        let Some(mut reel) = self.reel() else { return };
        match digest {
            Ok(digest) => reel.read(name.to_owned(), digest),
            Err(error) => reel.spoil(format!("the file `{name}` could not be read: {error}")),
        }
    }
}

impl Reel {
    fn push(&mut self, exchange: Exchange) -> usize {
        if self.served.dropped.is_none() && self.weigh(&exchange) {
            self.served.asked.push(exchange);
        }
        self.served.asked.len().saturating_sub(1)
    }

    fn read(&mut self, name: String, digest: Option<String>) {
        if self.served.dropped.is_none() && self.weigh(&(&name, &digest)) {
            self.served.files.insert(name, digest);
        }
    }

    /// Makes room for `what`; without room nothing is kept at all.
    fn weigh(&mut self, what: &impl Serialize) -> bool {
        // Strings and numbers cannot fail to be JSON.
        self.bytes += serde_json::to_vec(what).map_or(0, |json| json.len());
        let fits = self.bytes <= MAX_BYTES;
        if !fits {
            self.spoil(format!("what services answered is above {} MiB and was not kept", MAX_BYTES >> 20));
        }
        fits
    }

    fn spoil(&mut self, reason: String) {
        self.served = Served { dropped: Some(reason), ..Served::default() };
    }

    /// The answer that came before; from the first request that differs on there is none.
    fn give(&mut self, new: &Exchange) -> Answer {
        let none = || Answer::Error(ServiceError::Upstream("the log has no answer to this request".into()));
        let Some(playing) = self.playing.as_mut().filter(|playing| playing.finding.is_none()) else { return none() };
        let at = playing.next;
        let old = self.served.asked.get(at);
        match (old.and_then(|old| old.answer.clone()), difference(old, new)) {
            (Some(answer), None) => {
                playing.next += 1;
                answer
            }
            (_, reason) => {
                let reason = reason.unwrap_or_else(|| "has no answer in the log".into());
                playing.finding = Some(format!("request {} (in `{}`) {reason}", at + 1, new.call));
                none()
            }
        }
    }
}

impl Exchange {
    fn shown(&self) -> String {
        let parts: Vec<String> = self.request.iter().map(|(name, value)| format!("{name} {}", quoted(value))).collect();
        format!("{}: {}", self.service.name(), parts.join(", "))
    }
}

/// What is the first thing that differs between two requests in the same place.
fn difference(old: Option<&Exchange>, new: &Exchange) -> Option<String> {
    let Some(old) = old else { return Some(format!("is one more than before, to {}", new.shown())) };
    if old.service != new.service {
        return Some(format!("was to {}, now to {}", old.shown(), new.shown()));
    }
    let who = new.service.name();
    let parts = old.request.len().max(new.request.len());
    let part = |exchange: &Exchange, at: usize| exchange.request.get(at).cloned();
    for at in 0..parts {
        let (before, now) = (part(old, at), part(new, at));
        if before == now {
            continue;
        }
        return Some(match (before, now) {
            (Some((name, before)), Some((same, now))) if name == same => {
                format!("asked {who} something else: {name} was {}, now {}", quoted(&before), quoted(&now))
            }
            (Some((name, value)), _) => format!("asked {who} something else: without {name} {}", quoted(&value)),
            (None, now) => {
                let (name, value) = now.unwrap_or_default();
                format!("asked {who} something else: with {name} {} beside", quoted(&value))
            }
        });
    }
    (old.call != new.call).then(|| format!("was made in `{}`", old.call))
}

fn quoted(text: &str) -> String {
    let (short, rest) = match text.char_indices().nth(120) {
        Some((at, _)) => (&text[..at], "…"),
        None => (text, ""),
    };
    format!("{short:?}{rest}")
}

/// As hash and length.
fn sealed(bytes: &[u8]) -> String {
    format!("sha256:{} ({} bytes)", sha256(bytes), bytes.len())
}

fn part(name: impl Into<String>, text: String) -> (String, String) {
    (name.into(), if text.len() > PART_BYTES { sealed(text.as_bytes()) } else { text })
}

/// What is kept of a request to a model.
pub fn of_llm(request: &LlmRequest) -> Vec<(String, String)> {
    let mut parts = vec![part("role", request.role.clone())];
    for (at, message) in request.messages.iter().enumerate() {
        let plain = *message == Message::text(message.role, message.content.as_str());
        // Texts cannot fail to be JSON.
        let whole = || serde_json::to_string(message).unwrap_or_default();
        let text = if plain { message.content.clone() } else { whole() };
        parts.push(part(format!("message {at} ({})", message.role.as_str()), text));
    }
    if !request.tools.is_empty() {
        parts.push(part("tools", serde_json::to_string(&request.tools).unwrap_or_default()));
    }
    parts.extend(request.max_tokens.map(|tokens| part("max_tokens", tokens.to_string())));
    parts.extend(request.temperature.map(|temperature| part("temperature", temperature.to_string())));
    parts.extend(request.options.iter().map(|(name, value)| part(name, value.to_string())));
    parts
}

/// What is kept of a request to a server.
pub fn of_http(request: &HttpRequest) -> Vec<(String, String)> {
    let (address, query) = request.url.split_once('?').unwrap_or((&request.url, ""));
    let mut parts = vec![part("method", request.method.clone()), ("address".into(), address.to_owned())];
    seal_path(&mut parts);
    if !query.is_empty() {
        parts.push(("query".into(), unlinked(query).unwrap_or_else(|| sealed(query.as_bytes()))));
    }
    parts.extend(request.body.as_ref().map(|body| ("body".into(), sealed(body))));
    parts
}

/// Takes the path out of an address and puts its hash behind; older logs hold it as it was.
fn seal_path(parts: &mut Vec<(String, String)>) {
    let Some(at) = parts.iter().position(|(name, _)| name == "address") else { return };
    let address = &mut parts[at].1;
    let origin = crate::services::origin(address).len();
    let path = address.split_off(origin);
    if !["", "/"].contains(&path.as_str()) {
        parts.insert(at + 1, ("path".into(), sealed(path.as_bytes())));
    }
}

/// An address that is led on to, with a hash for its query.
fn linked(address: &str) -> String {
    match address.split_once('?') {
        None => address.to_owned(),
        Some((address, query)) => {
            let query = query.split('#').next().unwrap_or_default();
            format!("{address}?{SEALED}{}-{}", sha256(query.as_bytes()), query.len())
        }
    }
}

/// What is kept of the query of such an address.
fn unlinked(query: &str) -> Option<String> {
    let (hash, length) = query.strip_prefix(SEALED)?.split_once('-')?;
    let is_hash = hash.len() == 64 && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_hash.then(|| Some(format!("sha256:{hash} ({} bytes)", length.parse::<usize>().ok()?)))?
}

/// What is kept of a look into the map, or of a value for it.
pub fn of_kv(key: &str, value: Option<&Option<Vec<u8>>>) -> Vec<(String, String)> {
    let mut parts = vec![part(if value.is_some() { "set" } else { "get" }, key.to_owned())];
    parts.extend(value.map(|value| ("value".into(), value.as_ref().map_or("nothing".into(), |value| sealed(value)))));
    parts
}

impl From<&Result<LlmResponse, ServiceError>> for Answer {
    fn from(answer: &Result<LlmResponse, ServiceError>) -> Self {
        match answer {
            Ok(answer) => Answer::Llm {
                message: answer.message.clone(),
                prompt_tokens: answer.prompt_tokens,
                completion_tokens: answer.completion_tokens,
            },
            Err(error) => Answer::Error(error.clone()),
        }
    }
}

impl From<&Result<HttpResponse, ServiceError>> for Answer {
    fn from(answer: &Result<HttpResponse, ServiceError>) -> Self {
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) => return Answer::Error(error.clone()),
        };
        let header = |(name, value): &(String, String)| {
            let secret = SECRET_HEADERS.iter().any(|secret| name.eq_ignore_ascii_case(secret));
            let is_address = ADDRESS_HEADERS.iter().any(|header| name.eq_ignore_ascii_case(header));
            let kept = match (secret, is_address) {
                (true, _) => String::new(),
                (_, true) => linked(value),
                _ => value.clone(),
            };
            (name.clone(), kept)
        };
        let headers = answer.headers.iter().map(header).collect();
        Answer::Http { status: answer.status, headers, body: Bytes(answer.body.clone()) }
    }
}

impl From<&Result<Option<Vec<u8>>, ServiceError>> for Answer {
    fn from(answer: &Result<Option<Vec<u8>>, ServiceError>) -> Self {
        match answer {
            Ok(value) => Answer::Value(value.clone().map(Bytes)),
            Err(error) => Answer::Error(error.clone()),
        }
    }
}

impl From<&Result<(), ServiceError>> for Answer {
    fn from(answer: &Result<(), ServiceError>) -> Self {
        match answer {
            Ok(()) => Answer::Taken,
            Err(error) => Answer::Error(error.clone()),
        }
    }
}

/// An answer of another kind than the request, which only a log that was changed can hold.
fn odd() -> ServiceError {
    ServiceError::Upstream("the log has an answer of another kind".into())
}

impl From<Answer> for Result<LlmResponse, ServiceError> {
    fn from(answer: Answer) -> Self {
        match answer {
            Answer::Llm { message, prompt_tokens, completion_tokens } => {
                Ok(LlmResponse { message, prompt_tokens, completion_tokens })
            }
            Answer::Error(error) => Err(error),
            Answer::Http { .. } | Answer::Value(_) | Answer::Taken => Err(odd()),
        }
    }
}

impl From<Answer> for Result<HttpResponse, ServiceError> {
    fn from(answer: Answer) -> Self {
        match answer {
            Answer::Http { status, headers, body } => Ok(HttpResponse { status, headers, body: body.0 }),
            Answer::Error(error) => Err(error),
            Answer::Llm { .. } | Answer::Value(_) | Answer::Taken => Err(odd()),
        }
    }
}

impl From<Answer> for Result<Option<Vec<u8>>, ServiceError> {
    fn from(answer: Answer) -> Self {
        match answer {
            Answer::Value(value) => Ok(value.map(|value| value.0)),
            Answer::Error(error) => Err(error),
            Answer::Llm { .. } | Answer::Http { .. } | Answer::Taken => Err(odd()),
        }
    }
}

impl From<Answer> for Result<(), ServiceError> {
    fn from(answer: Answer) -> Self {
        match answer {
            Answer::Taken => Ok(()),
            Answer::Error(error) => Err(error),
            Answer::Llm { .. } | Answer::Http { .. } | Answer::Value(_) => Err(odd()),
        }
    }
}
