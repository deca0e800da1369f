//! An environment whose job is to misbehave, for tests of hosts. Owns a list of hostile acts; must not know the host.
//!
//! The split names the act, the index of a task the call in which it happens: 0 task, 1 open, 2 start, 3 step,
//! 4 score, 5 nowhere. The split `honest` does nothing wrong. Arguments `{"act": "panic"}` misbehave in `configure`.

use prl_env::{
    Completion, Component, ContentPart, Environment, Error, ErrorCode, Features, Finished, Info, Message, NamedValue,
    Result, Rng, Rollout, RolloutContext, Score, Split, Task, ToolCall, ToolDef, Turn, log,
};
use std::hint::black_box;
use std::rc::Rc;

const ACTS: [&str; 21] = [
    "honest",
    "panic",
    "sometimes",
    "loop",
    "bomb",
    "stack",
    "huge",
    "gigabyte",
    "utf8",
    "flood",
    "error",
    "nan",
    "inf",
    "large",
    "undeclared",
    "twice",
    "image",
    "bad-json",
    "silent",
    "tools",
    "tool-id",
];
const CALLS: [&str; 5] = ["task", "open", "start", "step", "score"];

/// Nothing to configure.
pub struct Misbehave;

prl_env::export!(Misbehave);

/// Acts that need no particular return value. What can be told in a return value is left to the caller.
fn act(name: &str, seed: u64) -> Result<()> {
    match name {
        "panic" => panic!("misbehaving on purpose"),
        "sometimes" if Rng::from_parts(&[seed]).below(100) == 0 => panic!("one in a hundred"),
        "loop" => loop {
            black_box(());
        },
        "bomb" => {
            let mut hoard = Vec::new();
            loop {
                hoard.push(vec![1u8; 1 << 20]);
                black_box(&hoard);
            }
        }
        "stack" => {
            black_box(dive(0));
            Ok(())
        }
        "flood" => {
            (0..100_000).for_each(|line| log::info(&format!("line {line}")));
            log::info(&"x".repeat(1 << 16));
            Ok(())
        }
        "error" => {
            let message = "the judge is busy".into();
            Err(Error { code: ErrorCode::Upstream, message, retryable: true })
        }
        _ => Ok(()),
    }
}

#[inline(never)]
fn dive(depth: u64) -> u64 {
    let frame = black_box([depth; 64]);
    if depth == u64::MAX { 0 } else { dive(depth + 1) + black_box(frame)[(depth % 64) as usize] }
}

/// A text of so many bytes that begins where `text` does, whatever is behind it.
fn stretched(text: &str, bytes: usize) -> String {
    let text = text.to_owned().leak();
    // SAFETY: there is none, on purpose: the string's memory is not its own. It is handed to the host and leaked.
    unsafe { String::from_raw_parts(text.as_mut_ptr(), bytes, bytes) }
}

fn message(act: &str) -> Message {
    let text = match act {
        "huge" => "x".repeat(8 << 20),
        "gigabyte" => stretched("x", 1 << 30),
        // SAFETY: there is none, on purpose: a string that is no UTF-8 is handed to the host.
        "utf8" => unsafe { String::from_utf8_unchecked(vec![b'a', 0xff, 0xc0, b'b']) },
        _ => "go on".into(),
    };
    let mut message = Message::user(text);
    match act {
        "image" => message.content.push(ContentPart::Other("{\"type\": \"image\"}".into())),
        "tool-id" => {
            let call = ToolCall { id: "call_99".into(), name: "double".into(), arguments: String::new() };
            message = Message::tool_result(&call, "4");
        }
        _ => {}
    }
    message
}

/// A number that no reward may be.
fn number(act: &str) -> Option<f64> {
    match act {
        "nan" => Some(f64::NAN),
        "inf" => Some(f64::NEG_INFINITY),
        "large" => Some(1e308),
        _ => None,
    }
}

impl Environment for Misbehave {
    type Rollout = Attempt;

    fn describe() -> Info {
        Info {
            name: "misbehave".into(),
            version: env!("CARGO_PKG_VERSION").into(),
            description: "Does what no environment should.".into(),
            args_schema: "{}".into(),
            splits: ACTS.iter().map(|name| Split { name: (*name).into(), size: Some(6) }).collect(),
            features: Features::MULTI_TURN | Features::DETERMINISTIC | Features::GROUP_SCORING,
            components: vec![Component { name: "turns".into(), weight: 1.0, description: String::new() }],
            metrics: vec!["calls".into()],
            roles: Vec::new(),
            tags: vec!["test".into()],
        }
    }

