//! Text that is bound to a grammar, and penalties, on all doors.

use crate::bench::{Bench, refused, user, with};
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";
const GENERATE: &str = "/inference/v1/generate";

/// A schema without endless texts.
fn schema() -> Value {
    json!({
        "type": "object",
        "properties": {"answer": {"enum": ["yes", "no"]}, "count": {"type": "integer", "minimum": 0, "maximum": 99}},
        "required": ["answer", "count"], "additionalProperties": false,
        "x-guidance": {"whitespace_flexible": false},
    })
}

fn format() -> Value {
    json!({"type": "json_schema", "json_schema": {"name": "reply", "strict": true, "schema": schema()}})
}

fn is_reply(text: &str) {
    let value: Value = serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"));
    assert_eq!(value.as_object().unwrap().len(), 2);
    assert!(["yes", "no"].contains(&value["answer"].as_str().unwrap()) && value["count"].as_u64().unwrap() < 100);
}

#[tokio::test]
async fn every_door_binds_its_text_under_every_name() {
    let bench = Bench::new();
    let text = |answer: &Value| {
        let choice = &answer["choices"][0];
        assert_eq!((&choice["finish_reason"], &choice["stop_reason"]), (&json!("stop"), &Value::Null), "{answer}");
        let text = choice["text"].as_str().or_else(|| choice["message"]["content"].as_str()).map(str::to_owned);
        text.unwrap_or_else(|| {
            let ids: Vec<u32> = serde_json::from_value(choice["token_ids"].clone()).unwrap();
            bench.renderer.decode(&ids).unwrap().trim_end_matches("<|im_end|>").to_owned()
        })
    };
    let asked = [
        ("json", schema()),
        ("regex", json!("[a-c]{2,4}!")),
        ("choice", json!(["left \"and\" right", "né\\n\n", "left"])),
        ("grammar", json!("start: \"<\" item item? item? \">\"\nitem: /[xyz]/ \".\"")),
    ];
    for (kind, value) in asked {
        let (old, new) = (format!("guided_{kind}"), json!({ "structured_outputs": { kind: value } }));
        for more in [json!({ old: value }), new] {
            let params = with(&json!({"max_tokens": 90, "temperature": 1.5, "seed": 4, "top_p": 0.95}), more);
            let chat = with(&json!({"messages": user("hi")}), params.clone());
            let completion = with(&json!({"prompt": "abc"}), params.clone());
            let ids = json!({"token_ids": [65, 66], "sampling_params": params});
            for (door, body) in [(CHAT, chat), ("/v1/completions", completion), (GENERATE, ids)] {
                let text = text(&bench.ok(door, body).await);
                match kind {
                    "json" => is_reply(&text),
                    "regex" => {
                        let letters = text.strip_suffix('!').unwrap();
                        assert!((2..=4).contains(&letters.len()) && letters.chars().all(|c| "abc".contains(c)));
                    }
                    "choice" => assert!(value.as_array().unwrap().contains(&json!(text)), "{text:?}"),
                    _ => assert!(text.starts_with('<') && text.ends_with(".>"), "{text:?}"),
                }
            }
        }
    }
    for door in [CHAT, "/v1/completions"] {
        let prompt = if door == CHAT { json!({"messages": user("hi")}) } else { json!({"prompt": "hi"}) };
        let ask = |format: Value| with(&prompt, json!({"max_tokens": 80, "seed": 1, "response_format": format}));
        is_reply(&text(&bench.ok(door, ask(format())).await));
        bench.ok(door, ask(json!({"type": "text"}))).await;
        // Any object: what there is of one when the tokens are used up.
        let object = bench.ok(door, ask(json!({"type": "json_object"}))).await;
        let choice = &object["choices"][0];
        let said = choice["text"].as_str().unwrap_or_else(|| choice["message"]["content"].as_str().unwrap());
        assert!(said.starts_with('{'), "{said}");
        let whole = serde_json::from_str::<serde_json::Map<String, Value>>(said).is_ok();
        assert_eq!(whole, choice["finish_reason"] == "stop", "{said}");
    }
}

