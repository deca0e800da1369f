//! Hand-written formats: what they write, that turns extend each other, what they refuse, and when `auto` chooses one.

mod common;

use prl_render::{Calls, Choice, FormatName, LossMask, Open, RenderError, Renderer, RendererOptions, Thinking};
use prl_types::{Message, Role, TokenId, ToolCall, ToolDef};
use proptest::prelude::*;
use serde_json::json;
use std::path::Path;
use std::sync::LazyLock;

/// A format by name, for a folder without a template.
fn named(name: FormatName, options: RendererOptions) -> Result<Renderer, RenderError> {
    let dir = common::model_dir("chatml.jinja");
    std::fs::remove_file(dir.path().join("chat_template.jinja")).unwrap();
    Renderer::load(dir.path(), RendererOptions { choice: Choice::Format(name), ..options })
}

fn plain(name: FormatName) -> Renderer {
    named(name, RendererOptions::default()).unwrap()
}

fn with_template(template: &str) -> Renderer {
    let options = RendererOptions { chat_template: Some(template.into()), ..Default::default() };
    Renderer::load(common::model_dir("chatml.jinja").path(), options).unwrap()
}

/// Qwen3's format with a template whose prompts open the reasoning.
fn opened() -> Renderer {
    let variables = json!({"open_thinking": true}).as_object().unwrap().clone();
    let dir = common::model_dir("thinking.jinja");
    Renderer::load(dir.path(), RendererOptions { variables, ..Default::default() }).unwrap()
}

/// Every format, and every way of thinking.
static ALL: LazyLock<Vec<Renderer>> = LazyLock::new(|| {
    let mut all: Vec<Renderer> = FormatName::ALL.map(plain).into();
    let quiet = || RendererOptions { thinking: Some(false), ..Default::default() };
    all.extend(FormatName::ALL.into_iter().filter(|name| name.thinks()).map(|name| named(name, quiet()).unwrap()));
    all.push(opened());
    for name in [FormatName::ChatMl, FormatName::Llama3] {
        all.push(named(name, RendererOptions { think_blocks: Some(true), ..Default::default() }).unwrap());
    }
    all
});

fn user(text: &str) -> Message {
    Message::text(Role::User, text)
}

fn system(text: &str) -> Message {
    Message::text(Role::System, text)
}

fn assistant(text: &str) -> Message {
    Message::text(Role::Assistant, text)
}

fn thought(reasoning: &str, text: &str) -> Message {
    Message { reasoning: Some(reasoning.into()), ..assistant(text) }
}

fn called(message: Message, arguments: &[&str]) -> Message {
    let call =
        |(n, a): (usize, &&str)| ToolCall { id: format!("call_{n}"), name: "get".into(), arguments: (*a).into() };
    Message { tool_calls: arguments.iter().enumerate().map(call).collect(), ..message }
}

fn told(text: &str) -> Message {
    Message { tool_call_id: Some("call_0".into()), ..Message::text(Role::Tool, text) }
}

fn tool() -> ToolDef {
    ToolDef { name: "get".into(), description: "d".into(), parameters: json!({"type": "object"}), strict: false }
}

#[test]
fn chatml_and_qwen_are_written_as_their_templates_write_them() {
    let chat = [user("q"), called(thought("why", "look"), &["{\"a\":1}", "{"]), told("1"), told("2"), assistant("\nb")];
    let text = |r: &Renderer| r.render_text(&chat[..1], &[], true).unwrap();
    assert_eq!(text(&plain(FormatName::ChatMl)), "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n");
    assert!(text(&plain(FormatName::Qwen25)).starts_with("<|im_start|>system\nYou are Qwen,"));
    let qwen3 = plain(FormatName::Qwen3);
    let whole = qwen3.render_text(&chat, &[tool()], false).unwrap();
    let (tools, rest) = whole.split_once("<|im_end|>\n").unwrap();
    assert!(tools.starts_with("<|im_start|>system\n# Tools\n\nYou may call"), "{tools}");
    assert!(tools.contains("<tools>\n{\"type\": \"function\", \"function\": {\"name\": \"get\""), "{tools}");
    assert_eq!(
        rest,
        "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n<think>\nwhy\n</think>\n\nlook\n\
         <tool_call>\n{\"name\": \"get\", \"arguments\": {\"a\": 1}}\n</tool_call>\n\
         <tool_call>\n{\"name\": \"get\", \"arguments\": {}\n</tool_call><|im_end|>\n\
         <|im_start|>user\n<tool_response>\n1\n</tool_response>\n<tool_response>\n2\n</tool_response><|im_end|>\n\
         <|im_start|>assistant\n<think>\n\n</think>\n\nb<|im_end|>\n"
    );
    // Reasoning in the text is reasoning.
    let inline = [user("q"), assistant("<think>\nwhy\n</think>\n\nbecause")];
    let apart = [user("q"), thought("why", "because")];
    assert_eq!(qwen3.render_text(&inline, &[], false).unwrap(), qwen3.render_text(&apart, &[], false).unwrap());
    let quiet = named(FormatName::Qwen3, RendererOptions { thinking: Some(false), ..Default::default() }).unwrap();
    assert!(text(&quiet).ends_with("<|im_start|>assistant\n<think>\n\n</think>\n\n"));
}

