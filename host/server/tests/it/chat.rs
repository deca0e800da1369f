//! `/v1/chat/completions`.

use crate::bench::{Bench, refused, user, with};
use serde_json::{Value, json};

/// What the pieces of a choice add up to: reasoning, content, calls, ids, log-probabilities, how it ended.
fn sum(pieces: &[Value], index: u64) -> Value {
    let (mut reasoning, mut content, mut calls) = (String::new(), String::new(), Vec::new());
    let (mut ids, mut logprobs, mut end) = (Vec::new(), Vec::new(), Value::Null);
    let choices = pieces.iter().flat_map(|p| p["choices"].as_array().unwrap());
    for choice in choices.filter(|c| c["index"] == index) {
        assert!(end.is_null(), "a piece after the last one");
        let delta = &choice["delta"];
        reasoning += delta["reasoning_content"].as_str().unwrap_or_default();
        content += delta["content"].as_str().unwrap_or_default();
        calls.extend(delta["tool_calls"].as_array().into_iter().flatten().map(|c| c["function"].clone()));
        ids.extend(choice["token_ids"].as_array().into_iter().flatten().cloned());
        logprobs.extend(choice["logprobs"]["content"].as_array().into_iter().flatten().cloned());
        end = choice["finish_reason"].clone();
    }
    json!([reasoning, content, calls, ids, logprobs, end])
}

/// The same of a choice of a whole answer.
fn parts(choice: &Value) -> Value {
    let message = &choice["message"];
    let calls: Vec<&Value> = message["tool_calls"].as_array().into_iter().flatten().map(|c| &c["function"]).collect();
    json!([
        message["reasoning_content"].as_str().unwrap_or_default(),
        message["content"].as_str().unwrap_or_default(),
        calls,
        choice["token_ids"].as_array().cloned().unwrap_or_default(),
        choice["logprobs"]["content"].as_array().cloned().unwrap_or_default(),
        choice["finish_reason"],
    ])
}

fn tools() -> Value {
    json!([{"type": "function", "function": {"name": "get", "description": "d", "parameters": {"type": "object"}}}])
}

#[tokio::test]
async fn an_answer_has_openais_form() {
    let bench = Bench::new();
    let request =
        json!({"model": "tiny", "messages": user("hi"), "max_completion_tokens": 50, "user": "me", "store": null});
    bench.answers(&request, "héllo ✓").await;
    let answer = bench.ok("/v1/chat/completions", request).await;
    assert!(answer["id"].as_str().unwrap().starts_with("chatcmpl-"));
    assert_eq!((answer["object"].as_str(), answer["model"].as_str()), (Some("chat.completion"), Some("tiny")));
    let choice = &answer["choices"][0];
    assert_eq!(choice["message"], json!({"role": "assistant", "content": "héllo ✓", "refusal": null}));
    assert_eq!((&choice["finish_reason"], &choice["stop_reason"]), (&json!("stop"), &Value::Null));
    let usage = &answer["usage"];
    assert_eq!(usage["completion_tokens"], 11);
    let total = usage["prompt_tokens"].as_u64().unwrap() + 11;
    assert_eq!(usage["total_tokens"], total);
}

#[tokio::test]
async fn pieces_add_up_to_the_whole_for_real_samples() {
    let bench = Bench::new();
    let base = json!({
        "messages": user("Reverse the text: abc"), "max_tokens": 60, "n": 3, "seed": 5, "temperature": 1.5,
        "logprobs": true, "top_logprobs": 3, "return_token_ids": true,
    });
    for more in
        [json!({}), json!({"stop": ["t", "e a"]}), json!({"stop": "<", "min_tokens": 20}), json!({"ignore_eos": true})]
    {
        let request = with(&base, more);
        let whole = bench.ok("/v1/chat/completions", request.clone()).await;
        let options = json!({"stream": true, "stream_options": {"include_usage": true}});
        let pieces = bench.pieces("/v1/chat/completions", &with(&request, options)).await;
        for (index, choice) in (0..).zip(whole["choices"].as_array().unwrap()) {
            assert_eq!(sum(&pieces, index), parts(choice), "{request}");
        }
        assert_eq!(pieces[0]["prompt_token_ids"], whole["prompt_token_ids"]);
        let usage = &pieces.last().unwrap()["usage"];
        assert_eq!(usage["completion_tokens"], whole["usage"]["completion_tokens"]);
        assert!(pieces.last().unwrap()["choices"].as_array().unwrap().is_empty());
        // The sequences of a request are not copies of each other.
        assert_ne!(parts(&whole["choices"][0])[3], parts(&whole["choices"][1])[3]);
    }
}

