//! Requests that nobody should send: each is an error of the caller's, in OpenAI's form, and the server goes on.

use crate::bench::{Bench, options, post, refused, user, with};
use axum::body::Body;
use axum::http::{Request, StatusCode, header};
use prl_inference::EngineConfig;
use prl_server::Options;
use serde_json::{Value, json};

/// Wrong values of fields that several doors have.
fn shared() -> Vec<Value> {
    vec![
        json!({"temperature": -1}),
        json!({"temperature": "hot"}),
        json!({"temperature": 1e300}),
        json!({"temperature": 1e-45}),
        json!({"temperature": [1]}),
        json!({"top_p": 0}),
        json!({"top_p": 1.5}),
        json!({"top_p": true}),
        json!({"top_k": -2}),
        json!({"top_k": 1.5}),
        json!({"top_k": i64::MIN}),
        json!({"min_p": -0.1}),
        json!({"min_p": 2}),
        json!({"n": 0}),
        json!({"n": -1}),
        json!({"n": 1_000_000_000}),
        json!({"n": u64::MAX}),
        json!({"n": "two"}),
        json!({"n": 2.5}),
        json!({"max_tokens": 0}),
        json!({"max_tokens": -5}),
        json!({"max_tokens": 1.5}),
        json!({"max_tokens": "ten"}),
        json!({"min_tokens": 9, "max_tokens": 3}),
        json!({"min_tokens": -1}),
        json!({"seed": 1.5}),
        json!({"seed": "x"}),
        json!({"seed": 1e30}),
        json!({"stop": [""]}),
        json!({"stop": ""}),
        json!({"stop": 7}),
        json!({"stop": [1]}),
        json!({"stop": {"a": 1}}),
        json!({"stop_token_ids": [-1]}),
        json!({"stop_token_ids": "end"}),
        json!({"stop_token_ids": [1e20]}),
        json!({"ignore_eos": "yes"}),
        json!({"skip_special_tokens": 1}),
        json!({"logit_bias": {"x": 1}}),
        json!({"logit_bias": {"5": 101}}),
        json!({"logit_bias": {"5": "1"}}),
        json!({"logit_bias": {"99999999": 1}}),
        json!({"logit_bias": {"-1": 1}}),
        json!({"logit_bias": [1]}),
        json!({"presence_penalty": 2.1}),
        json!({"presence_penalty": "much"}),
        json!({"frequency_penalty": -2.5}),
        json!({"frequency_penalty": 1e300}),
        json!({"repetition_penalty": 0}),
        json!({"repetition_penalty": -1}),
        json!({"repetition_penalty": 1e30}),
        json!({"repetition_penalty": [1]}),
        json!({"best_of": 4}),
        json!({"use_beam_search": true}),
        json!({"bad_words": ["x"]}),
        json!({"prompt_logprobs": -1}),
        json!({"prompt_logprobs": 1000}),
        json!({"no_such_field": 1}),
        json!({"guided_regex": "("}),
        json!({"guided_regex": 5}),
        json!({"guided_regex": "(?=a)"}),
        json!({"guided_regex": "[^\\s\\S]"}),
        json!({"guided_json": 5}),
        json!({"guided_json": []}),
        json!({"guided_json": "{"}),
        json!({"guided_json": "[1]"}),
        json!({"guided_json": false}),
        json!({"guided_json": {"type": "objekt"}}),
        json!({"guided_json": {"$ref": "#"}}),
        json!({"guided_json": {"$ref": "#/$defs/missing"}}),
        json!({"guided_json": {"not": {}}}),
        json!({"guided_json": {"const": "x".repeat(300 << 10)}}),
        json!({"guided_choice": []}),
        json!({"guided_choice": "a"}),
        json!({"guided_choice": ["a", 1]}),
        json!({"guided_choice": {"a": 1}}),
        json!({"guided_grammar": ""}),
        json!({"guided_grammar": "hello"}),
        json!({"guided_grammar": "start: missing"}),
        json!({"guided_grammar": 7}),
        json!({"guided_regex": "a", "guided_choice": ["a"]}),
        json!({"guided_regex": "a", "structured_outputs": {"regex": "a"}}),
        json!({"guided_regex": "a", "guided_whitespace_pattern": " "}),
        json!({"guided_regex": "a", "guided_decoding_backend": "outlines"}),
        json!({"structured_outputs": {}}),
        json!({"structured_outputs": 5}),
        json!({"structured_outputs": ["regex"]}),
        json!({"structured_outputs": {"xml": "a"}}),
        json!({"structured_outputs": {"regex": "("}}),
        json!({"structured_outputs": {"regex": "a", "json": {}}}),
        json!({"structured_outputs": {"json_object": "yes"}}),
        json!({"structured_outputs": {"json_object": false}}),
        json!({"structured_outputs": {"structural_tag": "{}"}}),
        json!({"structured_outputs": {"regex": "a", "disable_any_whitespace": true}}),
        json!({"structured_outputs": {"regex": "a", "whitespace_pattern": " "}}),
    ]
}

