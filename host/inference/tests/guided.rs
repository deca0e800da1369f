//! Text bound to grammars, by a model of random weights: what ends is as the grammar asks, whatever the model wants.

use futures::executor::block_on;
use futures::future::join_all;
use prl_inference::{Engine, EngineConfig, Grammar, Grammars, Guide, InferenceError, Request, SamplingParams, Word};
use prl_model::{Decoder, Device, Kernels, ModelConfig, Snapshot};
use prl_types::{FinishReason, PolicyVersion, Sampled, TokenId};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex};

/// All bytes, some longer tokens, the end, and padding.
static WORDS: LazyLock<Vec<Word>> = LazyLock::new(|| {
    let longer =
        ["{\"", "\":", "\": ", "true", "false", "null", ", ", "  ", "},", "[[", "ab", "\\u", "00", "é", "\",\""];
    let bytes = (0..=255u8).map(|byte| vec![byte]).chain(longer.iter().map(|s| s.as_bytes().to_vec()));
    bytes.map(Word::Text).chain([Word::Special("<|end|>".into()), Word::Nothing, Word::Nothing]).collect()
});

static GRAMMARS: LazyLock<Grammars> = LazyLock::new(|| Grammars::new(&WORDS).unwrap());

static ENGINE: LazyLock<Engine> = LazyLock::new(|| engine(EngineConfig::new(16, 1024)));

fn end() -> TokenId {
    WORDS.iter().position(|word| matches!(word, Word::Special(_))).unwrap() as TokenId
}

fn snapshot(seed: u64) -> Arc<dyn Snapshot> {
    let config = json!({
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": WORDS.len(), "hidden_size": 16,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
        "intermediate_size": 40, "rms_norm_eps": 1e-6, "max_position_embeddings": 1024, "rope_theta": 10000.0,
        "tie_word_embeddings": true, "initializer_range": 0.5, "hidden_act": "silu"
    });
    let config = ModelConfig::parse(&config.to_string(), Path::new("config.json")).unwrap();
    Decoder::init(config, seed, &Device::Cpu.open().unwrap()).snapshot(Kernels::Fast).unwrap()
}

fn engine(config: EngineConfig) -> Engine {
    Engine::start(snapshot(1), PolicyVersion(0), config).unwrap()
}

fn request(guide: &Guide, seed: u64, max_tokens: usize) -> Request {
    let sampling =
        SamplingParams { max_tokens: Some(max_tokens), stop_token_ids: vec![end()], ..SamplingParams::default() };
    let prompt: Vec<TokenId> = (0..5).map(|i| (seed as TokenId * 31 + i * 7) % 256).collect();
    Request { guide: Some(guide.clone()), ..Request::new(prompt, sampling, seed) }
}

fn compile(schema: &Value) -> Guide {
    GRAMMARS.compile(&Grammar::Json(schema.clone())).unwrap_or_else(|e| panic!("{schema}: {e}"))
}

/// The text of what was sampled, without the end. Nothing else than text may be there.
fn text(sampled: &Sampled) -> Vec<u8> {
    let ids = match sampled.finish() {
        FinishReason::StopToken(id) if *id == end() => &sampled.ids()[..sampled.ids().len() - 1],
        _ => sampled.ids(),
    };
    ids.iter()
        .flat_map(|id| if let Word::Text(bytes) = &WORDS[*id as usize] { bytes.clone() } else { panic!("{id}") })
        .collect()
}

/// Whether a value is as a schema asks, for the keywords of [`schema`].
fn valid(schema: &Value, value: &Value) -> bool {
    if let Some(all) = schema.get("enum").and_then(Value::as_array) {
        return all.contains(value);
    }
    if let Some(any) = schema.get("anyOf").and_then(Value::as_array) {
        return any.iter().any(|one| valid(one, value));
    }
    let bound = |name: &str| schema.get(name).and_then(Value::as_i64);
    let within = |n: i64, least: &str, most: &str| {
        bound(least).is_none_or(|least| n >= least) && bound(most).is_none_or(|most| n <= most)
    };
    match (schema["type"].as_str(), value) {
        (Some("null"), Value::Null) | (Some("boolean"), Value::Bool(_)) => true,
        // -0 is an integer.
        (Some("integer"), Value::Number(n)) => {
            n.as_f64().is_some_and(|n| n.fract() == 0.0 && within(n as i64, "minimum", "maximum"))
        }
        (Some("string"), Value::String(s)) => within(s.chars().count() as i64, "minLength", "maxLength"),
        (Some("array"), Value::Array(items)) => {
            within(items.len() as i64, "minItems", "maxItems") && items.iter().all(|item| valid(&schema["items"], item))
        }
        (Some("object"), Value::Object(map)) => {
            let properties = schema["properties"].as_object().unwrap();
            let required = schema["required"].as_array().unwrap();
            required.iter().all(|name| map.contains_key(name.as_str().unwrap()))
                && map.iter().all(|(name, value)| properties.get(name).is_some_and(|schema| valid(schema, value)))
        }
        _ => false,
    }
}

