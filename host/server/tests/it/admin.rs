//! The trainer's doors and what monitors ask.

use crate::bench::{Bench, LOST, folder, options, refused};
use base64::Engine as _;
use prl_inference::EngineConfig;
use serde_json::{Value, json};
use std::time::Duration;

#[tokio::test]
async fn a_pause_holds_requests_and_a_lease_ends_it() {
    let bench = Bench::new();
    let answer = bench.ok("/pause", json!({})).await;
    assert_eq!(answer, json!({"status": "paused", "lease_seconds": 600.0}));
    assert!(bench.handle.stats().paused);
    let asked = bench.ok("/v1/completions", json!({"prompt": "abc", "max_tokens": 2}));
    let held = tokio::time::timeout(Duration::from_millis(80), asked).await;
    assert!(held.is_err());
    bench.ok("/resume", json!({})).await;
    bench.ok("/v1/completions", json!({"prompt": "abc", "max_tokens": 2})).await;

    bench.ok("/pause", json!({"lease_seconds": 0.1})).await;
    // A later pause has the last word.
    bench.ok("/pause", json!({"lease_seconds": 0.3})).await;
    tokio::time::sleep(Duration::from_millis(180)).await;
    assert!(bench.handle.stats().paused);
    let asked = bench.ok("/v1/completions", json!({"prompt": "abc", "max_tokens": 2}));
    tokio::time::timeout(Duration::from_secs(20), asked).await.unwrap();

    // Nothing resumes what was resumed and paused again.
    bench.ok("/pause", json!({"lease_seconds": 0.05})).await;
    bench.ok("/resume", json!({})).await;
    bench.ok("/pause?mode=keep&clear_cache=false", json!({})).await;
    tokio::time::sleep(Duration::from_millis(120)).await;
    assert!(bench.handle.stats().paused);

    for bad in [json!({"lease_seconds": 0}), json!({"lease_seconds": "x"}), json!({"mode": "abort"}), json!({"x": 1})] {
        let (status, answer) = bench.post("/pause", &bad).await;
        refused(status, &answer);
    }
    let (status, answer) = bench.post("/pause?mode=abort", &json!({})).await;
    refused(status, &answer);
}

#[tokio::test]
async fn new_weights_are_taken_or_the_old_ones_stay() {
    let bench = Bench::new();
    let greedy = json!({"token_ids": [65, 66, 67, 68], "sampling_params": {"temperature": 0, "max_tokens": 8, "logprobs": 0, "ignore_eos": true}});
    let before = bench.ok("/inference/v1/generate", greedy.clone()).await;
    let scratch = tempfile::tempdir().unwrap();
    let copy = |name: &str| {
        let to = scratch.path().join(name);
        std::fs::create_dir(&to).unwrap();
        for file in ["config.json", "model.safetensors"] {
            std::fs::copy(folder().join(file), to.join(file)).unwrap();
        }
        to
    };
    let refuse = async |dir: Value, words: &str| {
        let (status, answer) = bench.post("/update_weights", &json!({"weight_dir": dir})).await;
        let message = refused(status, &answer);
        assert!(message.contains(words), "{message}");
    };
    refuse(json!(scratch.path().join("nowhere")), "No such file").await;
    refuse(Value::Null, "missing").await;
    refuse(json!(7), "must be a string").await;
    let shape = copy("shape");
    let config = std::fs::read_to_string(shape.join("config.json")).unwrap();
    std::fs::write(shape.join("config.json"), config.replace("\"num_hidden_layers\": 4", "\"num_hidden_layers\": 3"))
        .unwrap();
    refuse(json!(shape), "3 layers").await;
    let cut = copy("cut");
    let whole = std::fs::read(cut.join("model.safetensors")).unwrap();
    std::fs::write(cut.join("model.safetensors"), &whole[..whole.len() / 2]).unwrap();
    refuse(json!(cut), "damaged or cut short").await;
    let after = bench.ok("/inference/v1/generate", greedy.clone()).await;
    assert_eq!(after["choices"], before["choices"]);

    // Other weights: the last bytes are numbers.
    let other = copy("other");
    let mut bytes = whole.clone();
    let end = bytes.len();
    bytes[end - 200_000..].rotate_left(4);
    std::fs::write(other.join("model.safetensors"), bytes).unwrap();
    assert_eq!(
        bench.ok("/update_weights", json!({"weight_dir": other})).await,
        json!({"status": "updated", "version": 1, "updates": 1})
    );
    let new = bench.ok("/inference/v1/generate", greedy.clone()).await;
    assert_eq!(new["choices"][0]["policy_versions"], json!([{"version": 1, "tokens": 8}]));
    assert_ne!(new["choices"][0]["logprobs"], before["choices"][0]["logprobs"]);
    assert_eq!(bench.ok("/update_weights", json!({"weight_dir": folder(), "version": 9})).await["version"], 9);
    let back = bench.ok("/inference/v1/generate", greedy).await;
    assert_eq!(back["choices"][0]["logprobs"], before["choices"][0]["logprobs"]);
}

