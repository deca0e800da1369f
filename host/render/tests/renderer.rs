//! Behaviour of the renderer over a tiny byte-level model folder.

mod common;

use prl_render::{Choice, LossMask, RenderError, Rendered, Renderer, RendererOptions};
use prl_types::{FinishReason, Message, PolicyVersion, Role, RoleSpan, Sampled, TokenId, ToolCall, ToolDef};
use proptest::prelude::*;
use serde_json::json;
use std::sync::LazyLock;

fn load(template: &str) -> Renderer {
    let options = RendererOptions { choice: Choice::Template, ..Default::default() };
    Renderer::load(common::model_dir(template).path(), options).unwrap()
}

/// Without the marks of what the model writes, so that masks need proof.
fn unmarked(template: &str) -> Renderer {
    let text = std::fs::read_to_string(common::template(template)).unwrap();
    let text = text.replace("{%- generation %}", "").replace("{%- endgeneration %}", "");
    let options = RendererOptions { chat_template: Some(text), choice: Choice::Template, ..Default::default() };
    Renderer::load(common::model_dir(template).path(), options).unwrap()
}

fn bridge(renderer: &Renderer, previous: &[TokenId], new: &[Message]) -> Option<Rendered> {
    renderer.bridge_to_next_turn(previous, new).unwrap()
}

static CHATML: LazyLock<Renderer> = LazyLock::new(|| unmarked("chatml.jinja"));
static MARKED: LazyLock<Renderer> = LazyLock::new(|| load("chatml.jinja"));
static THINKING: LazyLock<Renderer> = LazyLock::new(|| load("thinking.jinja"));
static HEADERS: LazyLock<Renderer> = LazyLock::new(|| load("headers.jinja"));

fn user(text: &str) -> Message {
    Message::text(Role::User, text)
}

fn assistant(text: &str) -> Message {
    Message::text(Role::Assistant, text)
}

fn tool() -> ToolDef {
    ToolDef { name: "get".into(), description: "d".into(), parameters: json!({"type": "object"}), strict: false }
}

/// Text of the spans with the given flags, in order.
fn texts(renderer: &Renderer, ids: &[TokenId], spans: &[RoleSpan], content: bool) -> Vec<(Role, String)> {
    spans
        .iter()
        .filter(|s| s.is_content == content)
        .map(|s| (s.role, renderer.decode(&ids[s.start..s.start + s.len]).unwrap()))
        .collect()
}

/// Text of the masked runs.
fn trained(renderer: &Renderer, ids: &[TokenId], mask: &[bool]) -> Vec<String> {
    let mut runs: Vec<Vec<TokenId>> = Vec::new();
    let mut open = false;
    for (id, on) in ids.iter().zip(mask) {
        if *on {
            if !open {
                runs.push(Vec::new());
            }
            runs.last_mut().unwrap().push(*id);
        }
        open = *on;
    }
    runs.iter().map(|run| renderer.decode(run).unwrap()).collect()
}

#[test]
fn a_text_gains_exactly_one_bos_on_every_path() {
    let bos = HEADERS.tokenizer().token_to_id("<|bos|>").unwrap();
    let count = |ids: &[TokenId]| ids.iter().filter(|id| **id == bos).count();
    let chat = [user("hi")];
    let prompt = HEADERS.render_ids(&chat, &[], true).unwrap().ids;
    assert_eq!((count(&prompt), prompt[0]), (1, bos));
    let sft = HEADERS.training_sample(&[user("hi"), assistant("yo")], &[], LossMask::default()).unwrap().ids;
    assert_eq!(count(&sft), 1);
    assert_eq!(count(&HEADERS.tokenizer().encode_plain("hi").unwrap()), 1);
    let again = HEADERS.tokenizer().encode_plain("<|bos|>hi").unwrap();
    assert_eq!((count(&again), again.len()), (1, 3));
    // A template without BOS gets none: the model was trained on what the template says.
    assert_eq!(count(&CHATML.render_ids(&chat, &[], true).unwrap().ids), 0);
}