/// Schemas of values that have a longest one.
fn schema() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(json!({"type": "null"})),
        Just(json!({"type": "boolean"})),
        (-500i64..500, 0i64..300)
            .prop_map(|(min, more)| json!({"type": "integer", "minimum": min, "maximum": min + more})),
        (0usize..3, 0usize..4)
            .prop_map(|(min, more)| json!({"type": "string", "minLength": min, "maxLength": min + more})),
        prop::collection::vec(
            prop_oneof![
                "[a-z\"é\\\\ ]{0,6}".prop_map(Value::from),
                any::<i16>().prop_map(Value::from),
                any::<bool>().prop_map(Value::from)
            ],
            1..4
        )
        .prop_map(|all| json!({"enum": all})),
    ];
    leaf.prop_recursive(3, 12, 3, |inner| {
        prop_oneof![
            (inner.clone(), 0usize..2, 0usize..3).prop_map(
                |(items, min, more)| json!({"type": "array", "items": items, "minItems": min, "maxItems": min + more})
            ),
            prop::collection::vec(inner.clone(), 1..3).prop_map(|any| json!({"anyOf": any})),
            prop::collection::btree_map("[a-z\" ]{1,4}", (inner, any::<bool>()), 0..3).prop_map(|properties| {
                let required: Vec<_> =
                    properties.iter().filter(|(_, (_, required))| *required).map(|(k, _)| k.clone()).collect();
                let properties: serde_json::Map<_, _> =
                    properties.into_iter().map(|(k, (schema, _))| (k, schema)).collect();
                json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false})
            }),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// Without white space there is a longest text, and a model that knows nothing still ends with one. With white space it
    /// may not end, but if it does it is right.
    #[test]
    fn what_ends_is_valid(schema in schema(), seed in any::<u64>()) {
        let mut compact = schema.clone();
        compact["x-guidance"] = json!({"whitespace_flexible": false});
        let (compact, free) = (compile(&compact), compile(&schema));
        let greedy = |mut request: Request| {
            request.sampling.temperature = 0.0;
            request
        };
        let handle = ENGINE.handle();
        let must_end = [request(&compact, seed, 1000), request(&compact, seed ^ 1, 1000), greedy(request(&compact, seed, 1000))];
        let may_end = [request(&free, seed, 60), greedy(request(&free, seed, 60))];
        let asked = must_end.into_iter().chain(may_end).map(|request| handle.generate(request));
        for (i, sampled) in block_on(join_all(asked)).into_iter().enumerate() {
            let sampled = sampled.unwrap();
            if *sampled.finish() == FinishReason::Length {
                prop_assert!(i >= 3 && sampled.ids().len() == 60);
                continue;
            }
            let text = text(&sampled);
            let value: Value = serde_json::from_slice(&text)
                .map_err(|e| TestCaseError::fail(format!("{e}: {}", String::from_utf8_lossy(&text))))?;
            prop_assert!(valid(&schema, &value), "{schema}: {value}");
        }
    }
}