/// What a trainer of two servers asks the first one.
fn invitation(session: &str) -> Value {
    let id = base64::engine::general_purpose::STANDARD.encode([7; 128]);
    json!({"unique_id": id, "rank_offset": 0, "inference_world_size": 2, "session_id": session, "timeout": 5, "model": {}})
}

#[tokio::test]
async fn weights_come_over_the_communicator_that_was_joined_last() {
    let bench = Bench::new();
    let update = async |body: Value, words: &str| {
        let (status, answer) = bench.post("/update_weights", &body).await;
        let message = refused(status, &answer);
        assert!(message.contains(words), "{message}");
    };
    update(json!({"session_id": "a", "version": 3}), "`/init_broadcaster`").await;
    let joined = json!({"status": "joined", "rank": 1, "world_size": 3});
    assert_eq!(bench.ok("/init_broadcaster", invitation("a")).await, joined);
    update(json!({"version": 3}), "`session_id` is missing").await;
    assert_eq!(
        bench.ok("/update_weights", json!({"session_id": "a", "version": 3})).await,
        json!({"status": "updated", "version": 3, "updates": 1})
    );
    // A folder will do at any time.
    assert_eq!(bench.ok("/update_weights", json!({"weight_dir": folder()})).await["version"], 4);

    bench.ok("/init_broadcaster", invitation("b")).await;
    update(json!({"session_id": "a", "version": 5}), "another one took it").await;
    update(json!({"session_id": "b", "version": LOST}), "nobody sent it").await;
    update(json!({"session_id": "b", "version": 5}), "the communicator was left").await;
    assert_eq!(bench.handle.stats().version.0, 4);
}

#[tokio::test]
async fn one_who_does_not_come_does_not_keep_others_out() {
    let bench = Bench::new();
    let mut alone = invitation("gone");
    alone["model"] = json!({"waits": true});
    let (waiting, joined) = tokio::join!(bench.post("/init_broadcaster", &alone), async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        bench.ok("/init_broadcaster", invitation("here")).await
    });
    assert!(refused(waiting.0, &waiting.1).contains("called off"));
    assert_eq!(joined["status"], "joined");
    bench.ok("/update_weights", json!({"session_id": "here", "version": 1})).await;
}

#[tokio::test]
async fn an_invitation_that_makes_no_sense_is_refused() {
    let bench = Bench::new();
    for (field, value, words) in [
        ("unique_id", json!("AAAA"), "128 bytes"),
        ("unique_id", json!("?"), "base64"),
        ("unique_id", Value::Null, "missing"),
        ("rank_offset", json!(2), "below"),
        ("rank_offset", json!(-1), "integer"),
        ("inference_world_size", json!(0), "below"),
        ("timeout", json!(0), "above 0"),
        ("session_id", json!(""), "1 to 256"),
        ("model", Value::Null, "missing"),
        ("quantize_in_weight_transfer", json!(true), "not supported"),
        ("port", json!(29501), "port"),
        ("model", json!({"refused": true}), "there is no GPU"),
    ] {
        let mut body = invitation("x");
        body[field] = value;
        let (status, answer) = bench.post("/init_broadcaster", &body).await;
        let message = refused(status, &answer);
        assert!(message.contains(words), "{field}: {message}");
    }
}

