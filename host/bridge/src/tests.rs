//! The bridge natively, against a server that is a list of answers.

use super::*;
use prl_env::services::http::{Request, Response};
use prl_env::testing::serve;
use prl_env::{ContentPart, Features, Message, NamedValue, StopKind, ToolCall};
use serde_json::{Value, json};
use std::cell::RefCell;
use std::collections::VecDeque;

/// What was asked, as method, path and body.
type Asked = Rc<RefCell<Vec<(String, String, Value)>>>;

struct Server {
    answers: RefCell<VecDeque<(u16, String)>>,
    asked: Asked,
}

impl prl_env::services::Services for Server {
    fn http(&self, request: &Request) -> Result<Response> {
        let body = request.body.as_deref().map_or(Value::Null, |body| serde_json::from_slice(body).unwrap());
        self.asked.borrow_mut().push((request.method.clone(), request.url.clone(), body));
        match self.answers.borrow_mut().pop_front() {
            Some((status, body)) => Ok(Response { status, headers: Vec::new(), body: body.into_bytes() }),
            None => Err(Error { code: ErrorCode::Upstream, message: "gone".into(), retryable: true }),
        }
    }
}

fn server(answers: impl IntoIterator<Item = (u16, String)>) -> Asked {
    let asked = Asked::default();
    serve(Server { answers: RefCell::new(answers.into_iter().collect()), asked: asked.clone() });
    asked
}

fn info() -> Value {
    json!({ "name": "n", "version": "1", "args_schema": { "type": "object" }, "splits": [{ "name": "train" }],
            "features": ["multi_turn", "deterministic"], "components": [{ "name": "right", "weight": 0.1 }] })
}

fn bridge() -> Rc<Bridge> {
    server([(200, json!({ "configuration": "c", "info": info() }).to_string())]);
    Rc::new(Bridge::configure("{\"a\": 1.10}").unwrap())
}

const TASK: &str = r#"{"split": "train", "index": 3, "seed": 18446744073709551615, "key": "k",
    "prompt": [{"role": "user", "content": "hi"}, {"role": "system", "content": [{"type": "text", "text": "t"}, {"type": "x"}]}],
    "answer": 1.00, "payload": {"b": 1e400, "a": [0.1]}}"#;

