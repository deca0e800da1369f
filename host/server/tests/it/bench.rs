//! An engine, its doors, and a model that says what a test wants it to.

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode, header};
use prl_inference::{Engine, EngineConfig, Handle};
use prl_kernels::Meter;
use prl_model::{
    Adapter, Answer, Cache, Decoder, Device, Extend, Kernels, ModelConfig, ModelError, Seat, Snapshot, Want,
};
use prl_render::{Renderer, RendererOptions};
use prl_server::{Options, Weights};
use prl_types::{PolicyVersion, TokenId};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;
use tower::ServiceExt;

/// The example's warmed model: a byte-level tokenizer of 267 tokens, a context of 512.
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/reverse_text/model")
}

static DECODER: LazyLock<Decoder> =
    LazyLock::new(|| Decoder::load_hf(&folder(), &Device::Cpu.open().unwrap()).unwrap());

/// ChatML with tools, reasoning that may be switched off, and tool calls as text.
const TEMPLATE: &str = "{% if tools %}<|im_start|>tools\n{{ tools | tojson }}<|im_end|>\n{% endif %}\
    {% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% if m.tool_calls %}{{ m.tool_calls | tojson }}\
    {% endif %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n\
    {% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}";

/// What a scripted model says next: tokens by their place in the sequence.
#[derive(Default)]
struct Script {
    from: usize,
    ids: Vec<TokenId>,
    end: TokenId,
}

/// Computes with real weights; where there is a script, says that instead.
struct Scripted {
    inner: Arc<dyn Snapshot>,
    script: Arc<Mutex<Option<Script>>>,
    slow: Arc<Mutex<Duration>>,
}

impl Snapshot for Scripted {
    fn config(&self) -> &ModelConfig {
        self.inner.config()
    }

    fn new_cache(&self, meter: &Meter) -> Cache {
        self.inner.new_cache(meter)
    }

    fn takes_adapters(&self) -> bool {
        self.inner.takes_adapters()
    }

    fn extend(&self, batch: &mut [Extend<'_>]) -> Result<Vec<Answer>, ModelError> {
        std::thread::sleep(*self.slow.lock().unwrap());
        let wants = batch.iter().filter(|w| w.want != Want::Nothing);
        let places: Vec<(usize, Want)> = wants.map(|w| (w.cache.len() + w.ids.len(), w.want)).collect();
        let mut answers = self.inner.extend(batch)?;
        if let Some(script) = &*self.script.lock().unwrap() {
            for ((place, want), answer) in places.into_iter().zip(&mut answers) {
                if want == Want::AllLogits {
                    continue;
                }
                let said = place.checked_sub(script.from).and_then(|i| script.ids.get(i)).unwrap_or(&script.end);
                let mut logits = vec![0.0; self.config().vocab_size];
                logits[*said as usize] = 60.0;
                *answer = Answer::Logits(logits);
            }
        }
        Ok(answers)
    }

    fn logprob(&self, logits: &[f32], id: TokenId, temperature: f32) -> f32 {
        self.inner.logprob(logits, id, temperature)
    }
}

/// Folders, as the binary has them, without its care for devices.
struct Folders {
    slow: Arc<Mutex<Duration>>,
    loads: Arc<AtomicUsize>,
    /// The place in the communicator that was joined last.
    seat: Arc<Mutex<Option<Seat>>>,
}

/// A version that no trainer sends.
pub const LOST: u64 = 666;

impl Weights for Folders {
    fn load(&self, dir: &Path) -> Result<Arc<dyn Snapshot>, String> {
        self.loads.fetch_add(1, Ordering::SeqCst);
        std::thread::sleep(*self.slow.lock().unwrap());
        let shape = ModelConfig::load(dir).map_err(|e| e.to_string())?;
        if shape.layers != DECODER.config().layers {
            return Err(format!("it has {} layers, not {}", shape.layers, DECODER.config().layers));
        }
        let decoder = Decoder::load_hf(dir, &Device::Cpu.open().unwrap()).map_err(|e| e.to_string())?;
        decoder.snapshot(Kernels::Fast).map_err(|e| e.to_string())
    }