#[test]
fn llama_is_written_as_its_template_writes_it() {
    let chat = [system(" S "), user("q "), called(assistant(""), &["{\"a\":1}"]), told("\"1\""), assistant(" b\n")];
    let text = plain(FormatName::Llama3).render_text(&chat, &[tool()], true).unwrap();
    let (head, rest) = text.split_once("Do not use variables.\n\n").unwrap();
    assert!(
        head.starts_with("<|bos|><|start_header_id|>system<|end_header_id|>\n\nEnvironment: ipython\nCutting"),
        "{head}"
    );
    assert!(head.contains("26 Jul 2024\n\nS<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nGiven the"), "{head}");
    assert!(
        rest.starts_with("{\n    \"type\": \"function\",\n    \"function\": {\n        \"name\": \"get\""),
        "{rest}"
    );
    assert!(
        rest.ends_with(
            "}\n\nq<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n{\"name\": \"get\", \"parameters\": \
             {\"a\": 1}}<|eot_id|><|start_header_id|>ipython<|end_header_id|>\n\n\"\\\"1\\\"\"<|eot_id|>\
             <|start_header_id|>assistant<|end_header_id|>\n\nb<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
        ),
        "{rest}"
    );
}

#[test]
fn qwen35_is_written_as_its_template_writes_it() {
    let arguments = "{\"a\":\"x y\",\"b\":[1,null],\"c\":true,\"d\":null,\"e\":1e-5}";
    let chat = [
        system(" S\n"),
        user(" q "),
        called(thought(" why\n", " look "), &[arguments, "{", ""]),
        told(" 1\n"),
        told("2"),
        assistant("b"),
    ];
    let qwen = plain(FormatName::Qwen35);
    let whole = qwen.render_text(&chat, &[tool()], true).unwrap();
    let (tools, rest) = whole.split_once("</IMPORTANT>").unwrap();
    assert!(tools.starts_with("<|im_start|>system\n# Tools\n\nYou have access to the following functions:"), "{tools}");
    assert_eq!(
        rest,
        "\n\nS<|im_end|>\n<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n<think>\nwhy\n</think>\n\nlook\n\n\
         <tool_call>\n<function=get>\n<parameter=a>\nx y\n</parameter>\n<parameter=b>\n[1, null]\n</parameter>\n\
         <parameter=c>\nTrue\n</parameter>\n<parameter=d>\nNone\n</parameter>\n<parameter=e>\n1e-05\n</parameter>\n\
         </function>\n</tool_call>\n<tool_call>\n<function=get>\n{\n</function>\n</tool_call>\n\
         <tool_call>\n<function=get>\n</function>\n</tool_call><|im_end|>\n\
         <|im_start|>user\n<tool_response>\n1\n</tool_response>\n<tool_response>\n2\n</tool_response><|im_end|>\n\
         <|im_start|>assistant\n<think>\n\n</think>\n\nb<|im_end|>\n<|im_start|>assistant\n<think>\n"
    );
    let answer = qwen.answer_ids(&chat[..2], &[tool()], &chat[2], false).unwrap();
    let read = qwen.parse_response(&answer, &[]).unwrap();
    assert_eq!((read.reasoning.as_deref(), read.content.as_str()), (Some("why"), "look"));
    let arguments: Vec<&str> = read.tool_calls.iter().map(|call| call.arguments.as_str()).collect();
    let first = "{\"a\": \"x y\", \"b\": [1, null], \"c\": true, \"d\": null, \"e\": 1e-05}";
    assert_eq!(arguments, [first, "<function=get>\n{\n</function>", "{}"]);
    assert!(read.tool_calls.iter().all(|call| call.name == "get"));
    assert!(
        qwen.render_text(&chat[..2], &[], false).unwrap().starts_with("<|im_start|>system\nS<|im_end|>\n<|im_start|>")
    );
    let late = qwen.render_text(&[user("q"), system("s")], &[], true).unwrap_err().to_string();
    assert!(late.contains("qwen3.5 has no place for what message 1 has: a system message behind"), "{late}");
}