#[tokio::test]
async fn pieces_choices_and_seeds_are_those_of_other_requests() {
    let bench = Bench::new();
    let request = json!({
        "messages": user("hi"), "response_format": format(), "n": 3, "seed": 5, "temperature": 1.2, "max_tokens": 60,
    });
    let whole = bench.ok(CHAT, request.clone()).await;
    let texts: Vec<&str> =
        whole["choices"].as_array().unwrap().iter().map(|c| c["message"]["content"].as_str().unwrap()).collect();
    texts.iter().for_each(|text| is_reply(text));
    assert!(texts.iter().any(|text| *text != texts[0]), "{texts:?}");
    assert_eq!(bench.ok(CHAT, request.clone()).await["choices"], whole["choices"]);
    let pieces = bench.pieces(CHAT, &with(&request, json!({"stream": true}))).await;
    for (index, text) in texts.iter().enumerate() {
        let own = pieces.iter().flat_map(|p| p["choices"].as_array().unwrap()).filter(|c| c["index"] == index);
        let (mut said, mut end) = (String::new(), Value::Null);
        for choice in own {
            said += choice["delta"]["content"].as_str().unwrap_or_default();
            end = choice["finish_reason"].clone();
        }
        assert_eq!((said.as_str(), &end), (*text, &json!("stop")));
    }
    // A stop string ends it in the middle.
    let cut = bench.ok(CHAT, with(&request, json!({"stop": "\"count"}))).await;
    assert!(cut["choices"][0]["message"]["content"].as_str().unwrap().starts_with("{\"answer\":"));
    assert_eq!(cut["choices"][0]["stop_reason"], "\"count");
    // A fourth of the tokens is not enough.
    let short = bench.ok(CHAT, with(&request, json!({"max_tokens": 5}))).await;
    assert_eq!(short["choices"][0]["finish_reason"], "length");
}

#[tokio::test]
async fn what_a_model_would_rather_say_does_not_matter_and_calls_are_text() {
    let bench = Bench::new();
    let request = json!({"messages": user("hi"), "guided_choice": ["yes", "yes, sir"], "temperature": 0});
    bench.answers(&request, "Well, I think so.").await;
    let answer = bench.ok(CHAT, request.clone()).await;
    assert!(["yes", "yes, sir"].contains(&answer["choices"][0]["message"]["content"].as_str().unwrap()));
    bench.answers(&request, "yes, sir").await;
    assert_eq!(bench.ok(CHAT, request.clone()).await["choices"][0]["message"]["content"], "yes, sir");

    let tools = json!([{"type": "function", "function": {"name": "get", "parameters": {"type": "object"}}}]);
    let call = " <tool_call>{\"name\": \"get\", \"arguments\": {}}</tool_call>";
    let request = json!({"messages": user("hi"), "tools": tools, "guided_choice": [call, "<think>x</think>y"]});
    for text in [call, "<think>x</think>y"] {
        bench.answers(&request, text).await;
        let answer = bench.ok(CHAT, request.clone()).await;
        let choice = &answer["choices"][0];
        assert_eq!(choice["message"], json!({"role": "assistant", "content": text, "refusal": null}));
        assert_eq!(choice["finish_reason"], "stop");
    }
}

#[tokio::test]
async fn reasoning_that_the_prompt_has_opened_is_free() {
    let bench = Bench::thinking(true);
    let request = json!({"messages": user("hi"), "response_format": format(), "max_tokens": 90, "temperature": 0});
    let text = "Hm, {not} json.\n</think>{\"answer\":\"no\",\"count\":17}";
    bench.answers(&request, text).await;
    let answer = bench.ok(CHAT, request.clone()).await;
    let message = &answer["choices"][0]["message"];
    assert_eq!(message["reasoning_content"], "Hm, {not} json.");
    assert_eq!(message["content"], "{\"answer\":\"no\",\"count\":17}");
    // The end of the turn cannot come inside of it.
    bench.answers(&request, "Hm").await;
    assert_eq!(bench.ok(CHAT, request.clone()).await["choices"][0]["finish_reason"], "length");

    let (status, answer) = Bench::thinking(false).post(CHAT, &request).await;
    assert!(refused(status, &answer).contains("does not end with a token"));
}