#[tokio::test]
async fn reasoning_and_calls_are_split_off_and_never_leak() {
    let bench = Bench::new();
    let call = r#"{"name": "get", "arguments": {"x":  1}}"#;
    let text = format!(
        "<think>\nwhy é\n</think>\n\nI look.\n<tool_call>\n{call}\n</tool_call>\n<tool_call>{call}</tool_call>"
    );
    let request = json!({"messages": user("hi"), "tools": tools(), "max_tokens": 300, "temperature": 0});
    bench.answers(&request, &text).await;
    let answer = bench.ok("/v1/chat/completions", request.clone()).await;
    let choice = &answer["choices"][0];
    let function = json!({"name": "get", "arguments": "{\"x\":  1}"});
    assert_eq!(parts(choice), json!(["why é", "I look.", [function, function], [], [], "tool_calls"]));
    let calls = choice["message"]["tool_calls"].as_array().unwrap();
    assert!(calls[0]["id"] != calls[1]["id"] && calls[0]["type"] == "function");

    let pieces = bench.pieces("/v1/chat/completions", &with(&request, json!({"stream": true}))).await;
    assert_eq!(sum(&pieces, 0), parts(choice));
    let indices: Vec<u64> = pieces
        .iter()
        .flat_map(|p| p["choices"][0]["delta"]["tool_calls"].as_array().cloned().unwrap_or_default())
        .map(|c| c["index"].as_u64().unwrap())
        .collect();
    assert_eq!(indices, [0, 1]);

    let one = bench.ok("/v1/chat/completions", with(&request, json!({"parallel_tool_calls": false}))).await;
    assert_eq!(parts(&one["choices"][0])[2], json!([function]));
    // A call that the limit cut off is told as far as it came, and not as text.
    let cut = bench.ok("/v1/chat/completions", with(&request, json!({"max_tokens": 60}))).await;
    let message = &cut["choices"][0]["message"];
    assert_eq!((&cut["choices"][0]["finish_reason"], &message["content"]), (&json!("length"), &json!("I look.")));
    assert_eq!(message["tool_calls"].as_array().unwrap().len(), 1);

    // Nobody offered tools: then it is text.
    for none in [json!({"tools": null}), json!({"tool_choice": "none"})] {
        let request = with(&request, none);
        bench.answers(&with(&request, json!({"tools": null})), "<tool_call>{}</tool_call>").await;
        let answer = bench.ok("/v1/chat/completions", request).await;
        assert_eq!(answer["choices"][0]["message"]["content"], "<tool_call>{}</tool_call>");
    }
}

#[tokio::test]
async fn a_bare_call_has_no_content() {
    let bench = Bench::new();
    let request = json!({"messages": user("hi"), "tools": tools()});
    bench.answers(&request, "<tool_call>{\"name\": \"get\"}</tool_call>").await;
    let answer = bench.ok("/v1/chat/completions", request).await;
    assert_eq!(answer["choices"][0]["message"]["content"], Value::Null);
    assert_eq!(answer["choices"][0]["message"]["tool_calls"][0]["function"], json!({"name": "get", "arguments": "{}"}));
}