fn framing() -> Vec<Value> {
    vec![
        json!({"model": "another"}),
        json!({"model": 5}),
        json!({"stream": "yes"}),
        json!({"stream_options": {"include_usage": true}}),
        json!({"stream": true, "stream_options": {"x": 1}}),
        json!({"stream": true, "stream_options": [1]}),
        json!({"stream": true, "prompt_logprobs": 1}),
        json!({"cache_salt": ""}),
        json!({"cache_salt": 5}),
        json!({"priority": 3}),
        json!({"request_id": 5}),
        json!({"request_id": "x".repeat(300)}),
        json!({"response_format": "json_object"}),
        json!({"response_format": {}}),
        json!({"response_format": {"type": "xml"}}),
        json!({"response_format": {"type": 5}}),
        json!({"response_format": {"type": "json_object", "schema": {}}}),
        json!({"response_format": {"type": "json_schema"}}),
        json!({"response_format": {"type": "json_schema", "json_schema": 5}}),
        json!({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}),
        json!({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": 5}}}),
        json!({"response_format": {"type": "json_schema", "json_schema": {"name": 5, "schema": {}}}}),
        json!({"response_format": {"type": "json_schema", "json_schema": {"strict": "yes", "schema": {}}}}),
        json!({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "nothing"}}}}),
        json!({"response_format": {"type": "json_schema", "json_schema": {"schema": {}, "what": 1}}}),
        json!({"response_format": {"type": "json_object"}, "guided_regex": "a"}),
        json!({"response_format": {"type": "json_object"}, "structured_outputs": {"json": {}}}),
    ]
}

fn chats() -> Vec<Value> {
    let message = |m: Value| json!({"messages": [m]});
    vec![
        json!({"messages": []}),
        json!({"messages": null}),
        json!({"messages": "hi"}),
        json!({"messages": ["hi"]}),
        json!({"messages": [[]]}),
        message(json!({})),
        message(json!({"role": "robot", "content": "x"})),
        message(json!({"role": 5, "content": "x"})),
        message(json!({"role": "user"})),
        message(json!({"role": "user", "content": 5})),
        message(json!({"role": "user", "content": {"text": "x"}})),
        message(json!({"role": "user", "content": [{"type": "text"}]})),
        message(json!({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]})),
        message(json!({"role": "user", "content": [{"type": "input_audio"}]})),
        message(json!({"role": "user", "content": [5]})),
        message(json!({"role": "user", "content": "x", "tool_calls": [{"id": "a", "function": {"name": "f"}}]})),
        message(json!({"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]})),
        message(json!({"role": "assistant", "tool_calls": [{"id": "a"}]})),
        message(json!({"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": 5}}]})),
        message(json!({"role": "assistant", "tool_calls": 5})),
        message(json!({"role": "user", "content": "x", "what": 1})),
        json!({"tools": {}}),
        json!({"tools": [5]}),
        json!({"tools": [{"type": "code"}]}),
        json!({"tools": [{"type": "function", "function": {}}]}),
        json!({"tools": [{"type": "function", "function": {"name": "f", "parameters": 5}}]}),
        json!({"tool_choice": "auto"}),
        json!({"tool_choice": "always"}),
        json!({"tool_choice": 5}),
        json!({"functions": [{"name": "f"}]}),
        json!({"logprobs": 5}),
        json!({"top_logprobs": 2}),
        json!({"logprobs": true, "top_logprobs": 21}),
        json!({"logprobs": true, "top_logprobs": -1}),
        json!({"chat_template_kwargs": []}),
        json!({"chat_template": "{{ x }}"}),
        json!({"documents": [{"a": 1}]}),
        json!({"continue_final_message": true}),
        json!({"add_generation_prompt": "no"}),
        json!({"modalities": ["audio"]}),
        json!({"echo": true}),
        json!({"reasoning_effort": "high"}),
        with(
            &message(json!({"role": "assistant", "content": ""})),
            json!({"add_generation_prompt": false, "continue_final_message": true}),
        ),
    ]
}