    fn adapter(&self, dir: &Path) -> Result<Adapter, String> {
        Adapter::load(dir, DECODER.config()).map_err(|e| e.to_string())
    }

    fn join(&self, seat: Seat, model: &Value) -> Result<(), String> {
        if model["refused"] == true {
            return Err("there is no GPU".into());
        }
        *self.seat.lock().unwrap() = None;
        if model["waits"] == true {
            // Others that do not come.
            while !seat.called_off.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(5));
            }
            return Err("it was called off".into());
        }
        *self.seat.lock().unwrap() = Some(seat);
        Ok(())
    }

    fn receive(&self, version: PolicyVersion) -> Result<Arc<dyn Snapshot>, String> {
        self.seat.lock().unwrap().as_ref().ok_or("the communicator was left")?;
        if version.0 == LOST {
            *self.seat.lock().unwrap() = None;
            return Err("nobody sent it".into());
        }
        DECODER.snapshot(Kernels::Fast).map_err(|e| e.to_string())
    }
}

pub struct Bench {
    pub router: Router,
    pub engine: Option<Engine>,
    pub handle: Handle,
    pub renderer: Arc<Renderer>,
    script: Arc<Mutex<Option<Script>>>,
    slow: Arc<Mutex<Duration>>,
    /// Folders that were asked for.
    pub loads: Arc<AtomicUsize>,
}

pub fn options() -> Options {
    Options {
        model: "tiny".into(),
        liveness_timeout: Duration::from_millis(200),
        api_key: None,
        admin_key: None,
        seed: 0,
        adapters: None,
        body_limit: 32 << 20,
        loopback: false,
    }
}

impl Bench {
    pub fn new() -> Self {
        Self::with(EngineConfig::new(8, 512), options())
    }

    pub fn with(config: EngineConfig, options: Options) -> Self {
        let template = RendererOptions { chat_template: Some(TEMPLATE.into()), ..Default::default() };
        Self::of(config, options, Renderer::load(&folder(), template).unwrap())
    }

    /// Prompts end inside the reasoning; `</think>` is a token, or text like any other.
    pub fn thinking(token: bool) -> Self {
        let scratch = tempfile::tempdir().unwrap();
        for file in std::fs::read_dir(folder()).unwrap().map(|file| file.unwrap().path()) {
            if file.extension().is_some_and(|kind| kind == "json") {
                std::fs::copy(&file, scratch.path().join(file.file_name().unwrap())).unwrap();
            }
        }
        if token {
            let path = scratch.path().join("tokenizer.json");
            let tokenizer = std::fs::read_to_string(&path).unwrap().replace("</reversed_text>", "</think>");
            std::fs::write(path, tokenizer).unwrap();
        }
        let opened = TEMPLATE.replace("assistant\n", "assistant\n<think>\n");
        let template = RendererOptions { chat_template: Some(opened), ..Default::default() };
        Self::of(EngineConfig::new(8, 512), options(), Renderer::load(scratch.path(), template).unwrap())
    }

    fn of(config: EngineConfig, options: Options, renderer: Renderer) -> Self {
        let (script, slow) = (Arc::<Mutex<Option<Script>>>::default(), Arc::<Mutex<Duration>>::default());
        let inner = DECODER.snapshot(Kernels::Fast).unwrap();
        let snapshot = Scripted { inner, script: script.clone(), slow: slow.clone() };
        let engine = Engine::start(Arc::new(snapshot), PolicyVersion(0), config).unwrap();
        let renderer = Arc::new(renderer);
        let handle = engine.handle();
        let loads = Arc::<AtomicUsize>::default();
        let folders = Folders { slow: slow.clone(), loads: loads.clone(), seat: Arc::default() };
        let router = prl_server::router(handle.clone(), renderer.clone(), Arc::new(folders), options);
        Bench { router, engine: Some(engine), handle, renderer, script, slow, loads }
    }