#[test]
fn glm_is_written_as_its_template_writes_it() {
    let chat = [
        system("S"),
        user("q"),
        called(thought(" why\n", " look "), &["{\"a\":\" x\",\"b\":[1,null]}", "{"]),
        told("1"),
        told("2"),
        assistant(" b "),
        user("r"),
    ];
    let glm = plain(FormatName::Glm45);
    let whole = glm.render_text(&chat, &[tool()], true).unwrap();
    let (tools, rest) = whole.split_once("...\n</tool_call>").unwrap();
    assert!(tools.starts_with("[gMASK]<sop><|system|>\n# Tools\n\nYou may call"), "{tools}");
    assert_eq!(
        rest,
        "<|system|>\nS<|user|>\nq<|assistant|>\n<think>why</think>\nlook\n<tool_call>get\n<arg_key>a</arg_key>\n\
         <arg_value> x</arg_value>\n<arg_key>b</arg_key>\n<arg_value>[1, null]</arg_value>\n</tool_call>\n\
         <tool_call>get\n{\n</tool_call><|observation|>\n<tool_response>\n1\n</tool_response>\n\
         <tool_response>\n2\n</tool_response><|assistant|>\n<think></think>\nb<|user|>\nr<|assistant|>"
    );
    // The last turn has an end, so that it is learnt; what the model ended a turn with stays, whoever speaks next.
    assert!(glm.render_text(&chat[..6], &[], false).unwrap().ends_with("</think>\nb<|user|>"));
    let asked = [user("q"), called(assistant(""), &["{}"]), user("r")];
    assert!(glm.render_text(&asked, &[], false).unwrap().ends_with("</tool_call><|observation|><|user|>\nr"));
    let stops: Vec<TokenId> =
        ["<|user|>", "<|observation|>"].map(|text| glm.tokenizer().token_to_id(text).unwrap()).into();
    assert!(glm.stop_token_ids().starts_with(&stops));
    let read = glm.parse_response(&glm.answer_ids(&chat[..2], &[], &chat[2], false).unwrap(), &[]).unwrap();
    assert_eq!((read.reasoning.as_deref(), read.content.as_str()), (Some("why"), "look"));
    let arguments: Vec<&str> = read.tool_calls.iter().map(|call| call.arguments.as_str()).collect();
    assert_eq!(arguments, ["{\"a\": \" x\", \"b\": [1, null]}", "get\n{"]);
    let quiet = named(FormatName::Glm45, RendererOptions { thinking: Some(false), ..Default::default() }).unwrap();
    let text = quiet.render_text(&[user("q"), assistant("a"), user("r/nothink")], &[], true).unwrap();
    assert_eq!(
        text,
        "[gMASK]<sop><|user|>\nq/nothink<|assistant|>\n<think></think>\na<|user|>\nr/nothink<|assistant|>\n<think></think>"
    );
}

#[test]
fn gpt_oss_is_written_as_its_template_writes_it() {
    let chat = [
        system("S"),
        user("q"),
        called(thought("why", ""), &["{\"a\":1}"]),
        told("\"1\""),
        thought("so", " b"),
        user("r"),
        assistant("c"),
    ];
    let properties = json!({
        "city": {"type": "string", "description": "where"},
        "unit": {"type": "string", "enum": ["C", "F"], "default": "C"},
        "days": {"type": "array", "items": {"type": "integer"}, "nullable": true},
        "more": {"type": "object", "properties": {"x": {"type": "number"}, "y": {"oneOf": [{"type": "boolean"}, {"type": "string", "description": "d", "default": 1}]}}, "required": ["x"]},
        "any": {"type": ["string", "null"], "default": null},
    });
    let parameters = json!({"type": "object", "properties": properties, "required": ["city"]});
    let tools = [ToolDef { parameters, ..tool() }, ToolDef { name: "now".into(), ..tool() }];
    let oss = plain(FormatName::GptOss);
    assert_eq!(
        oss.render_text(&chat, &tools, false).unwrap(),
        "<|start|>system<|message|>You are ChatGPT, a large language model trained by OpenAI.\nKnowledge cutoff: 2024-06\n\n\
         Reasoning: medium\n\n# Valid channels: analysis, commentary, final. Channel must be included for every message.\n\
         Calls to these tools must go to the commentary channel: 'functions'.<|end|>\
         <|start|>developer<|message|># Instructions\n\nS\n\n# Tools\n\n## functions\n\nnamespace functions {\n\n\
         // d\ntype get = (_: {\n// where\ncity: string,\nunit?: \"C\" | \"F\", // default: C,\ndays?: number[] | null,\n\
         more?: {\nx: \n                number, y?: \n                boolean | \nstring// d                    // default: 1},\n\
         any?: string | null, // default: null,\n}) => any;\n\n// d\ntype now = () => any;\n\n} // namespace functions<|end|>\
         <|start|>user<|message|>q<|end|><|start|>assistant<|channel|>analysis<|message|>why<|end|>\
         <|start|>assistant to=functions.get<|channel|>commentary json<|message|>{\"a\": 1}<|call|>\
         <|start|>functions.get to=assistant<|channel|>commentary<|message|>\"\\\"1\\\"\"<|end|>\
         <|start|>assistant<|channel|>analysis<|message|>so<|end|><|start|>assistant<|channel|>final<|message|> b<|return|>\
         <|start|>user<|message|>r<|end|><|start|>assistant<|channel|>final<|message|>c<|return|>"
    );
    let look = [user("q"), called(assistant("look"), &["{"])];
    let ids = oss.answer_ids(&look[..1], &[], &look[1], false).unwrap();
    let read = oss.parse_response(&ids, &[]).unwrap();
    assert_eq!((read.content.as_str(), read.tool_calls[0].name.as_str()), ("look", "get"));
    assert_eq!(read.tool_calls[0].arguments, "{");
    let stops: Vec<TokenId> = ["<|return|>", "<|call|>"].map(|text| oss.tokenizer().token_to_id(text).unwrap()).into();
    assert!(oss.stop_token_ids().starts_with(&stops));
    for (chat, what) in [
        (&[user("q"), called(assistant(""), &["{}", "{}"])], "several tool calls"),
        (&[user("q"), told("1")], "a result without a call"),
    ] {
        let error = oss.render_text(chat, &[], false).unwrap_err().to_string();
        assert!(error.contains("gpt-oss has no place for what message 1 has") && error.contains(what), "{error}");
    }
}