#[tokio::test]
async fn health_and_liveness_tell_the_engines_state() {
    let mut bench = Bench::new();
    assert_eq!(bench.get("/health").await.0, 200);
    assert_eq!(bench.get("/liveness").await.0, 200);
    bench.slow(Duration::from_millis(600));
    let busy = bench.ok("/v1/completions", json!({"prompt": "abc", "max_tokens": 1}));
    let ask = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        (bench.get("/health").await, bench.get("/liveness").await)
    };
    let (_, (health, liveness)) = tokio::join!(busy, ask);
    assert_eq!((health.0.as_u16(), liveness.0.as_u16()), (200, 503));
    assert!(liveness.1.contains("engine_unresponsive"), "{}", liveness.1);
    bench.engine.take().unwrap().shutdown();
    for path in ["/health", "/liveness"] {
        let (status, body) = bench.get(path).await;
        assert_eq!(status, 503, "{body}");
        assert!(body.contains("shut down"), "{body}");
    }
    let (status, _) = bench.post("/v1/completions", &json!({"prompt": "abc"})).await;
    assert_eq!(status, 503);
}

#[tokio::test]
async fn a_full_queue_is_told_to_come_back() {
    let bench = Bench::with(EngineConfig { max_waiting: 2, ..EngineConfig::new(1, 512) }, options());
    let many = json!({"prompt": "abc", "n": 16, "max_tokens": 3});
    for stream in [false, true] {
        let mut request = many.clone();
        request["stream"] = json!(stream);
        let (status, answer) = bench.post("/v1/completions", &request).await;
        assert_eq!((status.as_u16(), &answer["error"]["code"]), (503, &json!("engine_busy")));
    }
    bench.ok("/v1/completions", json!({"prompt": "abc", "max_tokens": 3})).await;
}

#[tokio::test]
async fn metrics_count() {
    let bench = Bench::new();
    for _ in 0..2 {
        let request =
            json!({"token_ids": vec![65; 40], "sampling_params": {"max_tokens": 5, "ignore_eos": true, "n": 2}});
        bench.ok("/inference/v1/generate", request).await;
    }
    bench.says(3, "a");
    bench.ok("/v1/completions", json!({"prompt": "abc"})).await;
    let (status, text) = bench.get("/metrics").await;
    assert_eq!(status, 200);
    let value = |name: &str| -> f64 {
        let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("no {name}"));
        line.rsplit_once(' ').unwrap().1.parse().unwrap()
    };
    assert_eq!(value("vllm:prompt_tokens_total"), 163.0);
    assert_eq!(value("vllm:generation_tokens_total"), 22.0);
    assert_eq!(value("vllm:prefix_cache_queries_total"), 163.0);
    assert!(value("vllm:prefix_cache_hits_total") >= 40.0);
    assert_eq!((value("vllm:num_requests_running"), value("vllm:num_requests_waiting")), (0.0, 0.0));
    assert!(value("vllm:kv_cache_usage_perc") < 0.1);
    assert_eq!(value("vllm:num_preemptions_total"), 0.0);
    for (reason, count) in [("length", 4.0), ("stop", 1.0), ("abort", 0.0)] {
        let labels = "engine=\"0\",model_name=\"tiny\"";
        assert_eq!(value(&format!("vllm:request_success_total{{{labels},finished_reason=\"{reason}\"}}")), count);
    }
    for histogram in ["vllm:time_to_first_token_seconds", "vllm:e2e_request_latency_seconds"] {
        assert_eq!(value(&format!("{histogram}_count")), 5.0);
        assert!(value(&format!("{histogram}_sum")) > 0.0);
    }
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        assert!(line.rsplit_once(' ').unwrap().1.parse::<f64>().is_ok(), "{line}");
    }
    let (_, models) = bench.get("/v1/models").await;
    let models: Value = serde_json::from_str(&models).unwrap();
    assert_eq!((&models["data"][0]["id"], &models["data"][0]["max_model_len"]), (&json!("tiny"), &json!(512)));
}