#[test]
fn a_guided_request_is_the_same_in_any_company_and_after_giving_way() {
    let guides = [
        compile(&json!({"type": "array", "items": {"type": "string", "maxLength": 3}, "minItems": 2, "maxItems": 5})),
        GRAMMARS.compile(&Grammar::Regex("[a-f]{4,40}(é|日)*".into())).unwrap(),
    ];
    let requests: Vec<Request> = (0..12).map(|i| request(&guides[i % 2], i as u64, 40)).collect();
    let alone: Vec<Sampled> = requests.iter().map(|r| block_on(ENGINE.handle().generate(r.clone())).unwrap()).collect();
    let bytes = snapshot(1).new_cache(&prl_kernels::Meter::default()).growth(1024);
    // Memory for one long sequence, which the short ones share.
    let tight = engine(EngineConfig { cache_bytes: bytes, ..EngineConfig::new(12, 1024) });
    let tight_handle = tight.handle();
    let mut company: Vec<_> = requests.iter().map(|r| tight_handle.generate(r.clone())).collect();
    let free = |seed| {
        let mut request = request(&guides[0], seed, 900);
        (request.guide, request.sampling.stop_token_ids) = (None, Vec::new());
        request
    };
    company.extend((0..3).map(|seed| tight_handle.generate(free(seed))));
    for (got, alone) in block_on(join_all(company)).into_iter().zip(&alone) {
        assert_eq!(got.unwrap(), *alone);
    }
    assert!(tight_handle.stats().preempted > 0);
}

#[test]
fn new_weights_in_between_change_the_tokens_and_not_the_grammar() {
    let engine = engine(EngineConfig::new(4, 1024));
    let handle = engine.handle();
    let guide = GRAMMARS.compile(&Grammar::Regex("(ab|ba|,){200}".into())).unwrap();
    // Held up at its thirtieth token until the weights are there.
    let (go, gate) = std::sync::mpsc::channel::<()>();
    let (gate, calls) = (Mutex::new(gate), AtomicUsize::new(0));
    let mut held = request(&guide, 3, 1000);
    held.sampling.stop = vec!["never".into()];
    held.decode = Some(Arc::new(move |_: &[TokenId]| {
        if calls.fetch_add(1, Ordering::SeqCst) == 30 {
            gate.lock().unwrap().recv().unwrap();
        }
        String::new()
    }));
    let mut events = handle.submit(held);
    let (mut ids, mut versions, mut end) = (Vec::new(), Vec::new(), None);
    while end.is_none() {
        match block_on(events.next()) {
            prl_inference::Event::Token(drawn) => {
                ids.push(drawn.scored.id);
                versions.push(drawn.version.0);
                if ids.len() == 20 {
                    handle.update(snapshot(2), PolicyVersion(1)).unwrap();
                    go.send(()).unwrap();
                }
            }
            prl_inference::Event::End(outcome) => end = Some(outcome),
            prl_inference::Event::Prompt(_) => {}
        }
    }
    assert_eq!(end, Some(Ok(FinishReason::Complete)));
    assert_eq!((versions[0], versions.last()), (0, Some(&1)));
    let sampled =
        Sampled::from_engine(ids.clone(), vec![0.0; ids.len()], Default::default(), FinishReason::Length).unwrap();
    let text = String::from_utf8(text(&sampled)).unwrap();
    let (mut rest, mut pieces) = (text.as_str(), 0);
    while !rest.is_empty() {
        rest = ["ab", "ba", ","].iter().find_map(|piece| rest.strip_prefix(piece)).unwrap();
        pieces += 1;
    }
    assert_eq!(pieces, 200);
}

#[test]
fn bad_grammars_say_why() {
    let reason = |grammar: Grammar| match GRAMMARS.compile(&grammar) {
        Err(InferenceError::BadGrammar { reason }) => reason,
        other => panic!("{grammar:?}: {other:?}"),
    };
    let json = |schema| reason(Grammar::Json(schema));
    let long = "x".repeat(300 << 10);
    for (reason, want) in [
        (json(json!({"type": "objekt"})), "Invalid type: objekt"),
        (json(json!([1])), "schema must be an object or boolean"),
        (json(json!(false)), "Unsatisfiable"),
        (json(json!({"$ref": "#"})), "no text is as it asks"),
        (json(json!({"not": {}})), "Unimplemented keys: [\"not\"]"),
        (json(json!({"$ref": "https://example.com/schema"})), "$ref"),
        (json(json!({"type": "integer", "minimum": 3, "maximum": 2})), "minimum (3) is greater"),
        (json(json!({"const": long})), "bytes; at most 262144"),
        (reason(Grammar::Regex("(".into())), "unclosed group"),
        (reason(Grammar::Regex("(?=a)b".into())), "look-around"),
        (reason(Grammar::Regex("[^\\s\\S]".into())), "no text is as it asks"),
        (reason(Grammar::Regex("(".repeat(100_000) + "a" + &")".repeat(100_000))), "regex"),
        (reason(Grammar::Choice(vec![])), "nothing to choose from"),
        (reason(Grammar::Lark("start: missing".into())), "unknown name"),
        (reason(Grammar::Lark("".into())), "no start rule"),
        (reason(Grammar::Lark(format!("start: {}\"a\"", "(".repeat(100_000)))), "nested"),
    ] {
        assert!(reason.contains(want), "{want}: {}", &reason[..reason.len().min(300)]);
        assert!(!reason.contains("backtrace") && !reason.contains("non-verbose"), "{reason}");
    }
}

