//! `/inference/v1/generate`.

use crate::bench::{Bench, folder, refused, with};
use serde_json::{Value, json};

#[tokio::test]
async fn ids_in_ids_out_with_everything_a_trainer_needs() {
    let bench = Bench::new();
    let params = json!({"max_tokens": 6, "temperature": 0.7, "seed": 3, "logprobs": 2, "prompt_logprobs": 1, "n": 2, "ignore_eos": true});
    let answer =
        bench.ok("/inference/v1/generate", json!({"token_ids": [65, 66, 67], "sampling_params": params})).await;
    assert!(answer["request_id"].is_string());
    let choices = answer["choices"].as_array().unwrap();
    assert_eq!(choices.len(), 2);
    for choice in choices {
        let ids = choice["token_ids"].as_array().unwrap();
        let logprobs = choice["logprobs"]["content"].as_array().unwrap();
        assert_eq!((ids.len(), logprobs.len()), (6, 6));
        for (id, told) in ids.iter().zip(logprobs) {
            assert_eq!(told["token"], format!("token_id:{id}"));
            assert_eq!(told["top_logprobs"].as_array().unwrap().len(), 2);
        }
        assert_eq!(choice["policy_versions"], json!([{"version": 0, "tokens": 6}]));
        assert_eq!(choice["finish_reason"], "length");
    }
    let prompt = answer["prompt_logprobs"].as_array().unwrap();
    assert_eq!((prompt.len(), &prompt[0]), (3, &Value::Null));
    for (entry, id) in prompt[1..].iter().zip(["66", "67"]) {
        let table = entry.as_object().unwrap();
        assert_eq!(table.keys().next().unwrap(), id);
        let own = &table[id];
        assert!(own["logprob"].as_f64().unwrap() < 0.0 && own["rank"].as_u64().unwrap() >= 1);
        assert!(own["decoded_token"].is_string());
        assert!(table.values().any(|other| other["rank"] == 1));
    }
    assert_eq!(answer["usage"]["completion_tokens"], 12);
}

#[tokio::test]
async fn a_seed_gives_the_same_ids_in_one_piece_in_pieces_and_again() {
    let bench = Bench::new();
    let request =
        json!({"token_ids": [65, 66], "sampling_params": {"max_tokens": 12, "seed": 8, "temperature": 1.3, "n": 2}});
    let whole = bench.ok("/inference/v1/generate", request.clone()).await;
    let again = bench.ok("/inference/v1/generate", request.clone()).await;
    assert_eq!(whole["choices"], again["choices"]);
    assert!(again["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap() > 0);
    let streams = json!({"stream": true, "stream_options": {"include_usage": true}});
    let pieces = bench.pieces("/inference/v1/generate", &with(&request, streams)).await;
    for (index, choice) in whole["choices"].as_array().unwrap().iter().enumerate() {
        let own = pieces.iter().map(|p| &p["choices"][0]).filter(|c| c["index"] == index);
        let ids: Vec<Value> = own.flat_map(|c| c["token_ids"].as_array().unwrap().clone()).collect();
        assert_eq!(json!(ids), choice["token_ids"]);
    }
    assert_eq!(pieces.last().unwrap()["usage"]["completion_tokens"], whole["usage"]["completion_tokens"]);
    let unseeded = json!({"token_ids": [65, 66], "sampling_params": {"max_tokens": 40, "temperature": 2.0}});
    let one = bench.ok("/inference/v1/generate", unseeded.clone()).await;
    assert_ne!(one["choices"], bench.ok("/inference/v1/generate", unseeded).await["choices"]);
}

#[tokio::test]
async fn without_a_limit_the_context_is_the_limit_and_versions_are_told_in_runs() {
    let bench = Bench::new();
    let request = json!({"token_ids": vec![65; 500], "sampling_params": {"ignore_eos": true}});
    let answer = bench.ok("/inference/v1/generate", request).await;
    assert_eq!(answer["choices"][0]["token_ids"].as_array().unwrap().len(), 12);

    bench.slow(std::time::Duration::from_millis(3));
    let long = json!({"token_ids": [65], "sampling_params": {"ignore_eos": true, "max_tokens": 300}});
    let (answer, update) = tokio::join!(bench.ok("/inference/v1/generate", long), async {
        while bench.handle.stats().decode_tokens < 30 {
            tokio::time::sleep(std::time::Duration::from_millis(2)).await;
        }
        bench.ok("/update_weights", json!({"weight_dir": folder(), "version": 41})).await
    });
    assert_eq!(update["version"], 41);
    let runs = answer["choices"][0]["policy_versions"].as_array().unwrap();
    assert_eq!(runs.iter().map(|r| r["version"].as_u64().unwrap()).collect::<Vec<_>>(), [0, 41]);
    assert_eq!(runs.iter().map(|r| r["tokens"].as_u64().unwrap()).sum::<u64>(), 300);
}

#[tokio::test]
async fn other_engines_features_and_transfers_are_refused() {
    let bench = Bench::new();
    for more in [json!({"features": {"image": []}}), json!({"kv_transfer_params": {"a": 1}}), json!({"priority": 2})] {
        let (status, answer) = bench.post("/inference/v1/generate", &with(&json!({"token_ids": [1]}), more)).await;
        refused(status, &answer);
    }
    for (rank, want) in [("0", 200), ("1", 400), ("x", 400)] {
        let mut request = crate::bench::post(
            "/inference/v1/generate",
            json!({"token_ids": [65], "sampling_params": {"max_tokens": 1}}).to_string(),
        );
        request.headers_mut().insert("x-data-parallel-rank", rank.parse().unwrap());
        assert_eq!(bench.send(request).await.0.as_u16(), want, "{rank}");
    }
}
