//! A tiny model folder: a byte-level tokenizer with a few merges, and one of the test templates.

use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Special tokens, in id order after the 256 bytes and the merges.
pub const ADDED: [(&str, bool); 26] = [
    ("<|bos|>", true),
    ("<|im_start|>", true),
    ("<|im_end|>", true),
    ("<|endoftext|>", true),
    ("<|start|>", true),
    ("<|sep|>", true),
    ("<think>", false),
    ("</think>", false),
    ("<|begin_of_text|>", true),
    ("<|start_header_id|>", true),
    ("<|end_header_id|>", true),
    ("<|eot_id|>", true),
    ("<|eom_id|>", true),
    ("<|python_tag|>", true),
    ("[gMASK]", true),
    ("<sop>", true),
    ("<|system|>", true),
    ("<|user|>", true),
    ("<|assistant|>", true),
    ("<|observation|>", true),
    ("<|channel|>", true),
    ("<|message|>", true),
    ("<|end|>", true),
    ("<|return|>", true),
    ("<|call|>", true),
    ("<|constrain|>", true),
];

/// Path of a test template.
pub fn template(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/templates").join(name)
}

/// GPT-2's printable stand-in for each byte.
fn byte_chars() -> Vec<char> {
    let printable = |b: u32| (33..=126).contains(&b) || (161..=172).contains(&b) || (174..=255).contains(&b);
    let mut next = 256;
    (0u32..256)
        .map(|b| {
            let code = if printable(b) {
                b
            } else {
                next += 1;
                next - 1
            };
            char::from_u32(code).unwrap()
        })
        .collect()
}

/// `tokenizer.json`: bytes, merges that cross word, space and newline borders, added tokens; adds BOS itself when asked
/// for special tokens.
pub fn tokenizer_json() -> Value {
    let mut tokens: Vec<String> = byte_chars().into_iter().map(String::from).collect();
    let merges = [
        ("Ċ", "Ċ"),
        ("t", "h"),
        ("th", "e"),
        ("Ġ", "the"),
        ("a", "n"),
        ("an", "s"),
        ("r", "e"),
        ("Ġ", "Ġ"),
        (":", "Ċ"),
    ];
    tokens.extend(merges.iter().map(|(a, b)| format!("{a}{b}")));
    let vocab: serde_json::Map<String, Value> = tokens.iter().enumerate().map(|(n, t)| (t.clone(), json!(n))).collect();
    let added: Vec<Value> = ADDED
        .iter()
        .enumerate()
        .map(|(n, (content, special))| {
            json!({"id": tokens.len() + n, "content": content, "special": special, "single_word": false,
                   "lstrip": false, "rstrip": false, "normalized": false})
        })
        .collect();
    let bos = tokens.len();
    json!({
        "version": "1.0",
        "truncation": {"direction": "Right", "max_length": 8, "strategy": "LongestFirst", "stride": 0},
        "padding": null,
        "added_tokens": added,
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "behavior": "Isolated", "invert": false, "pattern": {"Regex":
                r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"}},
            {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}]},
        "post_processor": {"type": "Sequence", "processors": [
            {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
            {"type": "TemplateProcessing",
             "single": [{"SpecialToken": {"id": "<|bos|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
             "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
             "special_tokens": {"<|bos|>": {"id": "<|bos|>", "ids": [bos], "tokens": ["<|bos|>"]}}}]},
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                  "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "vocab": vocab,
                  "merges": merges.iter().map(|(a, b)| format!("{a} {b}")).collect::<Vec<_>>()}
    })
}

/// Writes a model folder with the given test template.
pub fn model_dir(template_name: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, value: &Value| std::fs::write(dir.path().join(name), value.to_string()).unwrap();
    write("tokenizer.json", &tokenizer_json());
    write(
        "tokenizer_config.json",
        &json!({"bos_token": "<|bos|>", "eos_token": {"content": "<|im_end|>", "special": true}}),
    );
    write("generation_config.json", &json!({"eos_token_id": [267, 268]}));
    std::fs::copy(template(template_name), dir.path().join("chat_template.jinja")).unwrap();
    dir
}
