//! The environment as a host sees it: tasks, tools, scores, splits, arguments, and whatever may be said to it.

use super::*;
use prl_env::testing::{Harness, Played};
use prl_env::{ErrorCode, Features};
use proptest::prelude::*;
use std::collections::HashSet;

fn harness(args: &str) -> Harness<ToolUse> {
    Harness::new(args).expect("valid arguments")
}

fn calling(name: &str, arguments: &Value) -> Message {
    Message::calling("call_0", name, arguments.to_string())
}

/// Plays the task's own plan, and then answers: with the last result for a number, else with the reference.
fn planned(harness: &Harness<ToolUse>, task: &Task) -> Played {
    let payload = task.payload_value();
    let plan = payload["plan"].as_array().unwrap().clone();
    let mut step = 0;
    let mut task = task.clone();
    task.max_turns = Some(plan.len() as u32 + 1);
    let reference = task.answer_text();
    harness
        .play(&task, |messages| {
            step += 1;
            match plan.get(step - 1) {
                Some(call) => calling(call["tool"].as_str().unwrap(), &call["arguments"]),
                None if payload["number"] == true => {
                    Message::assistant(format!("<answer>{}</answer>", messages.last().unwrap().text()))
                }
                None => Message::assistant(format!("It is <answer>{reference}</answer>.")),
            }
        })
        .unwrap()
}

#[test]
fn plans_lead_to_the_answer() {
    for args in ["{}", r#"{"rows": 4, "min_level": 3}"#, r#"{"rows": 20}"#] {
        let (left, right) = (harness(args), harness(args));
        let mut kinds = HashSet::new();
        for (split, index) in (0..200).map(|i| ("train", i)).chain((0..100).map(|i| ("eval", i))) {
            let task = left.task(split, index, 5).unwrap();
            assert_eq!(task, right.task(split, index, 5).unwrap());
            let played = planned(&left, &task);
            assert_eq!((played.value("correct"), played.value("format")), (1.0, 1.0), "{}", task.prompt[1].text());
            assert_eq!((played.value("tool_errors"), played.stop.as_deref()), (0.0, Some("answered")));
            assert_eq!(played.value("tool_calls") + 1.0, played.value("turns"));
            let payload = task.payload_value();
            let shown = payload["demonstration"].as_array().unwrap();
            let told = shown.iter().filter(|message| message["role"] == "tool").map(|message| &message["content"]);
            let results = played.messages.iter().filter(|message| message.tool_call_id.is_some());
            let results: Vec<String> = results.map(Message::text).collect();
            assert!(told.eq(&results), "{shown:?} {results:?}");
            let last = shown.last().unwrap()["content"].as_str().unwrap();
            assert_eq!(last, format!("<answer>{}</answer>", task.answer_text()));
            kinds.insert(task.tags.clone());
        }
        assert!(kinds.len() >= if args.contains("min_level") { 3 } else { 9 }, "{kinds:?}");
        left.conforms(5).unwrap();
    }
    let harness = harness("{}");
    assert!(harness.info().features.contains(Features::TOOLS | Features::MULTI_TURN | Features::DETERMINISTIC));
    assert_eq!(harness.task("eval", 3, 1).unwrap().prompt, harness.task("eval", 3, 2).unwrap().prompt);
}