fn prompts() -> Vec<Value> {
    vec![
        json!({"prompt": null}),
        json!({"prompt": []}),
        json!({"prompt": [[]]}),
        json!({"prompt": ""}),
        json!({"prompt": 5}),
        json!({"prompt": {"a": 1}}),
        json!({"prompt": [1, "a"]}),
        json!({"prompt": ["a", null]}),
        json!({"prompt": [[1, -1]]}),
        json!({"prompt": [1.5]}),
        json!({"prompt": [5000]}),
        json!({"prompt": [u64::MAX]}),
        json!({"prompt": vec![5; 512]}),
        json!({"prompt": vec!["a"; 2000]}),
        json!({"prompt": vec!["a"; 600], "n": 600}),
        json!({"suffix": "x"}),
        json!({"logprobs": true}),
        json!({"logprobs": 21}),
        json!({"echo": 5}),
    ]
}

#[tokio::test]
async fn every_malformed_body_is_the_callers_error() {
    let bench = Bench::new();
    let mut corpus: Vec<(&str, Value)> = Vec::new();
    let chat = json!({"messages": user("hi"), "max_tokens": 2});
    let completion = json!({"prompt": "abc", "max_tokens": 2});
    let ids = json!({"token_ids": [65], "sampling_params": {"max_tokens": 2}});
    for wrong in shared() {
        corpus.push(("/v1/chat/completions", with(&chat, wrong.clone())));
        corpus.push(("/v1/completions", with(&completion, wrong.clone())));
        let params = with(&json!({"max_tokens": 2}), wrong);
        corpus.push(("/inference/v1/generate", with(&ids, json!({"sampling_params": params}))));
    }
    for wrong in framing() {
        corpus.push(("/v1/chat/completions", with(&chat, wrong.clone())));
        corpus.push(("/v1/completions", with(&completion, wrong)));
    }
    corpus.extend(chats().into_iter().map(|wrong| ("/v1/chat/completions", with(&chat, wrong))));
    corpus.extend(prompts().into_iter().map(|wrong| ("/v1/completions", with(&completion, wrong))));
    for wrong in [
        json!({"token_ids": []}),
        json!({"token_ids": null}),
        json!({"token_ids": "abc"}),
        json!({"token_ids": [-1]}),
        json!({"token_ids": [267]}),
        json!({"token_ids": [[1]]}),
        json!({"token_ids": vec![1; 600]}),
        json!({"sampling_params": 5}),
        json!({"sampling_params": []}),
        json!({"messages": []}),
        json!({"max_tokens": 5}),
        json!({"response_format": {"type": "json_object"}}),
        json!({"guided_regex": "a"}),
    ] {
        corpus.push(("/inference/v1/generate", with(&ids, wrong)));
    }
    for (path, body) in [
        ("/tokenize", json!({})),
        ("/tokenize", json!({"prompt": 5})),
        ("/tokenize", json!({"prompt": "a", "add_special_tokens": 5})),
        ("/tokenize", json!({"prompt": "a", "model": "x"})),
        ("/detokenize", json!({})),
        ("/detokenize", json!({"tokens": [99999]})),
        ("/detokenize", json!({"tokens": "abc"})),
        ("/update_weights", json!({"weight_dir": ""})),
        ("/update_weights", json!({"weight_dir": "/", "version": -1})),
        ("/resume", json!({"x": 1})),
    ] {
        corpus.push((path, body));
    }
    assert!(corpus.len() > 250);
    for (path, body) in &corpus {
        let (status, answer) = bench.post(path, body).await;
        assert!(status.is_client_error(), "{path} {body}: {status} {answer}");
        refused(status, &answer);
    }
    assert_eq!(bench.handle.stats().running, 0);
    bench.ok("/v1/completions", completion).await;
}