#[test]
fn bytes_of_tokens_are_those_of_their_text() {
    let (tokenizer, bytes) = (CHATML.tokenizer(), CHATML.tokenizer().bytes().unwrap());
    assert_eq!(bytes.len(), tokenizer.vocab_size());
    for text in ["the  answers\n\n:\nè 日本 🙂", "\u{0}\u{7f}~\u{ad}\u{a0}", "<think>the</think>"] {
        let ids = tokenizer.encode(text).unwrap();
        let joined: Vec<u8> = ids.iter().flat_map(|id| bytes[*id as usize].clone().unwrap()).collect();
        assert_eq!(joined, text.as_bytes());
    }
    let special = tokenizer.token_to_id("<|im_end|>").unwrap();
    assert_eq!((&bytes[special as usize], CHATML.reasoning_end()), (&None, tokenizer.token_to_id("</think>")));
}

#[test]
fn the_files_truncation_is_off_and_the_vocabulary_is_counted() {
    let long = "word ".repeat(40);
    assert!(CHATML.tokenizer().encode(&long).unwrap().len() > 100);
    let last = common::ADDED.last().unwrap().0;
    assert_eq!(CHATML.tokenizer().vocab_size() as u32, CHATML.tokenizer().token_to_id(last).unwrap() + 1);
}

#[test]
fn stop_tokens_come_from_template_and_configuration() {
    let id = |t: &str| CHATML.tokenizer().token_to_id(t).unwrap();
    assert_eq!(CHATML.stop_token_ids(), [id("<|im_end|>"), id("<|endoftext|>")]);
}

#[test]
fn spans_tell_content_from_scaffold() {
    let chat = [Message::text(Role::System, "user"), user("user"), assistant("a:\n\nb"), user("the answer")];
    let r = CHATML.render_ids(&chat, &[], true).unwrap();
    let content = texts(&CHATML, &r.ids, &r.spans, true);
    assert_eq!(
        content,
        [
            (Role::System, "user".into()),
            (Role::User, "user".into()),
            (Role::Assistant, "a:\n\nb".into()),
            (Role::User, "the answer".into())
        ]
    );
    let scaffold = texts(&CHATML, &r.ids, &r.spans, false);
    assert_eq!(scaffold.first().unwrap(), &(Role::System, "<|im_start|>system\n".to_string()));
    assert_eq!(scaffold.last().unwrap(), &(Role::Assistant, "<|im_start|>assistant\n".to_string()));
    let covered: usize = r.spans.iter().map(|s| s.len).sum();
    assert_eq!(covered, r.ids.len());
}

#[test]
fn a_token_that_straddles_into_the_content_is_scaffold() {
    // "\n" of the header and "\n" of the content merge into one token.
    let r = CHATML.render_ids(&[user("\nx")], &[], false).unwrap();
    assert_eq!(texts(&CHATML, &r.ids, &r.spans, true), [(Role::User, "x".into())]);
}

#[test]
fn trimmed_and_unstable_content_is_still_located() {
    let r = HEADERS.render_ids(&[user("  padded  ")], &[], true).unwrap();
    assert_eq!(texts(&HEADERS, &r.ids, &r.spans, true), [(Role::User, "padded".into())]);
    // The thinking template changes earlier turns; the contents are found all the same.
    let mut answer = assistant("ans");
    answer.reasoning = Some("why".into());
    let r = THINKING.render_ids(&[user("q1"), answer, user("q2")], &[], true).unwrap();
    let found: Vec<String> = texts(&THINKING, &r.ids, &r.spans, true).into_iter().map(|(_, t)| t).collect();
    assert_eq!(found, ["q1", "ans", "q2"]);
}

#[test]
fn the_default_mask_is_what_the_model_samples() {
    let mut call = assistant("");
    call.tool_calls.push(ToolCall { id: "c".into(), name: "get".into(), arguments: "{\"a\":1}".into() });
    let reply = Message { tool_call_id: Some("c".into()), ..Message::text(Role::Tool, "42") };
    let chat = [user("q"), call, reply, assistant("it is 42")];
    let s = CHATML.training_sample(&chat, &[tool()], LossMask::default()).unwrap();
    assert_eq!(
        trained(&CHATML, &s.ids, &s.mask),
        ["<tool_call>\n{\"name\": \"get\", \"arguments\": {\"a\": 1}}\n</tool_call><|im_end|>", "it is 42<|im_end|>"]
    );
    assert_eq!(s.ids.len(), s.mask.len());
    // An answer by itself has the same ids, up to where it was cut.
    for n in [1, 3] {
        let before = CHATML.render_ids(&chat[..n], &[tool()], true).unwrap().ids;
        let ids = CHATML.answer_ids(&chat[..n], &[tool()], &chat[n], false).unwrap();
        assert_eq!(s.ids[before.len()..][..ids.len()], ids[..]);
        assert!(
            s.mask[before.len()..][..ids.len()].iter().all(|m| *m)
                && CHATML.stop_token_ids().contains(&ids[ids.len() - 1])
        );
        assert_eq!(CHATML.answer_ids(&chat[..n], &[tool()], &chat[n], true).unwrap(), ids[..ids.len() - 1]);
    }
    let all = LossMask { user: true, tool: true, system: false, assistant: false };
    let s = CHATML.training_sample(&chat, &[tool()], all).unwrap();
    assert_eq!(trained(&CHATML, &s.ids, &s.mask), ["q", "42"]);
}

