//! Recipes through the native harness: tools, several turns, groups, judges, and what the harness refuses.

use prl_env::services::{Services, llm};
use prl_env::testing::{Harness, serve};
use prl_env::{Args, Attempt, Error, Features, Message, NoArgs, Recipe, Result, Rng, Spec, Task, Turn};
use serde_json::json;

prl_env::args! {
    /// What `add` takes.
    struct Add {
        /// One number.
        a: i64;
        /// Another.
        b: i64 = 1;
    }
}

prl_env::args! {
    /// What `submit` takes.
    struct Submit {
        /// The answer.
        answer: i64;
    }
}

/// Add two numbers with a tool, then submit.
struct Tooled;

impl Recipe for Tooled {
    type Args = NoArgs;
    type State = Option<i64>;

    fn spec() -> Spec<Self> {
        Spec::<Self>::new("tooled", "0.1.0", "Adds with a tool.")
            .split("train", None)
            .split("eval", Some(3))
            .multi_turn(4)
            .reward("right", 1.0, |_, attempt| attempt.state == attempt.answer().parse().ok())
            .reward("hurry", -0.1, |_, attempt| attempt.completions.len() as f64)
            .turn_metric("sums")
            .tool("add", "Adds.", |_, attempt: &mut Attempt<Self>, given: Add| {
                attempt.count("sums", 1.0);
                attempt.credit(0.5);
                given.a.checked_add(given.b).map(|sum| sum.to_string()).ok_or("the sum is too large".into())
            })
            .tool("submit", "Ends the task.", |_, attempt: &mut Attempt<Self>, given: Submit| {
                attempt.state = Some(given.answer);
                attempt.stop("submitted");
                Ok("thank you".into())
            })
    }

    fn new(_: NoArgs) -> Result<Self> {
        Ok(Tooled)
    }

    fn task(&self, split: &str, index: u64, seed: u64) -> Result<Task> {
        let mut rng = Rng::for_task(split, index, seed);
        let (a, b) = (rng.below(100), rng.below(100));
        Ok(Task::new(vec![Message::user(format!("{a} + {b}"))]).answer(json!(a + b)))
    }

    fn reply(&self, _: &mut Attempt<Self>) -> Result<Turn> {
        Ok(Turn::say("Use a tool."))
    }
}

fn calling(name: &str, arguments: &str) -> Message {
    Message::calling("call_0", name, arguments)
}

