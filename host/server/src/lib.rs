//! The engine over HTTP: OpenAI's doors for clients, token-in/token-out for orchestrators, and the trainer's doors.
//!
//! Owns HTTP: routes, bodies, the form of answers and errors, who may come in, and what is counted. Must not know files,
//! configuration or where weights come from ([`Weights`] is asked), nor how requests are batched (the engine's
//! [`Handle`] is).

mod access;
mod adapters;
mod admin;
mod app;
mod asked;
mod broadcast;
mod chat;
mod clock;
mod completions;
mod error;
mod fields;
mod generate;
mod guided;
mod messages;
mod metrics;
mod pause;
mod probes;
mod sampling;
mod sequence;
mod serve;
mod sse;
mod stream_options;
mod text;
mod tokens;
mod wire;

pub use adapters::AdapterLimits;
pub use app::{Options, Weights};
pub use serve::serve;

use app::App;
use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::http::{Method, StatusCode, Uri};
use axum::middleware::from_fn_with_state;
use axum::routing::{get, post};
use error::ApiError;
use prl_inference::Handle;
use prl_render::Renderer;
use std::sync::Arc;

/// All doors of an engine.
pub fn router(engine: Handle, renderer: Arc<Renderer>, weights: Arc<dyn Weights>, options: Options) -> Router {
    let limit = options.body_limit;
    let app = Arc::new(App::new(engine, renderer, weights, options));
    let public = Router::new()
        .route("/v1/models", get(probes::models))
        .route("/v1/chat/completions", post(chat::chat))
        .route("/v1/completions", post(completions::completions))
        .route("/inference/v1/generate", post(generate::generate))
        .route("/tokenize", post(tokens::tokenize))
        .route("/detokenize", post(tokens::detokenize))
        .route_layer(from_fn_with_state(app.clone(), access::public));
    let admin = Router::new()
        .route("/pause", post(admin::pause))
        .route("/resume", post(admin::resume))
        .route("/update_weights", post(admin::update_weights))
        .route("/init_broadcaster", post(broadcast::init_broadcaster))
        .route("/load_lora_adapter", post(adapters::load))
        .route("/unload_lora_adapter", post(adapters::unload))
        .route("/v1/load_lora_adapter", post(adapters::load))
        .route("/v1/unload_lora_adapter", post(adapters::unload))
        .route_layer(from_fn_with_state(app.clone(), access::admin));
    let probes = Router::new()
        .route("/health", get(probes::health))
        .route("/liveness", get(probes::liveness))
        .route("/metrics", get(probes::metrics));
    public
        .merge(admin)
        .merge(probes)
        .fallback(nothing_here)
        .method_not_allowed_fallback(another_method)
        .layer(DefaultBodyLimit::max(limit))
        .layer(from_fn_with_state(app.clone(), access::host))
        .with_state(app)
}

async fn nothing_here(method: Method, uri: Uri) -> ApiError {
    ApiError::new(StatusCode::NOT_FOUND, format!("there is no door {method} {}", uri.path())).code("no_such_door")
}

async fn another_method(method: Method, uri: Uri) -> ApiError {
    let message = format!("{} does not take {method}", uri.path());
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, message).code("method_not_allowed")
}