#[test]
fn marks_of_a_template_are_the_mask() {
    let (texts, mut call) = (["a", "\n\nb", "the answer"], assistant(""));
    call.tool_calls.push(ToolCall { id: "c".into(), name: "get".into(), arguments: "{}".into() });
    let chat = [user("q"), assistant(texts[0]), user("q"), assistant(texts[1]), user("q"), call, assistant(texts[2])];
    let s = MARKED.training_sample(&chat, &[tool()], LossMask::default()).unwrap();
    // A token with a part in what is marked is trained, as in transformers: here the line break of the header.
    let call = "<tool_call>\n{\"name\": \"get\", \"arguments\": {}}\n</tool_call><|im_end|>";
    let want =
        ["a<|im_end|>".to_owned(), "\n\n\nb<|im_end|>".to_owned(), call.to_owned(), "the answer<|im_end|>".to_owned()];
    assert_eq!(trained(&MARKED, &s.ids, &s.mask), want);
    assert_eq!(s.ids, MARKED.render_ids(&chat, &[tool()], false).unwrap().ids);
    // What proves a mask finds the same where nothing merges.
    let plain = [&chat[..2], &chat[4..]].concat();
    let (a, b) = (LossMask::default(), LossMask { user: true, ..LossMask::default() });
    for loss in [a, b] {
        let sample = |r: &Renderer| r.training_sample(&plain, &[tool()], loss).unwrap();
        assert_eq!(sample(&MARKED), sample(&CHATML));
    }
    let forged = [user("q"), assistant("a\u{fdd1}b")];
    let err = MARKED.training_sample(&forged, &[], LossMask::default()).unwrap_err().to_string();
    assert!(err.contains("cannot be located"), "{err}");
}

#[test]
fn arguments_as_text_and_as_object_render_alike() {
    let render = |arguments: &str| {
        let mut call = assistant("");
        call.tool_calls.push(ToolCall { id: "c".into(), name: "get".into(), arguments: arguments.into() });
        CHATML.render_text(&[user("q"), call], &[tool()], false).unwrap()
    };
    assert_eq!(render("{\"a\":1}"), render("{ \"a\": 1 }"));
}

#[test]
fn unprovable_masks_are_refused() {
    let chat = [user("q1"), assistant("<think>\nr\n</think>\n\na1"), user("q2"), assistant("a2")];
    let err = THINKING.training_sample(&chat, &[], LossMask::default()).unwrap_err();
    assert!(matches!(err, RenderError::NotPrefixStable { message: 1, .. }), "{err}");
    // Turn by turn there is proof: each turn is trained once, behind what the model saw before it.
    let samples = THINKING.training_samples(&chat, &[], LossMask::default()).unwrap();
    let texts: Vec<Vec<String>> = samples.iter().map(|s| trained(&THINKING, &s.ids, &s.mask)).collect();
    assert_eq!(texts, [["<think>\nr\n</think>\n\na1<|im_end|>"], ["<think>\n\n</think>\n\na2<|im_end|>"]]);
    assert_eq!(samples[1].ids, THINKING.render_ids(&chat, &[], false).unwrap().ids);
    let all = LossMask { user: true, ..LossMask::default() };
    let more = [&chat[..], &[user("q3")]].concat();
    let samples = THINKING.training_samples(&more, &[], all).unwrap();
    let texts: Vec<String> = samples.iter().map(|s| trained(&THINKING, &s.ids, &s.mask).concat()).collect();
    let (first, second) = ("q1<think>\nr\n</think>\n\na1<|im_end|>", "q2<think>\n\n</think>\n\na2<|im_end|>");
    assert_eq!(texts, [first, second, "q3"]);
    let s = THINKING.training_sample(&chat[..2], &[], LossMask::default()).unwrap();
    assert_eq!(trained(&THINKING, &s.ids, &s.mask), ["<think>\nr\n</think>\n\na1<|im_end|>"]);

    let merged = [user("q"), assistant("\nx")];
    let err = CHATML.training_sample(&merged, &[], LossMask::default()).unwrap_err();
    assert!(err.to_string().contains("merges with the generation prompt"), "{err}");
}