#[test]
fn every_call_goes_over_the_wire() {
    let bridge = bridge();
    assert_eq!(bridge.info().features, Features::MULTI_TURN);
    let turn = r#"{"messages": [{"role": "user", "content": "again"}], "reward": 0.30000000000000004,
        "stop": {"kind": "truncated", "reason": "r"}, "metrics": [{"name": "m", "value": 2}], "sampling": {"stop": ["x"]}}"#;
    let score = r#"{"components": [{"name": "right", "value": 0.1}], "info": null}"#;
    let asked = server(
        [TASK, r#"{"id": "a-1"}"#, "{}", turn, score, r#"{"id": "a-2"}"#, "{}"].map(|body| (200, body.to_owned())),
    );
    let task = bridge.task("train", 3, u64::MAX).unwrap();
    // To the letter, also what no number of a machine holds.
    assert_eq!((task.answer.as_deref(), task.payload.as_str()), (Some("1.00"), r#"{"b": 1e400, "a": [0.1]}"#));
    assert_eq!(task.prompt[1].content, [ContentPart::Text("t".into()), ContentPart::Other(r#"{"type":"x"}"#.into())]);
    let context = RolloutContext { id: "1.0".into(), seed: 7, member: 1, group_size: 2, step: 4, eval: true };
    // A payload that the host takes apart would have failed before it came here.
    let task = Task { payload: "{}".into(), ..task };
    let mut rollout = bridge.open(task.clone(), context.clone()).unwrap();
    assert_eq!(rollout.start().unwrap(), Turn::next(Vec::new()));
    let call = ToolCall { id: "i".into(), name: "f".into(), arguments: "{\"cut".into() };
    let completion = Completion {
        message: Message { tool_calls: vec![call], ..Message::assistant("a") },
        finish_reason: prl_env::FinishReason::ToolCalls,
        completion_tokens: 5,
        context_left: None,
        turns_left: Some(1),
    };
    let turn = rollout.step(completion).unwrap();
    assert_eq!((turn.reward, turn.metrics[0].value), (Some(0.1 + 0.2), 2.0));
    assert_eq!(turn.stop.map(|stop| stop.kind), Some(StopKind::Truncated));
    assert_eq!(turn.sampling.as_deref(), Some(r#"{"stop": ["x"]}"#));
    assert_eq!(rollout.score(Some("r")).unwrap().components, [NamedValue::new("right", 0.1)]);
    assert_eq!(rollout.score(None).unwrap_err().code, ErrorCode::InvalidState);
    drop(rollout);
    drop(bridge.open(task, context).unwrap());

    let asked = asked.borrow();
    let calls: Vec<String> = asked.iter().map(|(method, path, _)| format!("{method} {path}")).collect();
    assert_eq!(
        calls,
        [
            "POST /v0.1/task",
            "POST /v0.1/rollouts",
            "POST /v0.1/rollouts/a-1/start",
            "POST /v0.1/rollouts/a-1/step",
            "POST /v0.1/rollouts/a-1/score",
            "POST /v0.1/rollouts",
            "DELETE /v0.1/rollouts/a-2",
        ]
    );
    assert_eq!(asked[0].2, json!({ "configuration": "c", "split": "train", "index": 3, "seed": u64::MAX }));
    assert_eq!(asked[1].2["context"]["group_size"], 2);
    let step = json!({ "message": { "role": "assistant", "content": "a",
            "tool_calls": [{ "id": "i", "name": "f", "arguments": "{\"cut" }] },
        "finish_reason": "tool_calls", "completion_tokens": 5, "context_left": null, "turns_left": 1 });
    assert_eq!(asked[3].2, step);
    assert_eq!(asked[4].2, json!({ "truncated": "r" }));
}

#[test]
fn a_server_that_was_started_anew_is_told_the_arguments_again() {
    let bridge = bridge();
    let unknown = json!({ "error": { "code": "invalid_state", "message": "who?" } }).to_string();
    let known = json!({ "configuration": "d", "info": info() }).to_string();
    let asked = server([(410, unknown.clone()), (200, known), (200, TASK.into()), (200, TASK.into())]);
    bridge.task("train", 3, 0).unwrap();
    bridge.task("train", 3, 0).unwrap();
    let seen: Vec<Value> = asked.borrow().iter().map(|(_, _, body)| body["configuration"].clone()).collect();
    assert_eq!(seen, [json!("c"), Value::Null, json!("d"), json!("d")]);
    assert_eq!(asked.borrow()[1].2["args"].to_string(), "{\"a\":1.1}");
    // Once, not for ever.
    let known = json!({ "configuration": "d", "info": info() }).to_string();
    let asked = server([(410, unknown.clone()), (200, known), (410, unknown.clone())]);
    assert_eq!(bridge.task("train", 3, 0).unwrap_err().message, "who?");
    assert_eq!(asked.borrow().len(), 3);
    // What the environment says of its own state is its word.
    let asked = server([(409, unknown)]);
    assert_eq!(bridge.task("train", 3, 0).unwrap_err().message, "who?");
    assert_eq!(asked.borrow().len(), 1);
}

#[test]
fn another_environment_at_the_server_is_refused() {
    let bridge = bridge();
    for (key, value, words) in [
        ("name", json!("m"), "it is `m` 1 now and was `n` 1"),
        ("version", json!("2"), "it is `n` 2 now and was `n` 1"),
        ("splits", json!([{ "name": "train", "size": 3 }]), "`train` with 3 tasks now and had `train` with no end"),
        (
            "components",
            json!([{ "name": "right", "weight": 1 }]),
            "`right` with weight 1 now and had `right` with weight 0.1",
        ),
    ] {
        let mut other = info();
        other[key] = value;
        let unknown = json!({ "error": { "code": "invalid_state", "message": "who?" } }).to_string();
        server([(410, unknown), (200, json!({ "configuration": "c", "info": other }).to_string()), (200, TASK.into())]);
        let error = bridge.task("train", 3, 0).unwrap_err();
        assert!(error.message.contains(words), "{}", error.message);
    }
}

#[test]
fn a_rollout_that_failed_is_freed() {
    let bridge = bridge();
    let context = RolloutContext { id: "1.0".into(), seed: 7, member: 1, group_size: 2, step: 4, eval: true };
    let asked = server([(200, r#"{"id": "a"}"#.into()), (500, "no".into()), (200, "{}".into())]);
    let mut rollout = bridge.open(Task::new(Vec::new()), context).unwrap();
    assert!(rollout.score(None).is_err());
    assert_eq!(rollout.start().unwrap_err().code, ErrorCode::InvalidState);
    drop(rollout);
    assert_eq!(asked.borrow().last().map(|(method, ..)| method.clone()), Some("DELETE".into()));
}

#[test]
fn groups_are_scored() {
    let bridge = bridge();
    let score = json!({ "components": [], "metrics": [] });
    let asked = server([(200, json!({ "scores": [score, score] }).to_string())]);
    let member = Finished {
        context: RolloutContext { id: "1.0".into(), seed: 7, member: 1, group_size: 2, step: 4, eval: true },
        messages: vec![Message::assistant("a")],
        truncated: None,
        score: Score::empty().reward("right", 1.0),
        reward: 0.1,
    };
    assert_eq!(bridge.score_group(Task::new(Vec::new()), vec![member]).unwrap().len(), 2);
    assert_eq!(asked.borrow()[0].2["members"][0]["score"]["components"], json!([{ "name": "right", "value": 1.0 }]));
}

#[test]
fn bad_answers_are_errors_that_say_so() {
    let bridge = bridge();
    let refusal = |status: u16, body: &str| {
        server([(status, body.to_owned())]);
        bridge.task("train", 0, 0).unwrap_err()
    };
    let error = refusal(400, r#"{"error": {"code": "invalid_task", "message": "no", "retryable": false}}"#);
    assert_eq!((error.code, error.message.as_str()), (ErrorCode::InvalidTask, "no"));
    assert!(refusal(503, r#"{"error": {"code": "upstream", "message": "no", "retryable": true}}"#).retryable);
    for (status, body, words) in [
        (502, "<html>Bad   Gateway</html>", "status 502 without an `error`, but \"<html>Bad Gateway</html>\""),
        (200, "hello", "answer to `/v0.1/task` is not of the protocol: expected value"),
        (200, "", "EOF"),
        (200, "{}", "missing field `split`"),
        (200, &TASK.replace("\"k\"", "NaN"), "expected value"),
        (200, &TASK.replace("\"key\"", "\"kee\""), "unknown field `kee`"),
        (302, "", "status 302"),
        (200, &TASK.replace("\"t\"}", "\"t\", \"cache\": 1}"), "a text part has the key `cache`"),
        (200, &TASK.replace("\"text\": \"t\"", "\"text\": 5"), "a text part has no `text`"),
        (200, &TASK.replace("\"hi\"", "5"), "neither a text nor a list"),
    ] {
        let error = refusal(status, body);
        assert_eq!((error.code, error.retryable), (ErrorCode::Upstream, false), "{}", error.message);
        assert!(error.message.contains(words), "{}", error.message);
    }
    server([(200, r#"{"id": "../../other"}"#.into())]);
    let context = RolloutContext { id: "1.0".into(), seed: 7, member: 1, group_size: 2, step: 4, eval: true };
    let error = bridge.open(Task::new(Vec::new()), context).err().unwrap();
    assert!(error.message.contains("`id` must be"), "{}", error.message);
    server([]);
    let gone = bridge.task("train", 0, 0).unwrap_err();
    assert_eq!((gone.code, gone.retryable), (ErrorCode::Upstream, true));
}