/// What is read as a call is answered as one: to a function, to a tool of the model's own, with a name that is none, several.
#[test]
fn what_gpt_oss_calls_is_answered() {
    let oss = plain(FormatName::GptOss);
    let prompt = oss.render_ids(&[user("q")], &[], true).unwrap().ids;
    let of_function = |name: &str, text: &str| {
        format!("<|start|>functions.{name} to=assistant<|channel|>commentary<|message|>\"{text}\"<|end|>")
    };
    let of_python = |text: &str| format!("<|start|>python to=assistant<|channel|>analysis<|message|>{text}<|end|>");
    for (turn, names, results) in [
        (" to=functions.get<|channel|>commentary json<|message|>{}<|call|>", vec!["get"], of_function("get", "1")),
        ("<|channel|>analysis to=python code<|message|>1 + 1<|call|>", vec!["python"], of_python("1")),
        (" to=python<|channel|>analysis<|message|>cut", vec!["python"], format!("<|call|>{}", of_python("1"))),
        (" to=functions.<|message|>1<|call|>", vec![""], of_function("", "1")),
        (
            "<|channel|>commentary to=python<|message|>1<|end|><|start|>assistant to=functions.get<|message|>{}<|call|>",
            vec!["python", "get"],
            of_python("1") + &of_function("get", "2"),
        ),
        (
            " to=functions.get<|message|>{}<|end|><|start|>assistant<|channel|>final<|message|>a<|return|>",
            vec!["get"],
            of_function("get", "1"),
        ),
    ] {
        let sampled = oss.tokenizer().encode(turn).unwrap();
        let message = oss.parse_response(&sampled, &[]).unwrap();
        let read: Vec<&str> = message.tool_calls.iter().map(|call| call.name.as_str()).collect();
        assert_eq!(read, names, "{turn}");
        let replies: Vec<Message> = (1..=names.len()).map(|n| told(&n.to_string())).collect();
        let so_far = [prompt.clone(), sampled].concat();
        let bridge = oss.bridge_to_next_turn(&so_far, &replies).unwrap().unwrap();
        assert_eq!(oss.decode(&bridge.ids).unwrap(), format!("{results}<|start|>assistant"), "{turn}");
        // The next turn called nothing.
        let answer = oss.tokenizer().encode("<|channel|>final<|message|>b<|return|>").unwrap();
        let so_far = [so_far, bridge.ids, answer].concat();
        let error = oss.bridge_to_next_turn(&so_far, &[told("3")]).unwrap_err().to_string();
        assert!(error.contains("a result without a call"), "{error}");
        // Written anew it can be answered as well.
        if let [_] = message.tool_calls.as_slice() {
            let chat = [user("q"), message, told("1")];
            assert!(oss.render_text(&chat, &[], true).is_ok(), "{turn}");
        }
    }
    let spaced = ToolCall { id: "call_0".into(), name: "get it".into(), arguments: "{}".into() };
    let spaced = Message { tool_calls: vec![spaced], ..assistant("") };
    let error = oss.render_text(&[user("q"), spaced], &[], false).unwrap_err().to_string();
    assert!(error.contains("message 1 has: a tool call whose name"), "{error}");
}

/// Digits of a version stay where the tool's schema takes texts.
#[test]
fn unquoted_arguments_are_read_by_the_schema() {
    let parameters = json!({"type": "object", "properties": {"version": {"type": "string"}, "n": {"type": "number"}}});
    let tools = [ToolDef { parameters, ..tool() }];
    let message = called(assistant(""), &["{\"version\": \"1.10\", \"n\": 1e-05}"]);
    for r in [plain(FormatName::Qwen35), plain(FormatName::Glm45)] {
        let ids = r.answer_ids(&[user("q")], &tools, &message, false).unwrap();
        assert_eq!(r.parse_response(&ids, &tools).unwrap(), message);
        let other = r.parse_response(&ids, &[]).unwrap();
        assert_eq!(other.tool_calls[0].arguments, "{\"version\": 1.10, \"n\": 1e-05}");
    }
}

