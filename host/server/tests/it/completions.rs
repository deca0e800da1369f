//! `/v1/completions`, `/tokenize` and `/detokenize`.

use crate::bench::{Bench, with};
use serde_json::{Value, json};

#[tokio::test]
async fn every_form_of_prompt_is_the_same_prompt() {
    let bench = Bench::new();
    let ids = bench.ok("/tokenize", json!({"prompt": "abc"})).await["tokens"].clone();
    let ask = async |prompt: Value| {
        let answer = bench.ok("/v1/completions", json!({"prompt": prompt, "max_tokens": 6, "temperature": 0})).await;
        let choices = answer["choices"].as_array().unwrap().clone();
        choices.iter().map(|c| c["text"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let text = ask(json!("abc")).await;
    assert_eq!(text.len(), 1);
    assert_eq!(ask(ids.clone()).await, text);
    assert_eq!(ask(json!([ids.clone(), "abc"])).await, [text[0].clone(), text[0].clone()]);
    assert_eq!(ask(json!(["abc", "zz"])).await[0], text[0]);
}

#[tokio::test]
async fn echo_n_and_log_probabilities() {
    let bench = Bench::new();
    let request = json!({
        "prompt": ["abc", "defg"], "max_tokens": 5, "n": 2, "seed": 1, "echo": true, "logprobs": 2,
        "prompt_logprobs": 0, "return_token_ids": true,
    });
    let answer = bench.ok("/v1/completions", request).await;
    let choices = answer["choices"].as_array().unwrap();
    assert_eq!(choices.iter().map(|c| c["index"].as_u64().unwrap()).collect::<Vec<_>>(), [0, 1, 2, 3]);
    for (choice, prompt) in choices.iter().zip(["abc", "abc", "defg", "defg"]) {
        assert!(choice["text"].as_str().unwrap().starts_with(prompt));
        let logprobs = &choice["logprobs"];
        let count = prompt.len() + choice["token_ids"].as_array().unwrap().len();
        for list in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
            assert_eq!(logprobs[list].as_array().unwrap().len(), count, "{list}");
        }
        assert_eq!((&logprobs["token_logprobs"][0], &logprobs["tokens"][1]), (&Value::Null, &json!(&prompt[1..2])));
        assert!(logprobs["token_logprobs"][1].as_f64().unwrap() < 0.0);
        assert_eq!(choice["prompt_logprobs"].as_array().unwrap().len(), prompt.len());
        assert_eq!(choice["prompt_token_ids"].as_array().unwrap().len(), prompt.len());
    }
    assert_eq!(answer["usage"]["prompt_tokens"], 7);
    let sampled: usize = choices.iter().map(|c| c["token_ids"].as_array().unwrap().len()).sum();
    assert_eq!(answer["usage"]["completion_tokens"], sampled);
}

#[tokio::test]
async fn pieces_add_up_to_the_whole() {
    let bench = Bench::new();
    let base = json!({
        "prompt": ["abc", "defg"], "max_tokens": 40, "n": 2, "seed": 9, "temperature": 1.6, "logprobs": 1, "stop": ["aa", "t"],
    });
    for more in [json!({}), json!({"echo": true}), json!({"include_stop_str_in_output": true})] {
        let request = with(&base, more);
        let whole = bench.ok("/v1/completions", request.clone()).await;
        let pieces = bench.pieces("/v1/completions", &with(&request, json!({"stream": true}))).await;
        for (index, choice) in whole["choices"].as_array().unwrap().iter().enumerate() {
            let own: Vec<&Value> = pieces.iter().map(|p| &p["choices"][0]).filter(|c| c["index"] == index).collect();
            let text: String = own.iter().map(|c| c["text"].as_str().unwrap()).collect();
            assert_eq!(text, choice["text"].as_str().unwrap(), "{request}");
            assert_eq!(own.last().unwrap()["finish_reason"], choice["finish_reason"]);
            for list in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
                let all: Vec<Value> =
                    own.iter().flat_map(|c| c["logprobs"][list].as_array().cloned().unwrap_or_default()).collect();
                assert_eq!(json!(all), choice["logprobs"][list], "{list}");
            }
        }
    }
}

#[tokio::test]
async fn tokens_and_back() {
    let bench = Bench::new();
    let answer = bench.ok("/tokenize", json!({"prompt": "hé✓", "return_token_strs": true, "model": "tiny"})).await;
    assert_eq!((&answer["count"], &answer["max_model_len"]), (&json!(6), &json!(512)));
    assert_eq!(answer["token_strs"].as_array().unwrap().len(), 6);
    assert_eq!(bench.ok("/detokenize", json!({"tokens": answer["tokens"]})).await, json!({"prompt": "hé✓"}));
}