#[test]
fn a_template_without_stop_token_is_refused() {
    let dir = common::model_dir("chatml.jinja");
    let template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}\
                    {% if add_generation_prompt %}assistant: {% endif %}";
    let options = RendererOptions { chat_template: Some(template.into()), ..Default::default() };
    let r = Renderer::load(dir.path(), options).unwrap();
    let err = r.training_sample(&[user("q"), assistant("a")], &[], LossMask::default()).unwrap_err();
    assert!(matches!(err, RenderError::NoStopToken { message: 1, .. }), "{err}");
    let err = r.answer_ids(&[user("q")], &[], &assistant("a"), true).unwrap_err();
    assert!(matches!(err, RenderError::NoStopToken { message: 1, .. }), "{err}");
    assert!(bridge(&r, &[1], &[user("x")]).is_none());
}

#[test]
fn a_stop_token_that_opens_the_next_turn_is_trained() {
    let dir = common::model_dir("chatml.jinja");
    let template = "{% for m in messages %}<|im_end|>{{ m.role }}<|sep|>{{ m.content }}{% endfor %}\
                    {% if add_generation_prompt %}<|im_end|>assistant<|sep|>{% endif %}";
    let options = RendererOptions { chat_template: Some(template.into()), ..Default::default() };
    let r = Renderer::load(dir.path(), options).unwrap();
    let s = r.training_sample(&[user("q"), assistant("a"), user("q")], &[], LossMask::default()).unwrap();
    assert_eq!(trained(&r, &s.ids, &s.mask), ["a<|im_end|>"]);
}

#[test]
fn the_bridge_extends_verbatim_what_the_template_would_render() {
    let first = CHATML.render_ids(&[user("q")], &[tool()], true).unwrap().ids;
    let mut previous = first.clone();
    previous.extend(CHATML.tokenizer().encode("it is<|im_end|>").unwrap());
    let reply = Message { tool_call_id: Some("c".into()), ..Message::text(Role::Tool, "4\n2") };
    for new in [vec![user("go on")], vec![reply, user("and?")]] {
        let bridge = bridge(&CHATML, &previous, &new).unwrap();
        let whole = [vec![user("q"), assistant("it is")], new.clone()].concat();
        let whole = CHATML.render_ids(&whole, &[tool()], true).unwrap().ids;
        assert_eq!([previous.clone(), bridge.ids.clone()].concat(), whole);
        let content: Vec<String> =
            texts(&CHATML, &bridge.ids, &bridge.spans, true).into_iter().map(|(_, t)| t).collect();
        assert_eq!(content, new.iter().map(|m| m.content.clone()).collect::<Vec<_>>());
        assert_eq!(bridge.spans.iter().map(|s| s.len).sum::<usize>(), bridge.ids.len());
    }
}

#[test]
fn a_turn_that_was_cut_off_is_closed_by_the_bridge() {
    let mut previous = CHATML.render_ids(&[user("q")], &[], true).unwrap().ids;
    previous.extend(CHATML.tokenizer().encode("it i").unwrap());
    let bridge = bridge(&CHATML, &previous, &[user("x")]).unwrap();
    assert_eq!(
        CHATML.decode(&bridge.ids).unwrap(),
        "<|im_end|>\n<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n"
    );
    assert_eq!(bridge.spans[0], RoleSpan { start: 0, len: 1, role: Role::Assistant, is_content: false });
}