#[test]
fn what_has_no_place_is_refused_and_said() {
    let refused = |r: &Renderer, chat: &[Message], tools: &[ToolDef]| {
        let error = r.training_sample(chat, tools, LossMask::default()).unwrap_err();
        assert!(matches!(error, RenderError::NoPlace { .. }), "{error}");
        error.to_string()
    };
    let (llama, chatml) = (plain(FormatName::Llama3), plain(FormatName::ChatMl));
    let error = refused(&chatml, &[user("q"), thought("why", "a")], &[]);
    assert!(error.contains("chatml has no place for what message 1 has: reasoning"), "{error}");
    assert!(
        error.ends_with("set `renderer.reasoning_parser` to \"think\", which writes it in `<think>` blocks"),
        "{error}"
    );
    refused(&llama, &[user("q"), called(assistant("look"), &["{}"])], &[]);
    refused(&llama, &[system("s"), assistant("a")], &[tool()]);
    let llama30 = with_template(
        "{% for m in messages %}{% if loop.first %}{{ bos_token }}{% endif %}<|start_header_id|>{{ m.role }}\
         <|end_header_id|>\n\n{{ m.content | trim }}<|eot_id|>{% endfor %}{% if add_generation_prompt %}\
         <|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}",
    );
    assert_eq!((llama30.format(), llama30.calls()), (Some(FormatName::Llama3), Calls::Llama3));
    assert!(llama30.render_text(&[user("q")], &[], false).unwrap().starts_with("<|bos|><|start_header_id|>user"));
    refused(&llama30, &[user("q"), assistant("a")], &[tool()]);
    let quiet = named(FormatName::Qwen3, RendererOptions { thinking: Some(false), ..Default::default() }).unwrap();
    assert!(refused(&quiet, &[user("q"), thought("why", "a")], &[]).contains("`enable_thinking` is false"));
    // The model may think all the same; what it wrote is kept.
    let chat = [user("q"), thought("why", "a"), user("q")];
    assert!(quiet.render_text(&chat, &[], true).unwrap().contains("</think>\n\n<think>\nwhy\n</think>\n\na<|im_end|>"));

    // Special tokens that are not there, or not special.
    let dir = common::model_dir("chatml.jinja");
    let file = dir.path().join("tokenizer.json");
    let text = std::fs::read_to_string(&file).unwrap().replace("<|im_start|>", "<|im_begin|>");
    std::fs::write(&file, text).unwrap();
    let load = |choice| Renderer::load(dir.path(), RendererOptions { choice, ..Default::default() });
    let error = load(Choice::Format(FormatName::Qwen25)).unwrap_err().to_string();
    assert!(error.contains("qwen2.5") && error.contains("<|im_start|>") && error.contains("renderer.name"), "{error}");
    assert_eq!(load(Choice::Auto).unwrap().format(), None);
}

#[test]
fn answers_of_other_models_lose_the_reasoning_that_has_no_place() {
    let quiet = named(FormatName::Qwen3, RendererOptions { thinking: Some(false), ..Default::default() }).unwrap();
    let inline = assistant("<think>\nwhy\n</think>\n\na");
    let bare = Message { reasoning: None, ..called(assistant("a"), &["{}"]) };
    let teacher = Message { reasoning: Some("why".into()), ..bare.clone() };
    for r in [&quiet, &plain(FormatName::ChatMl), &plain(FormatName::Llama3)] {
        let adopted = r.adopted(teacher.clone());
        assert_eq!(adopted, bare);
        let adopted = Message { tool_calls: Vec::new(), ..adopted };
        let ids = r.answer_ids(&[user("q")], &[], &adopted, false).unwrap();
        assert!(!r.decode(&ids).unwrap().contains("why"));
        assert_eq!(r.parse_response(&ids, &[]).unwrap(), adopted);
    }
    assert_eq!(quiet.adopted(inline.clone()), assistant("a"));
    // Where the model thinks, it learns to; where there are no think blocks, a tag is text.
    assert_eq!(plain(FormatName::Qwen3).adopted(teacher.clone()), teacher);
    assert_eq!(plain(FormatName::ChatMl).adopted(inline.clone()), inline);
}