#[test]
fn tools_are_run_and_their_notes_kept() {
    let harness = Harness::<Tooled>::new("{}").unwrap();
    assert_eq!(harness.info().features, Features::TOOLS | Features::MULTI_TURN | Features::DETERMINISTIC);
    let task = harness.task("eval", 2, 5).unwrap();
    assert_eq!((task.key.as_str(), task.max_turns, task.tools.len()), ("eval/2", Some(4), 2));
    assert_eq!(task.tools[0].parameters, Add::schema().to_string());

    let submit = calling("submit", &format!("{{\"answer\": {}}}", task.answer_text()));
    let played = harness.script(&task, &[calling("add", r#"{"a": 4}"#), submit]).unwrap();
    assert_eq!(played.messages[2].text(), "5");
    assert_eq!((played.stop.as_deref(), played.truncated.as_deref()), (Some("submitted"), None));
    assert_eq!((played.value("right"), played.value("hurry")), (1.0, 2.0));
    assert!((played.reward - (1.0 - 0.2 + 0.5)).abs() < 1e-12, "{}", played.reward);
    assert_eq!((played.turns[1].reward, played.turns[1].metrics[0].value), (Some(0.5), 1.0));

    for (call, words) in [
        (calling("add", "{\"a\": 4"), "error: the arguments of `add` are not valid JSON"),
        (calling("add", "{}"), "error: `a` is missing"),
        (calling("add", r#"{"a": "x"}"#), "error: `a`: invalid type: string \"x\", expected i64"),
        (calling("add", r#"{"a": 9223372036854775807}"#), "error: the sum is too large"),
        (calling("sub", "{}"), "error: no tool `sub`; there are `add`, `submit`"),
        (Message::assistant("5"), "Use a tool."),
    ] {
        let played = harness.script(&task, &[call]).unwrap();
        assert!(played.messages[2].text().starts_with(words), "{}", played.messages[2].text());
        assert_eq!((played.truncated.as_deref(), played.messages.len()), (Some("max_turns"), 9));
    }
    harness.conforms(5).unwrap();
}

/// Scored by a judge, and by rank in the group.
struct Judged;

impl Recipe for Judged {
    type Args = NoArgs;
    type State = ();

    fn spec() -> Spec<Self> {
        Spec::<Self>::new("judged", "0.1.0", "Asks a judge.")
            .split("train", 1)
            .roles(&["judge"])
            .reward("liked", 1.0, |_, attempt: &Attempt<Self>| {
                let request = llm::Request::new("judge", vec![Message::user(attempt.text())]);
                let verdict = llm::generate(&request)?.message.text();
                verdict.parse::<f64>().map_err(|error| Error::internal(error.to_string()))
            })
            .group_reward("longest", 2.0, |_, _, members| {
                let lengths: Vec<usize> = members.iter().map(|member| member.messages[1].text().len()).collect();
                let longest = lengths.iter().max().copied().unwrap_or(0);
                Ok(lengths.into_iter().map(|length| f64::from(u8::from(length == longest))).collect())
            })
    }

    fn new(_: NoArgs) -> Result<Self> {
        Ok(Judged)
    }

    fn task(&self, _: &str, _: u64, _: u64) -> Result<Task> {
        Ok(Task::new(vec![Message::user("Say something.")]))
    }
}

struct Lengths;

impl Services for Lengths {
    fn llm(&self, request: &llm::Request) -> Result<llm::Response> {
        assert_eq!(request.role, "judge");
        let message = Message::assistant(request.messages[0].text().len().to_string());
        Ok(llm::Response { message, prompt_tokens: 1, completion_tokens: 1 })
    }
}

#[test]
fn judges_and_groups() {
    let harness = Harness::<Judged>::new("{}").unwrap();
    assert_eq!(harness.info().features, Features::GROUP_SCORING);
    let task = harness.task("train", 0, 0).unwrap();
    assert!(harness.answer(&task, "x").unwrap_err().message.contains("no `llm` outside a host"));
    serve(Lengths);
    let played: Vec<_> = ["a", "abc", "ab"].iter().map(|text| harness.answer(&task, text).unwrap()).collect();
    assert_eq!(played.iter().map(|played| played.reward).collect::<Vec<_>>(), [1.0, 3.0, 2.0]);
    let rewards: Vec<f64> = harness.group(&task, &played).unwrap().into_iter().map(|(_, reward)| reward).collect();
    assert_eq!(rewards, [1.0, 5.0, 2.0]);
}

/// Breaks the rule that its argument names.
struct Wrong(String);

prl_env::args! {
    /// Which rule.
    struct Rule {
        /// Its name.
        rule: String;
    }
}

impl Recipe for Wrong {
    type Args = Rule;
    type State = ();

    fn spec() -> Spec<Self> {
        Spec::<Self>::new("wrong", "0.1.0", "Breaks rules.")
            .split("train", None)
            .metric("odd", |recipe, _| if recipe.0 == "nan" { f64::NAN } else { 0.0 })
    }

    fn new(args: Rule) -> Result<Self> {
        Ok(Wrong(args.rule))
    }

    fn task(&self, _: &str, _: u64, _: u64) -> Result<Task> {
        let prompt = if self.0 == "prompt" { Vec::new() } else { vec![Message::user("?")] };
        let mut task = Task::new(prompt);
        if self.0 == "payload" {
            task.payload = "{".into();
        }
        Ok(task)
    }

    fn reply(&self, attempt: &mut Attempt<Self>) -> Result<Turn> {
        Ok(match self.0.as_str() {
            "endless" => Turn::say("more"),
            "undeclared" => Turn::terminated("x").metric("even", 1.0),
            "infinite" => Turn::terminated("x").reward(f64::INFINITY),
            "hints" => Turn { sampling: Some("{".into()), ..Turn::terminated("x") },
            "tool" => {
                let call = calling("f", "").tool_calls.remove(0);
                Turn { messages: vec![Message::tool_result(&call, "")], ..Turn::terminated("x") }
            }
            _ => Turn::terminated(if attempt.text().is_empty() { "silent" } else { "answered" }),
        })
    }
}

#[test]
fn the_harness_refuses_what_a_host_would() {
    for (rule, words) in [
        ("prompt", "a task needs a key and at least one prompt message"),
        ("payload", "the payload is not JSON"),
        ("endless", "it goes on after a turn, but its features do not say `multi-turn`"),
        ("undeclared", "metric `even` is not in its description"),
        ("infinite", "the reward of a turn is Some(inf)"),
        ("nan", "metric `odd` is NaN"),
        ("hints", "the sampling hints is not JSON"),
        ("tool", "a tool result answers Some(\"call_0\"), which the turn did not call"),
    ] {
        let harness = Harness::<Wrong>::new(&format!("{{\"rule\": \"{rule}\"}}")).unwrap();
        let played = harness.task("train", 0, 0).and_then(|task| harness.answer(&task, "x"));
        let error = played.expect_err(rule);
        assert!(error.message.starts_with(words), "{rule}: {}", error.message);
    }
    let honest = Harness::<Wrong>::new(r#"{"rule": "none"}"#).unwrap();
    honest.conforms(3).unwrap();
    assert!(honest.task("test", 0, 0).unwrap_err().message.contains("no split `test`; there are `train`"));
}