#[test]
fn the_share_of_right_demonstrations_is_as_asked() {
    let harness = harness(r#"{"demonstration_quality": 0.3}"#);
    let mut kinds = [0; 2];
    for index in 0..1000 {
        let mut task = harness.task("train", index, 7).unwrap();
        task.max_turns = Some(32);
        let payload = task.payload_value();
        let mut shown = payload["demonstration"].as_array().unwrap().iter().filter(|m| m["role"] == "assistant");
        let played = harness.play(&task, |_| {
            let message = shown.next().unwrap();
            match &message["tool_calls"][0]["function"] {
                Value::Null => Message::assistant(message["content"].as_str().unwrap()),
                call => calling(call["name"].as_str().unwrap(), &call["arguments"].as_str().unwrap().parse().unwrap()),
            }
        });
        let played = played.unwrap();
        assert_eq!(played.stop.as_deref(), Some("answered"));
        kinds[usize::from(played.value("correct") == 1.0)] += 1;
    }
    assert!((250..350).contains(&kinds[1]), "{kinds:?}");
}

#[test]
fn no_name_is_in_both_splits() {
    let harness = harness("{}");
    let names = |split, index| -> Vec<String> {
        let table = Table::from_json(&harness.task(split, index, 3).unwrap().payload_value()["table"]).unwrap();
        table.names().map(str::to_owned).collect()
    };
    let eval: HashSet<String> = (0..EVAL_TASKS).flat_map(|index| names("eval", index)).collect();
    assert!((0..1000).flat_map(|index| names("train", index)).all(|name| !eval.contains(&name)));
}

fn fixed(harness: &Harness<ToolUse>) -> Task {
    let table =
        json!({ "fields": ["region", "area"], "rows": [["Belador", "north", "12"], ["Corinis", "south", "40"]] });
    harness.task("train", 0, 0).unwrap().answer("52").payload(json!({ "table": table, "number": true }))
}

#[test]
fn tools_answer_whatever_they_are_asked() {
    let harness = harness("{}");
    let task = fixed(&harness);
    for (tool, arguments, reply) in [
        ("calculator", r#"{"expression": "12 + 40"}"#, "52"),
        ("calculator", r#"{"expression": "1 / 3"}"#, "1/3 (about 0.333333)"),
        ("calculator", r#"{"expression": "1 / 0"}"#, "error: division by zero"),
        ("calculator", r#"{"expression": "import os"}"#, "error: unexpected 'i' in the expression"),
        ("calculator", r#"{"expression": 5}"#, "error: `expression`: invalid type: integer `5`, expected a string"),
        ("calculator", r#"{}"#, "error: `expression` is missing"),
        (
            "calculator",
            r#"{"expression": "1"#,
            "error: the arguments of `calculator` are not valid JSON: EOF while parsing a string at line 1 column 17",
        ),
        ("lookup", r#"{"name": "Belador"}"#, "region: north, area: 12"),
        ("lookup", r#"{"name": "belador", "field": "area"}"#, "12"),
        ("lookup", r#"{"name": "Zarnis"}"#, "error: there is no record `Zarnis`"),
        ("lookup", r#"[]"#, "error: the arguments of `lookup` are not a JSON object"),
        ("find", r#"{"field": "region", "value": "south"}"#, "Corinis"),
        ("find", r#"{"field": "colour", "value": "red"}"#, "error: there is no field `colour`; there are region, area"),
        ("search", "{}", "error: no tool `search`; there are `calculator`, `lookup`, `find`"),
    ] {
        let call = Message::calling("call_0", tool, arguments);
        let played = harness.script(&task, &[call, Message::assistant("<answer>52</answer>")]).unwrap();
        assert_eq!(played.messages[3].text(), reply, "{tool} {arguments}");
        assert_eq!((played.value("correct"), played.value("tool_calls"), played.value("turns")), (1.0, 1.0, 2.0));
        assert_eq!(played.value("tool_errors"), f64::from(u8::from(reply.starts_with("error"))), "{tool} {arguments}");
    }
}

#[test]
fn only_a_final_answer_counts() {
    let harness = harness(r#"{"max_turns": 3}"#);
    let mut task = fixed(&harness);
    task.max_turns = Some(3);
    let mut call = calling("lookup", &json!({ "name": "Belador" }));
    call.content = Message::assistant("<answer>52</answer>").content;
    let played = harness.script(&task, &[call]).unwrap();
    assert_eq!((played.truncated.as_deref(), played.value("turns")), (Some("max_turns"), 3.0));
    assert_eq!((played.value("correct"), played.value("format"), played.value("tool_calls")), (0.0, 0.0, 3.0));
    let score = |task: &Task, text: &str| {
        let played = harness.answer(task, text).unwrap();
        (played.value("correct"), played.value("format"))
    };
    assert_eq!(score(&task, "12 + 40 = 52"), (1.0, 0.0));
    assert_eq!(score(&task, "<answer>$52.00</answer>"), (1.0, 1.0));
    assert_eq!(score(&task, "<answer>51 or 52</answer>"), (0.0, 1.0));
    assert_eq!(score(&task, ""), (0.0, 0.0));
    let payload = json!({ "table": task.payload_value()["table"], "number": false });
    let name = task.clone().answer("Corinis").payload(payload);
    assert_eq!(score(&name, "<answer> corinis. </answer>"), (1.0, 1.0));
    assert_eq!(score(&name, "<think>Belador</think>Corinis"), (1.0, 0.0));
    assert_eq!(score(&name, "<answer>Belador, Corinis</answer>"), (0.0, 1.0));
    assert_eq!(score(&name, "It may be Corinis"), (0.0, 0.0));
    task.payload = "{}".into();
    assert_eq!(harness.answer(&task, "").unwrap_err().code, ErrorCode::InvalidTask);
}

#[test]
fn arguments_are_checked_and_obeyed() {
    let error = Harness::<ToolUse>::new(r#"{"min_level": 3, "max_level": 2}"#).err().expect("refused");
    assert_eq!(error.message, "min_level = 3 must not be more than max_level = 2");
    assert!(Harness::<ToolUse>::new(r#"{"rows": 3}"#).is_err());
    let task = harness(r#"{"max_turns": 5, "rows": 15}"#).task("train", 0, 0).unwrap();
    assert_eq!(
        (task.max_turns, Table::from_json(&task.payload_value()["table"]).unwrap().names().count()),
        (Some(5), 15)
    );
}

#[test]
fn a_megabyte_is_answered() {
    let harness = harness("{}");
    let task = harness.task("eval", 0, 0).unwrap();
    for piece in ["<answer>", "{", "(", "1+", "é", "\u{0}", "\""] {
        let long = piece.repeat(1_000_000 / piece.len());
        harness.answer(&task, &long).unwrap();
        for arguments in [long.clone(), json!({ "expression": long }).to_string(), json!({ "name": long }).to_string()]
        {
            for tool in ["calculator", "lookup"] {
                let call = Message::calling("call_0", tool, arguments.as_str());
                let played = harness.script(&task, &[call, Message::assistant("")]).unwrap();
                assert!(played.messages[3].text().len() < 300);
            }
        }
    }
}

proptest! {
    #[test]
    fn whatever_is_said_or_called_is_answered(text in any::<String>(), tool in "calculator|lookup|find|[a-z]{0,5}", pieces in proptest::collection::vec(
        proptest::sample::select(vec!["{", "}", "\"expression\"", ":", "\"name\"", "\"1+", "\"", "2", "null", ",", "\\u00", "é", "[", "\"field\""]), 0..12)) {
        let harness = harness("{}");
        let task = harness.task("train", 1, 1).unwrap();
        let messages = [Message::calling("a", tool.as_str(), pieces.concat()), Message::calling("b", tool, text.as_str()), Message::assistant(text)];
        let played = harness.script(&task, &messages).unwrap();
        prop_assert!((0.0..=1.1).contains(&played.reward));
        prop_assert_eq!(played.value("tool_calls"), 2.0);
    }

    #[test]
    fn every_seed_gives_a_task(index in any::<u64>(), seed in any::<u64>(), rows in 4usize..=20) {
        let harness = harness(&format!("{{\"rows\": {rows}}}"));
        let task = harness.task("train", index, seed).unwrap();
        prop_assert_eq!(planned(&harness, &task).value("correct"), 1.0);
    }
}