    /// Makes every step of the model, and every folder of weights, take so long.
    pub fn slow(&self, time: Duration) {
        *self.slow.lock().unwrap() = time;
    }

    /// From now on, what follows `from` tokens is `text` and the end of the turn.
    pub fn says(&self, from: usize, text: &str) {
        self.says_ids(from, self.renderer.tokenizer().encode(text).unwrap());
    }

    pub fn says_ids(&self, from: usize, ids: Vec<TokenId>) {
        *self.script.lock().unwrap() = Some(Script { from, ids, end: self.renderer.stop_token_ids()[0] });
    }

    /// Says `text` in answer to this chat request.
    pub async fn answers(&self, request: &Value, text: &str) {
        let mut asked = json!({});
        for field in ["messages", "tools", "chat_template_kwargs", "add_generation_prompt", "continue_final_message"] {
            asked[field] = request[field].clone();
        }
        let count = self.post("/tokenize", &asked).await.1["count"].as_u64().unwrap();
        self.says(count as usize, text);
    }

    pub async fn send(&self, request: Request<Body>) -> (StatusCode, Vec<u8>) {
        let response = self.router.clone().oneshot(request).await.unwrap();
        let status = response.status();
        (status, axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap().to_vec())
    }

    pub async fn post(&self, path: &str, body: &Value) -> (StatusCode, Value) {
        let (status, body) = self.send(post(path, body.to_string())).await;
        (status, serde_json::from_slice(&body).unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&body))))
    }

    /// Must go well.
    #[track_caller]
    pub fn ok(&self, path: &'static str, body: Value) -> impl Future<Output = Value> {
        let place = std::panic::Location::caller();
        async move {
            let (status, answer) = self.post(path, &body).await;
            assert_eq!(status, StatusCode::OK, "{place}: {answer}");
            answer
        }
    }

    pub async fn get(&self, path: &str) -> (StatusCode, String) {
        let (status, body) = self.send(Request::get(path).body(Body::empty()).unwrap()).await;
        (status, String::from_utf8(body).unwrap())
    }

    /// The pieces of a streamed answer.
    pub async fn pieces(&self, path: &str, body: &Value) -> Vec<Value> {
        let (status, answer) = self.send(post(path, body.to_string())).await;
        let text = String::from_utf8(answer).unwrap();
        assert_eq!(status, StatusCode::OK, "{text}");
        let mut events: Vec<&str> = text.split("\n\n").filter(|event| !event.is_empty()).collect();
        assert_eq!(events.pop(), Some("data: [DONE]"));
        let data = events.into_iter().map(|event| event.strip_prefix("data: ").unwrap());
        data.map(|data| serde_json::from_str(data).unwrap()).collect()
    }
}

pub fn post(path: &str, body: impl Into<Body>) -> Request<Body> {
    Request::post(path).header(header::CONTENT_TYPE, "application/json").body(body.into()).unwrap()
}

/// A conversation of one message.
pub fn user(text: &str) -> Value {
    json!([{"role": "user", "content": text}])
}

/// `base` with `more` fields.
pub fn with(base: &Value, more: Value) -> Value {
    let mut all = base.clone();
    all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    all
}

/// Must be refused in the form of OpenAI's errors; returns the message.
#[track_caller]
pub fn refused(status: StatusCode, answer: &Value) -> String {
    assert!(status.is_client_error(), "{status}: {answer}");
    let error = answer["error"].as_object().unwrap_or_else(|| panic!("{answer}"));
    let keys: Vec<&str> = error.keys().map(String::as_str).collect();
    assert_eq!(keys, ["message", "type", "param", "code"]);
    assert!(error["type"].is_string() && !error["code"].is_null());
    let message = error["message"].as_str().unwrap();
    assert!(!message.is_empty());
    message.to_owned()
}
