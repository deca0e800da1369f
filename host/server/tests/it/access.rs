//! Keys, names of the machine, and web pages.

use crate::bench::{Bench, options, post, refused};
use axum::body::Body;
use axum::http::{Request, header};
use prl_inference::EngineConfig;
use prl_server::Options;
use serde_json::json;

async fn status(bench: &Bench, path: &str, key: Option<&str>) -> u16 {
    let mut request = post(path, json!({"prompt": "abc", "max_tokens": 1}).to_string());
    if matches!(path, "/v1/models" | "/health" | "/metrics") {
        request = Request::get(path).body(Body::empty()).unwrap();
    }
    if matches!(path, "/pause" | "/resume") {
        *request.body_mut() = Body::empty();
    }
    if let Some(key) = key {
        request.headers_mut().insert(header::AUTHORIZATION, format!("Bearer {key}").parse().unwrap());
    }
    bench.send(request).await.0.as_u16()
}

#[tokio::test]
async fn each_kind_of_door_has_its_key() {
    let with = |api: Option<&str>, admin: Option<&str>| {
        let (api_key, admin_key) = (api.map(str::to_owned), admin.map(str::to_owned));
        Bench::with(EngineConfig::new(8, 512), Options { api_key, admin_key, ..options() })
    };
    let bench = with(Some("public"), Some("trainer"));
    for (path, key, want) in [
        ("/v1/models", None, 401),
        ("/v1/models", Some("public"), 200),
        ("/v1/models", Some("trainer"), 401),
        ("/v1/completions", Some("publi"), 401),
        ("/v1/completions", Some("public"), 200),
        ("/tokenize", None, 401),
        ("/inference/v1/generate", None, 401),
        ("/resume", None, 401),
        ("/resume", Some("public"), 401),
        ("/resume", Some("trainer"), 200),
        ("/load_lora_adapter", None, 401),
        ("/health", None, 200),
        ("/metrics", None, 200),
        ("/nowhere", None, 404),
    ] {
        assert_eq!(status(&bench, path, key).await, want, "{path} {key:?}");
    }
    let (code, body) = bench.send(post("/v1/completions", "{}")).await;
    refused(code, &serde_json::from_slice(&body).unwrap());
    // One key guards everything.
    let bench = with(Some("public"), None);
    assert_eq!((status(&bench, "/resume", None).await, status(&bench, "/resume", Some("public")).await), (401, 200));
    // The trainer's doors alone.
    let bench = with(None, Some("trainer"));
    assert_eq!((status(&bench, "/v1/completions", None).await, status(&bench, "/resume", None).await), (200, 401));
}

#[tokio::test]
async fn pages_in_browsers_get_nowhere() {
    let bench = Bench::with(EngineConfig::new(8, 512), Options { loopback: true, ..options() });
    let send = async |host: &str, origin: Option<&str>, path: &str| {
        let mut request = post(path, Body::empty());
        request.headers_mut().insert(header::HOST, host.parse().unwrap());
        if let Some(origin) = origin {
            request.headers_mut().insert(header::ORIGIN, origin.parse().unwrap());
        }
        bench.send(request).await.0.as_u16()
    };
    assert_eq!(send("localhost:8000", None, "/resume").await, 200);
    assert_eq!(send("evil.example:8000", None, "/resume").await, 403);
    assert_eq!(send("127.0.0.1:8000", Some("http://evil.example"), "/resume").await, 403);
    // A form sends no JSON.
    let mut form = Request::post("/v1/completions").body(Body::from("{\"prompt\": \"a\"}")).unwrap();
    form.headers_mut().insert(header::HOST, "localhost".parse().unwrap());
    form.headers_mut().insert(header::CONTENT_TYPE, "text/plain".parse().unwrap());
    assert_eq!(bench.send(form).await.0, 400);
}