#[test]
fn auto_takes_the_format_that_is_the_template() {
    let marked = |body: &str| {
        format!(
            "{{% for m in messages %}}<|im_start|>{{{{ m.role }}}}\n{body}{{% endfor %}}{{% if add_generation_prompt %}}<|im_start|>assistant\n{{% endif %}}"
        )
    };
    let chatml = marked("{{ m.content }}<|im_end|>\n");
    let first = "{% if messages[0].role != 'system' %}<|im_start|>system\nI am é.<|im_end|>\n{% endif %}";
    for (template, format) in [
        (chatml.as_str(), Some(FormatName::ChatMl)),
        (&format!("{first}{chatml}"), Some(FormatName::ChatMl)),
        (&marked("{{ m.content | trim }}<|im_end|>\n"), None),
        (&marked("{{ m.content }}<|im_end|>"), None),
        (&marked("{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}\n"), None),
        ("{{ messages[0].content }}", None),
    ] {
        let r = with_template(template);
        assert_eq!((r.format(), r.calls()), (format, Calls::Hermes), "{template}");
    }
    let r = with_template(&format!("{first}{chatml}"));
    assert!(
        r.render_text(&[user("q")], &[tool()], true).unwrap().starts_with("<|im_start|>system\nI am é.\n\n# Tools")
    );
    let load = |template: &str, thinking| {
        let options = RendererOptions { thinking, ..Default::default() };
        Renderer::load(common::model_dir(template).path(), options).unwrap()
    };
    assert_eq!(load("thinking.jinja", None).format(), Some(FormatName::Qwen3));
    assert_eq!(opened().format(), Some(FormatName::Qwen3));
    assert!(opened().render_text(&[user("q")], &[], true).unwrap().ends_with("<|im_start|>assistant\n<think>\n"));
    assert_eq!(load("chatml.jinja", None).format(), None);
    assert_eq!(load("headers.jinja", None).format(), None);
}

#[test]
fn prompts_end_as_they_are_asked_to() {
    let (r, no) = (plain(FormatName::Qwen3), serde_json::Map::new());
    let text = |chat: &[Message], open| {
        let prompt = r.prompt(chat, &[], &no, open).unwrap();
        (r.decode(&prompt.ids).unwrap(), prompt.thinking)
    };
    let chat = [user("q"), thought("why", "a b")];
    let before = "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(text(&chat[..1], Open::NextTurn), (before.into(), Thinking::Free));
    let begun = format!("{before}<think>\nwhy\n</think>\n\na b");
    assert_eq!(text(&chat, Open::LastMessage), (begun.clone(), Thinking::Unknown));
    assert_eq!(text(&chat, Open::Nothing), (format!("{begun}<|im_end|>\n"), Thinking::Unknown));
    let empty = r.prompt(&[user("q"), assistant("")], &[], &no, Open::LastMessage).unwrap_err();
    assert!(matches!(empty, RenderError::NotContinuable { .. }));
    // A request's own variables are the template's, and there is none here.
    let asked = json!({"enable_thinking": false}).as_object().unwrap().clone();
    assert!(matches!(r.prompt(&chat[..1], &[], &asked, Open::NextTurn), Err(RenderError::NoTemplate { .. })));
}

#[test]
fn bodies_are_trained_where_asked() {
    let r = plain(FormatName::Qwen25);
    let chat = [system("the sys"), user("the q"), called(assistant(""), &["{}"]), told("42"), assistant("ans")];
    let loss = LossMask { system: true, user: false, assistant: false, tool: true };
    let s = r.training_sample(&chat, &[tool()], loss).unwrap();
    let kept: Vec<TokenId> = s.ids.iter().zip(&s.mask).filter(|(_, on)| **on).map(|(id, _)| *id).collect();
    assert_eq!(r.decode(&kept).unwrap(), "the sys42");
    let all = LossMask { system: true, user: true, assistant: true, tool: true };
    let s = r.training_sample(&chat, &[], all).unwrap();
    let kept: Vec<TokenId> = s.ids.iter().zip(&s.mask).filter(|(_, on)| **on).map(|(id, _)| *id).collect();
    let call = "<tool_call>\n{\"name\": \"get\", \"arguments\": {}}\n</tool_call>";
    assert_eq!(r.decode(&kept).unwrap(), format!("the systhe q{call}<|im_end|>42ans<|im_end|>"));
}