    fn configure(args: &str) -> Result<Self> {
        // The arguments are only ever {} or {"act": "NAME"}.
        match args.split('"').nth(3) {
            Some("refuse") => Err(Error::invalid_config("`act` is a bad idea")),
            Some(name) => act(name, 0).map(|()| Misbehave),
            None => Ok(Misbehave),
        }
    }

    fn task(&self, split: &str, index: u64, seed: u64) -> Result<Task> {
        let here = if index == 0 { split } else { "honest" };
        act(here, seed)?;
        Ok(Task {
            split: split.into(),
            index,
            seed,
            key: format!("{split}/{index}"),
            prompt: vec![message(here)],
            tools: if here == "tools" { vec![ToolDef::new("x", "", &"{}".into())] } else { Vec::new() },
            answer: None,
            payload: if here == "bad-json" { "{".into() } else { "{}".into() },
            max_turns: None,
            tags: Vec::new(),
        })
    }

    fn open(self: &Rc<Self>, task: Task, context: RolloutContext) -> Result<Attempt> {
        let attempt = Attempt { split: task.split, at: task.index, seed: context.seed, calls: 0, turns: 0 };
        attempt.maybe(1)?;
        Ok(attempt)
    }

    fn score_group(&self, _task: Task, members: Vec<Finished>) -> Result<Vec<Score>> {
        // A rank: more messages, more reward.
        Ok(members.iter().map(|member| Score::empty().reward("turns", member.messages.len() as f64)).collect())
    }
}

/// One attempt: three turns.
pub struct Attempt {
    split: String,
    at: u64,
    seed: u64,
    calls: u32,
    turns: u32,
}

impl Attempt {
    /// Acts if `call` is the one to misbehave in; answers the act whose return value should be wrong.
    fn maybe(&self, call: u64) -> Result<&str> {
        if self.at != call {
            return Ok("honest");
        }
        log::debug(&format!("{} in {}", self.split, CALLS[call as usize]));
        act(&self.split, self.seed)?;
        Ok(&self.split)
    }

    fn turn(&self, act: &str, mut turn: Turn) -> Turn {
        match act {
            "huge" | "gigabyte" | "utf8" | "image" | "tool-id" => turn.messages = vec![message(act)],
            "nan" | "inf" | "large" => turn.reward = number(act),
            "undeclared" => turn.metrics = vec![NamedValue::new("surprise", 1.0)],
            "twice" => turn.metrics = vec![NamedValue::new("calls", 1.0), NamedValue::new("calls", 1.0)],
            "bad-json" => turn.sampling = Some("{\"temperature\": 2}".into()),
            "silent" => turn.messages.clear(),
            "tools" => turn.tools = Some(vec![ToolDef::new("x", "", &"{}".into())]),
            _ => {}
        }
        turn
    }
}

impl Rollout for Attempt {
    fn start(&mut self) -> Result<Turn> {
        self.calls += 1;
        Ok(self.turn(self.maybe(2)?, Turn::next(Vec::new())))
    }

    fn step(&mut self, _completion: Completion) -> Result<Turn> {
        self.calls += 1;
        self.turns += 1;
        let turn = if self.turns == 3 { Turn::terminated("done") } else { Turn::next(vec![Message::user("more")]) };
        Ok(self.turn(self.maybe(3)?, turn))
    }

    fn score(&mut self, truncated: Option<&str>) -> Result<Score> {
        let (turns, calls) = (f64::from(self.turns), f64::from(self.calls + 1));
        let mut score = Score::empty().reward("turns", turns).metric("calls", calls);
        match self.maybe(4)? {
            "nan" => score.components[0].value = f64::INFINITY,
            act @ ("inf" | "large") => score.components[0].value = number(act).unwrap_or_default(),
            "undeclared" => score = score.reward("surprise", 1.0),
            "twice" => score = score.reward("turns", 1.0),
            "bad-json" => score.info = Some("{".into()),
            "huge" => score.info = Some(format!("\"{}\"", "x".repeat(8 << 20))),
            _ => score.info = truncated.map(|reason| format!("\"cut: {reason}\"")),
        }
        Ok(score)
    }
}
