//! Text as it comes: characters over several tokens, stop strings over several tokens.

use crate::bench::{Bench, with};
use serde_json::{Value, json};

fn texts(pieces: &[Value]) -> Vec<String> {
    pieces.iter().filter_map(|p| p["choices"][0]["text"].as_str().map(str::to_owned)).collect()
}

#[tokio::test]
async fn a_character_comes_whole_or_not_at_all() {
    let bench = Bench::new();
    let base = json!({"prompt": "abc", "temperature": 0, "stream": true});
    bench.says(3, "a✓😀é");
    let pieces = texts(&bench.pieces("/v1/completions", &base).await);
    assert_eq!(pieces.concat(), "a✓😀é");
    assert!(pieces.iter().all(|piece| piece.chars().count() <= 1), "{pieces:?}");
    // Cut in the middle of the smiley, and of the check mark.
    for (limit, want) in [(6, "a✓"), (3, "a"), (8, "a✓😀")] {
        let request = with(&base, json!({"max_tokens": limit}));
        assert_eq!(texts(&bench.pieces("/v1/completions", &request).await).concat(), want);
        let whole = bench.ok("/v1/completions", with(&request, json!({"stream": false}))).await;
        assert_eq!((&whole["choices"][0]["text"], &whole["usage"]["completion_tokens"]), (&json!(want), &json!(limit)));
    }
}

#[tokio::test]
async fn a_stop_string_over_tokens_is_never_seen() {
    let bench = Bench::new();
    bench.says(3, "one </en two </end> three");
    let base = json!({"prompt": "abc", "temperature": 0, "stop": ["</end>", "zzz"]});
    for (more, want, reason) in [
        (json!({}), "one </en two ", json!("</end>")),
        (json!({"include_stop_str_in_output": true}), "one </en two </end>", json!("</end>")),
        (json!({"stop": ["never"]}), "one </en two </end> three", Value::Null),
        // A stop string that is the beginning of another one.
        (json!({"stop": ["</end> x", "</en"]}), "one ", json!("</en")),
        // Too early: then it is text.
        (json!({"stop": ["</en"], "min_tokens": 12}), "one </en two ", json!("</en")),
        // The last of its characters comes when it may end.
        (json!({"stop": ["</en"], "min_tokens": 8}), "one ", json!("</en")),
        (json!({"stop": ["</en"], "min_tokens": 9}), "one </en two ", json!("</en")),
    ] {
        let request = with(&base, more);
        let whole = bench.ok("/v1/completions", request.clone()).await;
        assert_eq!(whole["choices"][0]["text"], want, "{request}");
        assert_eq!(
            (&whole["choices"][0]["stop_reason"], &whole["choices"][0]["finish_reason"]),
            (&reason, &json!("stop"))
        );
        let pieces = bench.pieces("/v1/completions", &with(&request, json!({"stream": true}))).await;
        assert_eq!(texts(&pieces).concat(), want, "{request}");
    }
}

#[tokio::test]
async fn stop_tokens_end_and_are_no_text() {
    let bench = Bench::new();
    bench.says(3, "one two");
    let space = bench.renderer.tokenizer().encode(" ").unwrap()[0];
    let base = json!({"prompt": "abc", "temperature": 0, "stop_token_ids": [space], "return_token_ids": true});
    let answer = bench.ok("/v1/completions", base.clone()).await;
    let choice = &answer["choices"][0];
    assert_eq!((&choice["text"], &choice["stop_reason"]), (&json!("one"), &json!(space)));
    assert_eq!(choice["token_ids"].as_array().unwrap().last(), Some(&json!(space)));
    let kept = bench.ok("/v1/completions", with(&base, json!({"include_stop_str_in_output": true}))).await;
    assert_eq!(kept["choices"][0]["text"], "one ");
    // Special tokens are text only where they are asked for.
    let end = bench.renderer.stop_token_ids()[0];
    bench.says_ids(3, vec![end, end]);
    let base = json!({"prompt": "abc", "temperature": 0, "ignore_eos": true, "max_tokens": 2});
    assert_eq!(bench.ok("/v1/completions", base.clone()).await["choices"][0]["text"], "");
    let shown = bench.ok("/v1/completions", with(&base, json!({"skip_special_tokens": false}))).await;
    assert_eq!(shown["choices"][0]["text"], "<|im_end|><|im_end|>");
}