/// The shipped example keeps its ids to the last, though a format writes them now.
#[test]
fn the_example_model_has_the_ids_of_its_template() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/reverse_text/model");
    let load = |choice| Renderer::load(&folder, RendererOptions { choice, ..Default::default() }).unwrap();
    let (auto, own) = (load(Choice::Auto), load(Choice::Template));
    assert_eq!((auto.format(), own.format()), (Some(FormatName::ChatMl), None));
    assert_eq!(auto.stop_token_ids(), own.stop_token_ids());
    let mut state = 7u64;
    let mut text = move |len: usize| -> String {
        let draw = |_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            b"abcdefghijklmnopqrstuvwxyz ABCXYZ.,\n019"[(state >> 33) as usize % 39] as char
        };
        format!("{}.", (0..len).map(draw).collect::<String>().trim_start())
    };
    let prompt = "Reverse the text character-by-character. Put your answer in <reversed_text> tags.";
    for len in 0..200 {
        let chat = [system(prompt), user(&text(len)), assistant(&text(len)), user(&text(9)), assistant(&text(3))];
        for n in [2, 4] {
            let (a, b) =
                (auto.render_ids(&chat[..n], &[], true).unwrap(), own.render_ids(&chat[..n], &[], true).unwrap());
            assert_eq!((&a.ids, &a.spans), (&b.ids, &b.spans));
            let ids = |r: &Renderer| r.answer_ids(&chat[..n], &[], &chat[n], false).unwrap();
            assert_eq!(ids(&auto), ids(&own));
        }
        let loss = LossMask { user: len % 2 == 0, ..LossMask::default() };
        let sample = |r: &Renderer| r.training_sample(&chat[len % 2..], &[], loss).unwrap();
        assert_eq!(sample(&auto), sample(&own));
        let mut so_far = own.render_ids(&chat[..2], &[], true).unwrap().ids;
        so_far.extend(own.answer_ids(&chat[..2], &[], &chat[2], len % 3 == 0).unwrap());
        let bridge = |r: &Renderer| r.bridge_to_next_turn(&so_far, &chat[3..4]).unwrap();
        assert_eq!(bridge(&auto), bridge(&own));
    }
}

/// Texts that meet every kind of border: line breaks and spaces at both ends, merges, multi-byte characters, tags, special
/// tokens.
fn content() -> impl Strategy<Value = String> {
    let words = [
        "the",
        " ",
        "\n",
        "ans",
        ":\n",
        "é",
        "🎉",
        "\n\n",
        "<think>",
        "</think>",
        "<tool_call>",
        "{",
        "\"",
        "<|im_end|>",
        "<|eot_id|>",
    ];
    prop::collection::vec(prop::sample::select(words.to_vec()), 0..6).prop_map(|w| w.concat())
}

/// One assistant's turn and what follows it: reasoning, text, calls; results or the next question.
type Turn = (Option<String>, String, Vec<String>, Vec<String>);

fn turn() -> impl Strategy<Value = Turn> {
    let arguments = prop::sample::select(vec!["{}", "{\"a\": \"\\n\"}", "{\"a\":1.0}", "[1]", "{\"a", ""]);
    let calls = prop::collection::vec(arguments.prop_map(str::to_owned), 0..3);
    (prop::option::of(content()), content(), calls, prop::collection::vec(content(), 1..3))
}

/// gpt-oss calls one function a turn.
fn most_calls(renderer: &Renderer) -> usize {
    if renderer.calls() == Calls::Harmony { 1 } else { usize::MAX }
}