#[test]
fn no_bridge_without_proof() {
    let eot = CHATML.tokenizer().token_to_id("<|endoftext|>").unwrap();
    assert!(bridge(&CHATML, &[1, eot], &[user("x")]).is_none(), "another stop token than the template's");
    assert!(bridge(&CHATML, &[], &[user("x")]).is_none());
    assert!(bridge(&CHATML, &[1], &[]).is_none());
    assert!(bridge(&CHATML, &[1], &[assistant("x")]).is_none());
    // A template whose text between turns depends on how many there were.
    let dir = common::model_dir("chatml.jinja");
    let template = "{% for m in messages %}[{{ loop.index }}]{{ m.content }}<|im_end|>{% endfor %}";
    let options = RendererOptions { chat_template: Some(template.into()), ..Default::default() };
    let r = Renderer::load(dir.path(), options).unwrap();
    assert!(bridge(&r, &[1], &[user("x")]).is_none());
}

#[test]
fn the_bridge_keeps_reasoning_that_the_template_would_strip() {
    let mut ids = THINKING.render_ids(&[user("q1")], &[], true).unwrap().ids;
    ids.extend(THINKING.tokenizer().encode("<think>\nr\n</think>\n\na1<|im_end|>").unwrap());
    ids.extend(bridge(&THINKING, &ids, &[user("q2")]).unwrap().ids);
    let text = THINKING.decode(&ids).unwrap();
    assert!(text.contains("<think>\nr\n</think>\n\na1<|im_end|>\n<|im_start|>user\nq2"), "{text}");
}

#[test]
fn responses_lose_the_stop_token_and_stray_special_tokens() {
    let ids = THINKING.tokenizer().encode("<think>\nr\n</think>\n\na<|im_start|>b<|im_end|>").unwrap();
    let m = THINKING.parse_response(&ids, &[]).unwrap();
    assert_eq!((m.reasoning.as_deref(), m.content.as_str()), (Some("r"), "ab"));
    // The same text means nothing special to a template without reasoning.
    let m = CHATML.parse_response(&ids, &[]).unwrap();
    assert!(m.content.starts_with("<think>") && m.reasoning.is_none());
    assert_eq!(CHATML.parse_response(&[], &[]).unwrap().content, "");

    let version = (PolicyVersion(0), PolicyVersion(0));
    let ids = CHATML.tokenizer().encode("answer END tail").unwrap();
    let n = ids.len();
    let sampled = Sampled::from_engine(ids, vec![-1.0; n], version, FinishReason::StopString("END".into())).unwrap();
    assert_eq!(CHATML.parse_sampled(&sampled, &[]).unwrap().content, "answer ");
}

#[test]
fn a_prompt_that_opens_the_reasoning_is_remembered() {
    let dir = common::model_dir("thinking.jinja");
    let variables = json!({"open_thinking": true}).as_object().unwrap().clone();
    let r = Renderer::load(dir.path(), RendererOptions { variables, ..Default::default() }).unwrap();
    let ids = r.tokenizer().encode("r\n</think>\n\na<|im_end|>").unwrap();
    let m = r.parse_response(&ids, &[]).unwrap();
    assert_eq!((m.reasoning.as_deref(), m.content.as_str()), (Some("r"), "a"));
}

#[test]
fn decoding_piece_by_piece_gives_the_whole_text() {
    let text = "日本 🎉 the answer<|im_end|>é";
    let ids = CHATML.tokenizer().encode(text).unwrap();
    let mut stream = CHATML.tokenizer().stream(false);
    let mut out = String::new();
    for id in &ids {
        let piece = stream.push(*id).unwrap();
        assert!(!piece.contains('\u{fffd}'));
        out.push_str(&piece);
    }
    out.push_str(&stream.finish().unwrap());
    assert_eq!(out, text);
    let mut cut = CHATML.tokenizer().stream(true);
    cut.push(ids[0]).unwrap();
    assert_eq!(cut.finish().unwrap(), "\u{fffd}");
}

