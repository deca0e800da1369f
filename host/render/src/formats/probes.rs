//! Which format a model's own template is: the one that writes fixed conversations as the template does. Owns the
//! conversations and what is compared; takes the template as a function.
//!
//! A conversation is compared only where the template shows all of it (some leave out tools, calls or reasoning without a
//! word) and renders each turn as the model saw it (some change earlier turns). Where it does not, the format is what the
//! template would be if it did.

use super::{Format, FormatName, Own, Settings};
use crate::Tokenizer;
use prl_types::{Message, Role, ToolCall, ToolDef};
use serde_json::json;

/// One conversation, with the words that must show.
struct Probe {
    messages: Vec<Message>,
    tools: Vec<ToolDef>,
    words: Vec<&'static str>,
}

/// The format that writes all that can be compared as the template does, id for id.
pub(crate) fn choose(settings: Settings, tokenizer: &Tokenizer, bos: Option<&str>, own: Own) -> Option<Format> {
    FormatName::ALL.into_iter().find_map(|name| {
        let format = Format::new(name, settings, tokenizer, bos, Some(own)).ok()?;
        agrees(&format, tokenizer, own).then_some(format)
    })
}

fn agrees(format: &Format, tokenizer: &Tokenizer, own: Own) -> bool {
    let mut answered = 0;
    for (n, probe) in probes().iter().enumerate() {
        let Some(shown) = comparable(probe, tokenizer, own) else {
            // The first is a question: what does not show it is no template for chat.
            if n == 0 {
                return false;
            }
            continue;
        };
        if !format.is_shown(&probe.messages) {
            continue;
        }
        answered += usize::from(probe.messages.iter().any(|m| m.role == Role::Assistant));
        for (generate, text) in shown {
            let Ok(mut written) = format.write(&probe.messages, &probe.tools, generate) else { return false };
            if ends_with_answer(&probe.messages) && format.ends_with_next() {
                // A template does not say which token ends its last turn.
                written.drop_end(format.written_ends());
            }
            if written.text() != text {
                return false;
            }
            match (written.encode(tokenizer), tokenizer.encode(&text)) {
                (Ok(pieces), Ok(ids)) if pieces.ids == ids => {}
                _ => return false,
            }
        }
    }
    answered > 0
}

fn ends_with_answer(messages: &[Message]) -> bool {
    messages.last().is_some_and(|m| m.role == Role::Assistant)
}

/// The template's renders without and with the invitation to speak, where they can be compared; behind an answer nobody is
/// invited to speak again.
fn comparable(probe: &Probe, tokenizer: &Tokenizer, own: Own) -> Option<Vec<(bool, String)>> {
    let Probe { messages, tools, words } = probe;
    let ways: &[bool] = if ends_with_answer(messages) { &[false] } else { &[false, true] };
    let shown: Vec<(bool, String)> =
        ways.iter().map(|generate| Some((*generate, own(messages, tools, *generate)?))).collect::<Option<_>>()?;
    let all = |has: &dyn Fn(&str) -> bool| shown.iter().all(|(_, text)| has(text));
    let turns = messages.iter().enumerate().filter(|(_, m)| m.role == Role::Assistant);
    let stable = |n: usize| {
        let (before, through) = (own(&messages[..n], tools, true)?, own(&messages[..=n], tools, false)?);
        let kept = through.starts_with(&before) && all(&|text| text.starts_with(&through));
        let ids = |text: &str| tokenizer.encode(text).ok();
        Some(kept && ids(&through)?.starts_with(&ids(&before)?))
    };
    let same = words.iter().all(|word| all(&|text| text.contains(word)));
    (same && turns.into_iter().all(|(n, _)| stable(n) == Some(true))).then_some(shown)
}

fn probes() -> Vec<Probe> {
    let text = |role, content: &str| Message::text(role, content);
    let (system, user) = (|t: &str| text(Role::System, t), |t: &str| text(Role::User, t));
    let plain = |t: &str| text(Role::Assistant, t);
    let thought = |reasoning: &str, t: &str| Message { reasoning: Some(reasoning.into()), ..plain(t) };
    let called = |message: Message, days: &[u8]| {
        let call = |(n, day): (usize, &u8)| ToolCall {
            id: format!("call0000{n}"),
            name: "wkvname".into(),
            arguments: format!("{{\"wkvcity\": \"Zürich <b>\", \"days\": [{day}, 0.5, null, true]}}"),
        };
        Message { tool_calls: days.iter().enumerate().map(call).collect(), ..message }
    };
    let reply = |n: u8, t: &str| Message {
        tool_call_id: Some(format!("call0000{n}")),
        name: Some("wkvname".into()),
        ..text(Role::Tool, t)
    };
    let tools = || {
        vec![ToolDef {
            name: "wkvname".into(),
            description: "The \"weather\" & more: é".into(),
            parameters: json!({"type": "object", "properties": {"wkvcity": {"type": "string", "minimum": 1e-7}}}),
            strict: false,
        }]
    };
    let probe = |messages, words| Probe { messages, tools: Vec::new(), words };
    let offered = |messages, words| Probe { messages, tools: tools(), words };
    let mut broken = called(plain(""), &[7]);
    broken.tool_calls[0].arguments = "{\"wkvbroken\": ".into();
    const CALL: [&str; 3] = ["wkvone", "wkvname", "wkvcity"];
    vec![
        probe(vec![user("wkvone?")], vec!["wkvone"]),
        probe(vec![system("wkvsys"), user("wkvone?")], vec!["wkvsys", "wkvone"]),
        probe(vec![user("a\n b"), plain("wkvtwo")], vec!["wkvtwo"]),
        probe(vec![user("wkvone"), plain("wkvtwo."), user("and\n"), plain("wkvthree")], vec!["wkvtwo", "wkvthree"]),
        probe(vec![system("wkvsys"), user("wkvone"), plain("yes"), system("wkvlate"), user("q")], vec!["wkvlate"]),
        probe(vec![user("wkvone"), thought("wkvwhy", "wkvtwo")], vec!["wkvwhy", "wkvtwo"]),
        probe(
            vec![user("wkvone"), thought("wkvwhy", "two"), user("and"), thought("wkvthen", "wkvthree")],
            vec!["wkvwhy", "wkvthen", "wkvthree"],
        ),
        offered(vec![user("wkvone")], CALL.to_vec()),
        offered(vec![system("wkvsys"), user("wkvone")], [&CALL[..], &["wkvsys"]].concat()),
        offered(
            vec![user("wkvone"), broken, reply(0, "wkvtold"), plain("wkvtwo")],
            vec!["wkvone", "wkvname", "wkvbroken", "wkvtold", "wkvtwo"],
        ),
        offered(
            vec![user("wkvone"), called(plain(""), &[7]), reply(0, "wkvtold"), plain("wkvtwo")],
            [&CALL[..], &["[7,", "wkvtold", "wkvtwo"]].concat(),
        ),
        offered(
            vec![
                user("wkvone"),
                called(plain("wkvlook"), &[7, 8]),
                reply(0, "wkvtold"),
                reply(1, "{\"x\": 1}"),
                user("q"),
            ],
            [&CALL[..], &["wkvlook", "[7,", "[8,", "wkvtold"]].concat(),
        ),
        offered(
            vec![
                user("wkvone"),
                called(thought("wkvwhy", ""), &[7]),
                reply(0, "wkvtold"),
                thought("wkvthen", "wkvtwo"),
            ],
            [&CALL[..], &["wkvwhy", "[7,", "wkvtold", "wkvthen", "wkvtwo"]].concat(),
        ),
    ]
}
