//! Templates that do not end, texts that are too long, tokenizers that give up: each is an error, soon, and says what it is.

mod common;

use prl_render::{Choice, LossMask, RenderError, Renderer, RendererOptions, Tokenizer, read_conversation};
use prl_types::{Message, Role};
use serde_json::{Value, json};

fn with_template(template: &str) -> Result<Renderer, RenderError> {
    let options =
        RendererOptions { chat_template: Some(template.into()), choice: Choice::Template, ..Default::default() };
    Renderer::load(common::model_dir("chatml.jinja").path(), options)
}

fn chat(messages: usize, text: &str) -> Vec<Message> {
    let role = |n: usize| if n.is_multiple_of(2) { Role::User } else { Role::Assistant };
    (0..messages).map(|n| Message::text(role(n), text)).collect()
}

#[test]
fn a_template_without_end_is_told_at_once() {
    let ways = [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}{{ messages[0].content }}",
        "{% macro f(n) %}{% if n > 0 %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
        "{% set ns = namespace(x='x') %}{% for a in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ ns.x }}",
        "{{ 'x' * 10**10 }}",
    ];
    for template in ways {
        let error = with_template(template).unwrap_err().to_string();
        assert!(error.starts_with("chat template from the chat_template option fails on 2 messages"), "{error}");
        assert!(error.contains("look for a loop without end"), "{error}");
    }
}

#[test]
fn more_text_than_any_context_is_refused() {
    let ways = [
        "{% for a in range(40) %}{{ 'x' * 500000 }}{% endfor %}",
        "{{ [0] * 10**8 }}",
        "{% set x %}{{ [0] * 10**8 }}{% endset %}{{ x }}",
        "{{ ([0] * 10**8) | string }}",
        "{{ ([0] * 10**8) | tojson }}",
    ];
    for template in ways {
        let error = with_template(template).unwrap_err().to_string();
        assert!(error.starts_with("chat template from the chat_template option fails on 2 messages"), "{error}");
        assert!(error.contains("longer than any model's context"), "{template}: {error}");
    }
    let nested = "{% set ns = namespace(x=[]) %}{% for a in range(9999) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x | tojson }}";
    let error = with_template(nested).unwrap().render_text(&chat(1, "x"), &[], false).unwrap_err().to_string();
    assert!(error.contains("512 deep in each other"), "{error}");
    let renderer = with_template("{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}").unwrap();
    let error = renderer.tokenizer().encode(&"ab ".repeat(6 << 20)).unwrap_err().to_string();
    assert!(error.contains("longer than any model's context"), "{error}");
}

#[test]
fn long_conversations_pass() {
    for template in ["chatml.jinja", "thinking.jinja", "headers.jinja"] {
        let options = RendererOptions { choice: Choice::Template, ..Default::default() };
        let renderer = Renderer::load(common::model_dir(template).path(), options).unwrap();
        let text = renderer.render_text(&chat(20_000, "the answer"), &[], false).unwrap();
        assert!(text.len() > 20_000 * 20);
        let text = renderer.render_text(&chat(2, &"the answer ".repeat(700_000)), &[], false).unwrap();
        assert!(text.len() > 15_000_000);
    }
}

/// A tokenizer whose regular expression tries too long on a text is an error; nothing is on the console, and it goes on.
#[test]
fn a_tokenizer_that_gives_up_is_an_error() {
    let dir = common::model_dir("chatml.jinja");
    let mut file = common::tokenizer_json();
    file["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = json!(r"(?:a|a)+[bc]c|.");
    std::fs::write(dir.path().join("tokenizer.json"), file.to_string()).unwrap();
    let tokenizer = Tokenizer::load(dir.path()).unwrap();
    let text = format!("{}b", "a".repeat(40));
    for _ in 0..2 {
        let error = tokenizer.encode(&text).unwrap_err();
        assert!(
            matches!(&error, RenderError::Encode { chars: 41, reason } if reason.contains("retry-limit")),
            "{error}"
        );
    }
    assert_eq!(tokenizer.decode(&tokenizer.encode("ba").unwrap(), false).unwrap(), "ba");
}

fn row(assistant: Value) -> Vec<Message> {
    read_conversation(&json!({"messages": [{"role": "user", "content": "q"}, assistant]})).unwrap().messages
}

/// As in Python: a key that a row does not have is undefined, which some templates cannot join to a text.
#[test]
fn a_message_without_content_is_not_an_empty_one() {
    let renderer = with_template(
        "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}\
         {% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    )
    .unwrap();
    let call = json!([{"id": "c", "function": {"name": "f", "arguments": "{}"}}]);
    let sample = |message: Value| renderer.training_samples(&row(message), &[], LossMask::default());
    for bare in [
        json!({"role": "assistant", "tool_calls": call}),
        json!({"role": "assistant", "content": null, "tool_calls": call}),
    ] {
        let error = sample(bare).unwrap_err().to_string();
        assert!(error.contains("fails on 2 messages"), "{error}");
    }
    assert!(sample(json!({"role": "assistant", "content": "", "tool_calls": call})).is_ok());
    let asks = with_template("{% for m in messages %}{{ m.content is defined }}{{ m.content }}{% endfor %}").unwrap();
    let shown = asks.render_text(&row(json!({"role": "assistant", "content": null, "tool_calls": call})), &[], false);
    assert_eq!(shown.unwrap(), "TrueqFalse");
}

#[test]
fn whole_numbers_keep_their_digits_in_every_place() {
    let digits = "123456789012345678901234567890123456789012345678901234567890";
    let arguments = format!("{{\"n\": {digits}, \"m\": 18446744073709551616}}");
    let template = "{% for m in messages %}{% for c in m.tool_calls %}{% set a = c.function.arguments %}{{ a | tojson }} \
                    {{ a.n }} {{ a.n | string }} {{ a.n is number }}{{ a.n is integer }}{{ a.n is string }} {{ a.m + 1 }} {{ a }}\
                    {% endfor %}{% endfor %}";
    let call = json!({"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]});
    let shown = with_template(template).unwrap().render_text(&row(call), &[], false).unwrap();
    assert!(
        shown.starts_with(&format!("{arguments} {digits} {digits} TrueTrueFalse 18446744073709551617 {{")),
        "{shown}"
    );
    assert!(shown.matches(digits).count() == 4, "{shown}");
    // What a reader of rows has made a float of is not what was there.
    let call = json!([{"function": {"name": "f", "arguments": {"a": [1.8446744073709552e19]}}}]);
    let row = json!({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "tool_calls": call}]});
    let told = read_conversation(&row).unwrap_err();
    assert!(told.starts_with("the number 1.8446744073709552e+19 in `arguments` may have lost digits"), "{told}");
}