#[tokio::test]
async fn log_probabilities_are_told_per_token() {
    let bench = Bench::new();
    let request = json!({
        "messages": user("hi"), "max_tokens": 4, "temperature": 0, "logprobs": true, "top_logprobs": 2,
        "prompt_logprobs": 1,
    });
    let answer = bench.ok("/v1/chat/completions", request.clone()).await;
    let tokens = answer["choices"][0]["logprobs"]["content"].as_array().unwrap();
    assert_eq!(tokens.len(), 4);
    for token in tokens {
        let top = token["top_logprobs"].as_array().unwrap();
        // Greedy: the sampled one is the likeliest.
        assert_eq!((top.len(), &top[0]["token"], &top[0]["logprob"]), (2, &token["token"], &token["logprob"]));
        assert!(top[0]["logprob"].as_f64() >= top[1]["logprob"].as_f64());
        let bytes: Vec<u8> = serde_json::from_value(token["bytes"].clone()).unwrap();
        assert_eq!(bytes, token["token"].as_str().unwrap().as_bytes());
    }
    let prompt = answer["prompt_logprobs"].as_array().unwrap();
    assert_eq!((prompt.len() as u64, &prompt[0]), (answer["usage"]["prompt_tokens"].as_u64().unwrap(), &Value::Null));
    let ids = bench.ok("/v1/chat/completions", with(&request, json!({"return_tokens_as_token_ids": true}))).await;
    assert!(ids["choices"][0]["logprobs"]["content"][0]["token"].as_str().unwrap().starts_with("token_id:"));
}

#[tokio::test]
async fn the_template_takes_variables_parts_and_open_ends() {
    let bench = Bench::new();
    let tokens = async |more: Value| {
        let request = with(&json!({"messages": user("hi")}), more);
        let answer = bench.ok("/tokenize", request).await;
        bench.ok("/detokenize", json!({"tokens": answer["tokens"]})).await["prompt"].as_str().unwrap().to_owned()
    };
    let plain = tokens(json!({})).await;
    assert!(plain.ends_with("hi<|im_end|>\n<|im_start|>assistant\n"), "{plain}");
    let off = tokens(json!({"chat_template_kwargs": {"enable_thinking": false}})).await;
    assert_eq!(off, plain.clone() + "<think>\n\n</think>\n\n");
    let parts = json!([{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]);
    assert_eq!(tokens(json!({"messages": [{"role": "user", "content": parts}]})).await, plain);
    let closed = tokens(json!({"add_generation_prompt": false})).await;
    assert!(closed.ends_with("hi<|im_end|>\n"));
    let begun = json!([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "well, "}]);
    let open = json!({"messages": begun, "add_generation_prompt": false, "continue_final_message": true});
    assert_eq!(tokens(open.clone()).await, plain + "well, ");

    // What goes on is told without what was there.
    let request = with(&open, json!({"max_tokens": 9}));
    bench.answers(&request, "good").await;
    assert_eq!(bench.ok("/v1/chat/completions", request).await["choices"][0]["message"]["content"], "good");
}

#[tokio::test]
async fn whole_conversations_with_tools_are_read() {
    let bench = Bench::new();
    let messages = json!([
        {"role": "developer", "content": "s"}, {"role": "user", "content": "hi", "name": "me"},
        {"role": "assistant", "content": null, "reasoning_content": "r", "refusal": null, "tool_calls": [
            {"id": "call_0", "type": "function", "function": {"name": "get", "arguments": "{\"a\": 1}"}}]},
        {"role": "tool", "tool_call_id": "call_0", "content": [{"type": "text", "text": "42"}]},
    ]);
    let answer = bench.ok("/tokenize", json!({"messages": messages, "tools": tools()})).await;
    let text =
        bench.ok("/detokenize", json!({"tokens": answer["tokens"]})).await["prompt"].as_str().unwrap().to_owned();
    assert!(text.starts_with("<|im_start|>tools\n") && text.contains("<|im_start|>system\ns<|im_end|>"), "{text}");
    assert!(text.contains("{\"a\": 1}") && text.contains("<|im_start|>tool\n42<|im_end|>"), "{text}");
}

#[tokio::test]
async fn what_cannot_be_honoured_is_refused_by_name() {
    let bench = Bench::new();
    for (more, field) in [
        (json!({"tools": tools(), "tool_choice": "required"}), "tool_choice"),
        (json!({"tools": tools(), "tool_choice": {"type": "function", "function": {"name": "get"}}}), "tool_choice"),
        (json!({"best_of": 2}), "best_of"),
        (json!({"bad_words": ["x"]}), "bad_words"),
        (json!({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}), "messages[0].content[0].type"),
    ] {
        let request = with(&json!({"messages": user("hi")}), more);
        let (status, answer) = bench.post("/v1/chat/completions", &request).await;
        let message = refused(status, &answer);
        assert_eq!((status.as_u16(), &answer["error"]["param"]), (400, &json!(field)));
        assert!(message.contains("not supported") && message.contains(field), "{message}");
    }
}