/// The log-probabilities of an answer, and those of the same tokens as a prompt.
async fn told_and_scored(bench: &Bench, params: Value) -> (Vec<u32>, Vec<f64>, Vec<f64>) {
    let prompt = [65, 66, 67];
    let base = json!({"logprobs": 0, "temperature": 3.0, "seed": 2, "max_tokens": 20});
    let answer = bench.ok(GENERATE, json!({"token_ids": prompt, "sampling_params": with(&base, params)})).await;
    let choice = &answer["choices"][0];
    let ids: Vec<u32> = serde_json::from_value(choice["token_ids"].clone()).unwrap();
    let told = choice["logprobs"]["content"].as_array().unwrap().iter().map(|t| t["logprob"].as_f64().unwrap());
    let all = [&prompt[..], &ids].concat();
    let score = json!({"prompt_logprobs": 0, "temperature": 3.0, "max_tokens": 1});
    let scored = bench.ok(GENERATE, json!({"token_ids": all, "sampling_params": score})).await;
    let scored = scored["prompt_logprobs"].as_array().unwrap()[prompt.len()..].iter().zip(&ids);
    let scored = scored.map(|(table, id)| table[id.to_string()]["logprob"].as_f64().unwrap());
    (ids.clone(), told.collect(), scored.collect())
}

#[tokio::test]
async fn logprobs_stay_the_models_own() {
    let bench = Bench::new();
    let (free, told, scored) = told_and_scored(&bench, json!({"ignore_eos": true})).await;
    assert_eq!(told, scored);
    for params in [
        json!({"frequency_penalty": 2}),
        json!({"presence_penalty": 2}),
        json!({"repetition_penalty": 3}),
        json!({"structured_outputs": {"regex": "(z|Q|!){20}"}}),
        json!({"structured_outputs": {"regex": "(z|Q|!){20}"}, "frequency_penalty": 1.5, "top_k": 2}),
    ] {
        let (ids, told, scored) = told_and_scored(&bench, with(&params, json!({"ignore_eos": true}))).await;
        assert_eq!(told, scored, "{params}");
        assert_ne!(ids, free, "{params}");
    }
}

#[tokio::test]
async fn penalties_are_taken_at_every_door_at_openais_bounds() {
    let bench = Bench::new();
    let params = json!({
        "frequency_penalty": -2, "presence_penalty": 2.0, "repetition_penalty": 1.2, "max_tokens": 3, "temperature": 0,
    });
    bench.ok(CHAT, with(&json!({"messages": user("hi")}), params.clone())).await;
    bench.ok("/v1/completions", with(&json!({"prompt": "hi"}), params.clone())).await;
    bench.ok(GENERATE, json!({"token_ids": [65], "sampling_params": params})).await;
    let (status, answer) = bench.post(CHAT, &json!({"messages": user("hi"), "presence_penalty": 2.5})).await;
    assert_eq!(answer["error"]["param"], "presence_penalty");
    assert!(refused(status, &answer).contains("between -2 and 2"));
}

#[tokio::test]
async fn a_bad_grammar_names_its_field_and_the_reason() {
    let bench = Bench::new();
    let base = json!({"messages": user("hi")});
    for (more, param, want) in [
        (json!({"guided_json": {"type": "objekt"}}), "guided_json", "Invalid type: objekt"),
        (json!({"structured_outputs": {"regex": "("}}), "structured_outputs.regex", "unclosed group"),
        (
            json!({"response_format": {"type": "json_schema", "json_schema": {"schema": {"not": {}}}}}),
            "response_format",
            "Unimplemented keys",
        ),
        (
            json!({"guided_regex": "a", "response_format": {"type": "json_object"}}),
            "response_format",
            "exclude each other",
        ),
    ] {
        let (status, answer) = bench.post(CHAT, &with(&base, more)).await;
        assert_eq!(answer["error"]["param"], param);
        assert!(refused(status, &answer).contains(want), "{answer}");
    }
}