fn conversation(head: Option<String>, first: &str, turns: &[Turn], renderer: &Renderer) -> Vec<Message> {
    let thinks = renderer.prompt(&[user("q")], &[], &serde_json::Map::new(), Open::NextTurn).unwrap().thinking;
    let bare = renderer.calls() == Calls::Llama3;
    let mut chat: Vec<Message> = head.iter().map(|text| system(text)).collect();
    chat.push(user(first));
    for (reasoning, text, calls, next) in turns {
        let reasoning = reasoning.clone().filter(|_| thinks != Thinking::Unknown);
        let calls = &calls[..calls.len().min(most_calls(renderer))];
        let text = if bare && !calls.is_empty() { "" } else { text };
        let message = Message { reasoning, ..assistant(text) };
        chat.push(called(message, &calls.iter().map(String::as_str).collect::<Vec<_>>()));
        chat.extend(next.iter().map(|text| if calls.is_empty() { user(text) } else { told(text) }));
    }
    chat
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// What the model sees and says up to a turn is the beginning of what it sees at the next, to the token; a conversation
    /// is the prompt and what follows; what it would have sampled is what is trained.
    #[test]
    fn every_turn_extends_the_last(
        head in prop::option::of(content()),
        first in content(),
        turns in prop::collection::vec(turn(), 1..4),
        offered in any::<bool>(),
    ) {
        for r in ALL.iter() {
            let chat = conversation(head.clone(), &first, &turns, r);
            let tools = if offered { vec![tool()] } else { Vec::new() };
            let whole = r.render_ids(&chat, &tools, false).unwrap();
            prop_assert_eq!(r.decode(&whole.ids).unwrap(), r.render_text(&chat, &tools, false).unwrap());
            prop_assert_eq!(whole.spans.iter().map(|s| s.len).sum::<usize>(), whole.ids.len());
            let mut said = 0;
            let mut so_far: Vec<TokenId> = Vec::new();
            let mut since = 0;
            for (n, message) in chat.iter().enumerate().filter(|(_, m)| m.role == Role::Assistant) {
                let prompt = r.render_ids(&chat[..n], &tools, true).unwrap();
                prop_assert!(prompt.ids.starts_with(&so_far));
                if since > 0 {
                    let bridge = r.bridge_to_next_turn(&so_far, &chat[since..n]).unwrap().unwrap();
                    prop_assert_eq!(&prompt.ids[so_far.len()..], &bridge.ids[..]);
                    prop_assert!(bridge.sampled.iter().all(|sampled| !sampled) && bridge.sampled.len() == bridge.ids.len());
                    prop_assert_eq!(bridge.spans.iter().map(|s| s.len).sum::<usize>(), bridge.ids.len());
                    // A turn that was cut off is closed first.
                    let cut = r.bridge_to_next_turn(&so_far[..so_far.len() - 1], &chat[since..n]).unwrap();
                    let stop = so_far.last() == r.stop_token_ids().first() && so_far.len() > 1;
                    if let (Some(cut), true) = (cut, stop && !r.stop_token_ids().contains(&so_far[so_far.len() - 2])) {
                        prop_assert_eq!(&cut.ids[1..], &bridge.ids[..]);
                        prop_assert_eq!(cut.ids[0], so_far[so_far.len() - 1]);
                    }
                }
                let answer = r.answer_ids(&chat[..n], &tools, message, false).unwrap();
                prop_assert!(answer.last().is_some_and(|last| r.stop_token_ids().contains(last)));
                prop_assert!(whole.sampled[prompt.ids.len()..][..answer.len()].iter().all(|sampled| *sampled));
                said += answer.len();
                so_far = [prompt.ids, answer].concat();
                prop_assert!(whole.ids.starts_with(&so_far));
                since = n + 1;
            }
            prop_assert_eq!(whole.sampled.iter().filter(|sampled| **sampled).count(), said);
            match r.training_sample(&chat, &tools, LossMask::default()) {
                Ok(sample) => {
                    prop_assert_eq!(sample.ids, whole.ids);
                    prop_assert_eq!(sample.mask, whole.sampled);
                }
                Err(error) => prop_assert!(error.to_string().contains("`enable_thinking` is false"), "{}", error),
            }
        }
    }

    /// What a bridge extends is a conversation that can be rendered whole, and to the same ids; what cannot be, is refused.
    #[test]
    fn a_bridge_refuses_what_a_whole_render_refuses(
        roles in prop::collection::vec((prop::sample::select(vec![Role::System, Role::User, Role::Assistant, Role::Tool]), content()), 1..7),
        called_in in any::<u8>(),
        offered in any::<bool>(),
    ) {
        for r in ALL.iter() {
            let tools = if offered { vec![tool()] } else { Vec::new() };
            let mut chat = vec![user("q")];
            chat.extend(roles.iter().enumerate().map(|(n, (role, text))| match role {
                Role::Assistant if called_in >> n & 1 == 1 => called(assistant(""), &["{}"]),
                Role::Assistant => assistant(text),
                Role::Tool => told(text),
                role => Message::text(*role, text),
            }));
            let assistants = (0..chat.len()).filter(|n| chat[*n].role == Role::Assistant);
            for n in assistants {
                let end = (n + 1..chat.len()).find(|m| chat[*m].role == Role::Assistant).unwrap_or(chat.len());
                let Ok(prompt) = r.render_ids(&chat[..n], &tools, true) else { continue };
                let Ok(answer) = r.answer_ids(&chat[..n], &tools, &chat[n], false) else { continue };
                let so_far = [prompt.ids, answer].concat();
                let whole = r.render_ids(&chat[..end], &tools, true);
                match r.bridge_to_next_turn(&so_far, &chat[n + 1..end]) {
                    Ok(Some(bridge)) => prop_assert_eq!([so_far, bridge.ids].concat(), whole.unwrap().ids),
                    Ok(None) => prop_assert_eq!(end, n + 1),
                    Err(_) => prop_assert!(whole.is_err(), "{:?}", r.format()),
                }
            }
        }
    }

    /// What a format writes as a turn is read as that turn.
    #[test]
    fn turns_are_read_as_they_were_written(
        reasoning in "[a-z][a-z \n]{0,8}[a-z]",
        text in "[A-Z][a-z \n]{0,8}[a-z]",
        calls in prop::collection::vec(prop::sample::select(vec!["{}", "{\"a\": \"}{\"}", "{\"b\": [1, null]}"]), 0..4),
        bits in any::<(bool, bool)>(),
    ) {
        for r in ALL.iter() {
            let bare = r.calls() == Calls::Llama3;
            let thinks = r.prompt(&[user("q")], &[], &serde_json::Map::new(), Open::NextTurn).unwrap().thinking;
            let calls = &calls[..calls.len().min(most_calls(r))];
            let said = bits.0 && (!bare || calls.is_empty());
            let mut message = called(assistant(if said { &text } else { "" }), calls);
            message.reasoning = Some(reasoning.clone()).filter(|_| bits.1 && thinks != Thinking::Unknown);
            let ids = r.answer_ids(&[user("q")], &[], &message, false).unwrap();
            prop_assert_eq!(r.parse_response(&ids, &[]).unwrap(), message);
        }
    }
}