#[test]
fn what_is_missing_or_broken_is_named() {
    let dir = common::model_dir("chatml.jinja");
    let path = |name: &str| dir.path().join(name);
    let load = |template: Option<&str>| {
        let options = RendererOptions { chat_template: template.map(String::from), ..Default::default() };
        Renderer::load(dir.path(), options)
    };
    let file = common::template("headers.jinja");
    assert!(
        load(Some(file.to_str().unwrap())).unwrap().render_text(&[user("x")], &[], true).unwrap().contains("<|sep|>")
    );
    assert!(matches!(load(Some("missing.jinja")), Err(RenderError::TemplateOption { .. })));
    let err = load(Some("{% if %}")).unwrap_err().to_string();
    assert!(err.contains("chat_template option") && err.contains("does not compile"), "{err}");

    std::fs::remove_file(path("chat_template.jinja")).unwrap();
    let err = load(None).unwrap_err().to_string();
    assert!(err.contains("chat_template.jinja") && err.contains("tokenizer_config.json"), "{err}");

    let list = json!({"chat_template": [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]});
    std::fs::write(path("tokenizer_config.json"), list.to_string()).unwrap();
    let r = load(None).unwrap();
    assert_eq!(r.render_text(&[user("x")], &[], false).unwrap(), "D");
    assert_eq!(r.render_text(&[user("x")], &[tool()], false).unwrap(), "T");

    std::fs::write(path("generation_config.json"), "{\"eos_token_id\": \"x\"}").unwrap();
    assert!(matches!(load(None), Err(RenderError::Json { .. })));
    std::fs::write(path("generation_config.json"), "{").unwrap();
    assert!(matches!(load(None), Err(RenderError::Json { .. })));
    std::fs::write(path("tokenizer.json"), "{}").unwrap();
    assert!(matches!(load(None), Err(RenderError::Tokenizer { .. })));
    std::fs::remove_file(path("tokenizer.json")).unwrap();
    let err = load(None).unwrap_err();
    assert!(matches!(&err, RenderError::Read { .. }) && err.to_string().contains("tokenizer.json"), "{err}");
}

#[test]
fn a_template_that_refuses_says_why_and_where() {
    let chat = [user("x"), Message::text(Role::System, "late")];
    let err = HEADERS.render_ids(&chat, &[], true).unwrap_err().to_string();
    assert!(err.contains("unexpected role system") && err.contains("chat_template.jinja"), "{err}");
}

/// Words that meet every kind of border: spaces, newlines, merges, multi-byte characters, special tokens' look-alikes.
fn content() -> impl Strategy<Value = String> {
    let words = ["the", " ", "\n", "ans", ":\n", "é", "🎉", "user", "<think>", "</think>", "assistant", "<", "|"];
    prop::collection::vec(prop::sample::select(words.to_vec()), 0..6).prop_map(|w| w.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn every_turn_is_a_prefix_of_the_next(turns in prop::collection::vec((content(), content()), 1..4)) {
        for renderer in [&*CHATML, &*THINKING, &*HEADERS] {
            let mut ids = renderer.render_ids(&[user("start")], &[], true).unwrap().ids;
            for (answer, question) in &turns {
                ids.extend(renderer.tokenizer().encode(&format!("{answer}<|im_end|>")).unwrap());
                let before = ids.clone();
                let bridge = bridge(renderer, &ids, &[user(question)]).unwrap();
                ids.extend(bridge.ids);
                prop_assert!(ids.starts_with(&before));
            }
        }
    }

    #[test]
    fn spans_are_ordered_and_inside(chat in prop::collection::vec(content(), 1..5)) {
        let chat: Vec<Message> =
            chat.iter().enumerate().map(|(n, c)| if n % 2 == 0 { user(c) } else { assistant(c) }).collect();
        for renderer in [&*CHATML, &*THINKING, &*HEADERS] {
            let r = renderer.render_ids(&chat, &[], true).unwrap();
            let mut end = 0;
            for span in &r.spans {
                prop_assert!(span.start >= end && span.len > 0);
                end = span.start + span.len;
            }
            prop_assert!(end <= r.ids.len());
        }
    }

    #[test]
    fn a_mask_never_covers_the_users_tokens(chat in prop::collection::vec((content(), content()), 1..3)) {
        let chat: Vec<Message> = chat.iter().flat_map(|(q, a)| [user(q), assistant(a)]).collect();
        if let Ok(s) = CHATML.training_sample(&chat, &[], LossMask::default()) {
            let runs = trained(&CHATML, &s.ids, &s.mask);
            let want: Vec<String> = chat.iter().filter(|m| m.role == Role::Assistant)
                .map(|m| format!("{}<|im_end|>", m.content)).collect();
            prop_assert_eq!(runs, want);
        }
    }
}
