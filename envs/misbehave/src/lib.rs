//! An environment whose job is to misbehave, for tests of hosts. Owns a list of hostile acts; must not know the host.
//!
//! The split names the act, the index of a task the call in which it happens: 0 task, 1 open, 2 start, 3 step,
//! 4 score, 5 nowhere. The split `honest` does nothing wrong. Arguments `{"act": "panic"}` misbehave in `configure`.

use prl_env::{
    Completion, ContentPart, Environment, Error, ErrorCode, Features, Finished, Info, Message, Metric, Result, Rollout,
    RolloutContext, Score, Split, Task, Turn, log,
};
use std::hint::black_box;

const ACTS: [&str; 12] =
    ["honest", "panic", "loop", "bomb", "stack", "huge", "flood", "error", "nan", "undeclared", "image", "bad-json"];
const CALLS: [&str; 5] = ["task", "open", "start", "step", "score"];

/// Nothing to configure.
pub struct Misbehave;

prl_env::export!(Misbehave);

/// Acts that need no particular return value. What can be told in a return value is left to the caller.
fn act(name: &str) -> Result<()> {
    match name {
        "panic" => panic!("misbehaving on purpose"),
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

fn message(act: &str) -> Message {
    let mut message = Message::user(if act == "huge" { "x".repeat(8 << 20) } else { "go on".into() });
    if act == "image" {
        message.content.push(ContentPart::Other("{\"type\": \"image\"}".into()));
    }
    message
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
            components: vec!["turns".into()],
            metrics: vec!["calls".into()],
            tags: vec!["test".into()],
        }
    }

    fn configure(args: &str) -> Result<Self> {
        // The arguments are only ever {} or {"act": "NAME"}.
        match args.split('"').nth(3) {
            Some("refuse") => Err(Error::invalid_config("`act` is a bad idea")),
            Some(name) => act(name).map(|()| Misbehave),
            None => Ok(Misbehave),
        }
    }

    fn task(&self, split: &str, index: u64, seed: u64) -> Result<Task> {
        let here = if index == 0 { split } else { "honest" };
        act(here)?;
        Ok(Task {
            split: split.into(),
            index,
            seed,
            key: format!("{split}/{index}"),
            prompt: vec![message(here)],
            tools: Vec::new(),
            answer: None,
            payload: if here == "bad-json" { "{".into() } else { "{}".into() },
            max_turns: None,
            tags: Vec::new(),
        })
    }

    fn open(&self, task: Task, _context: RolloutContext) -> Result<Attempt> {
        let attempt = Attempt { split: task.split, at: task.index, calls: 0, turns: 0 };
        attempt.maybe(1)?;
        Ok(attempt)
    }

    fn score_group(&self, _task: Task, members: Vec<Finished>) -> Result<Vec<Score>> {
        // A rank: more messages, more reward.
        Ok(members.iter().map(|member| Score::empty().reward("turns", member.messages.len() as f64, 1.0)).collect())
    }
}

/// One attempt: three turns.
pub struct Attempt {
    split: String,
    at: u64,
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
        act(&self.split)?;
        Ok(&self.split)
    }

    fn turn(&self, act: &str, mut turn: Turn) -> Turn {
        match act {
            "huge" | "image" => turn.messages = vec![message(act)],
            "nan" => turn.reward = Some(f64::NAN),
            "undeclared" => turn.metrics = vec![Metric { name: "surprise".into(), value: 1.0 }],
            "bad-json" => turn.sampling = Some("{".into()),
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
        let mut score = Score::empty().reward("turns", turns, 1.0).metric("calls", calls);
        match self.maybe(4)? {
            "nan" => score.components[0].value = f64::INFINITY,
            "undeclared" => score = score.reward("surprise", 1.0, 1.0),
            "bad-json" => score.info = Some("{".into()),
            "huge" => score.info = Some(format!("\"{}\"", "x".repeat(8 << 20))),
            _ => score.info = truncated.map(|reason| format!("\"cut: {reason}\"")),
        }
        Ok(score)
    }
}