/// The compiler calls itself as deep as rules lead to rules.
#[test]
fn the_longest_chains_do_not_bring_the_process_down() {
    let lark = |n: usize| {
        let rules: String = (0..n).map(|i| format!("r{i}:r{}\n", i + 1)).collect();
        Grammar::Lark(format!("start:r0\n{rules}r{n}:\"a\"\n"))
    };
    let refs = |n: usize| {
        let mut definitions: serde_json::Map<String, Value> =
            (0..n).map(|i| (i.to_string(), json!({"$ref": format!("#/$defs/{}", i + 1)}))).collect();
        definitions.insert(n.to_string(), json!({"type": "null"}));
        Grammar::Json(json!({"$defs": definitions, "$ref": "#/$defs/0"}))
    };
    // As many as there is room for.
    for grammar in [lark(18_500), refs(7_600)] {
        // Ready or refused: both are fine.
        if let Err(error) = GRAMMARS.compile(&grammar) {
            assert!(matches!(error, InferenceError::BadGrammar { .. }), "{error}");
            assert!(!error.to_string().contains("bytes; at most"), "{error}");
        }
    }
}

#[test]
fn properties_come_in_the_order_of_the_schema_whatever_is_kept() {
    let order = |names: [&str; 2]| {
        let property = |name: &str| (name.to_owned(), json!({"type": "null"}));
        let properties: serde_json::Map<_, _> = names.into_iter().map(property).collect();
        let options = json!({"whitespace_flexible": false});
        compile(&json!({"type": "object", "properties": properties, "required": names, "additionalProperties": false,
                        "x-guidance": options}))
    };
    for (names, want) in [(["a", "b"], r#"{"a":null,"b":null}"#), (["b", "a"], r#"{"b":null,"a":null}"#)] {
        let sampled = block_on(ENGINE.handle().generate(request(&order(names), 1, 100))).unwrap();
        assert_eq!((text(&sampled).as_slice(), sampled.finish()), (want.as_bytes(), &FinishReason::Complete));
    }
}

/// A model that likes nothing better than white space gets no more of it than that.
#[test]
fn white_space_has_an_end() {
    let longest = |options: Value| {
        let mut schema = json!({"type": "array", "items": {"type": "null"}, "minItems": 1, "maxItems": 2});
        schema.as_object_mut().unwrap().extend(options.as_object().unwrap().clone());
        let mut request = request(&compile(&schema), 1, 300);
        request.sampling.logit_bias = vec![(u32::from(b' '), 100.0)];
        let sampled = block_on(ENGINE.handle().generate(request)).unwrap();
        String::from_utf8(text(&sampled)).unwrap().split(|c| c != ' ').map(str::len).max().unwrap()
    };
    assert_eq!(longest(json!({})), 40);
    assert_eq!(longest(json!({"x-guidance": {"lenient": true}})), 40);
    assert_eq!(longest(json!({"x-guidance": {"whitespace_pattern": " {1,3}"}})), 3);
    assert_eq!(longest(json!({"x-guidance": {"whitespace_flexible": false}})), 0);
    assert!(longest(json!({"x-guidance": {"whitespace_flexible": true}})) > 250);
    assert!(block_on(ENGINE.handle().generate(request(&compile(&json!(true)), 1, 5))).is_ok());
}

#[test]
fn grammars_of_another_vocabulary_are_refused() {
    let other = Grammars::new(&[Word::Text(b"a".to_vec())]).unwrap().compile(&Grammar::Regex("a".into())).unwrap();
    let refused = block_on(ENGINE.handle().generate(request(&other, 0, 5))).unwrap_err();
    assert!(refused.to_string().contains("`guide` is for a vocabulary of 1"), "{refused}");
}