#[tokio::test]
async fn bytes_that_are_no_request() {
    let bench = Bench::new();
    let deep = "[".repeat(10_000);
    for body in [
        &b""[..],
        b"{",
        b"null",
        b"[]",
        b"5",
        b"\"text\"",
        b"{\"prompt\": \"\xff\xfe\"}",
        b"{\"prompt\": \"\\ud800\"}",
        b"{\"prompt\": NaN}",
        b"{\"prompt\": \"a\"} x",
        b"{\"prompt\": 'a'}",
        b"\x00\x01\x02",
        deep.as_bytes(),
    ] {
        for path in ["/v1/chat/completions", "/v1/completions", "/inference/v1/generate", "/tokenize", "/detokenize"] {
            let (status, answer) = bench.send(post(path, body.to_vec())).await;
            assert_eq!(status, StatusCode::BAD_REQUEST, "{path}: {}", String::from_utf8_lossy(&answer));
            refused(status, &serde_json::from_slice(&answer).unwrap());
        }
    }
}

#[tokio::test]
async fn large_bodies_and_long_prompts() {
    let bench = Bench::new();
    let text = "word ".repeat(2 << 20);
    for (path, body) in [
        ("/v1/completions", json!({"prompt": text, "max_tokens": 1})),
        ("/v1/chat/completions", json!({"messages": user(&text), "max_tokens": 1})),
        ("/v1/completions", json!({"prompt": text, "max_tokens": 1, "stream": true})),
    ] {
        let (status, answer) = bench.post(path, &body).await;
        assert_eq!((status.as_u16(), &answer["error"]["code"]), (400, &json!("context_length_exceeded")), "{path}");
    }
    let small = Bench::with(EngineConfig::new(1, 512), Options { body_limit: 1000, ..options() });
    let (status, answer) = small.post("/v1/completions", &json!({"prompt": "a".repeat(2000)})).await;
    assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE);
    refused(status, &answer);
}

#[tokio::test]
async fn wrong_doors_and_methods() {
    let bench = Bench::new();
    for (method, path, want) in [
        ("GET", "/", 404),
        ("POST", "/v1/chat/completion", 404),
        ("GET", "/v1/chat/completions", 405),
        ("DELETE", "/v1/models", 405),
        ("GET", "/pause", 405),
        ("POST", "/health", 405),
        ("OPTIONS", "/v1/completions", 405),
        ("GET", "/v1/%ff", 404),
        ("POST", "/pause?mode=%zz", 400),
    ] {
        let request = Request::builder().method(method).uri(path).body(Body::empty()).unwrap();
        let (status, answer) = bench.send(request).await;
        assert_eq!(status.as_u16(), want, "{method} {path}");
        refused(status, &serde_json::from_slice(&answer).unwrap());
    }
    let mut request = post("/v1/completions", "{\"prompt\": \"a\"}");
    request.headers_mut().remove(header::CONTENT_TYPE);
    assert_eq!(bench.send(request).await.0, 400);
}
