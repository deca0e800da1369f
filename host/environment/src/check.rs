//! Every check on what an environment says, whichever way it said it. Errors are sentences for `Failure::Invalid`. Must
//! not know the contract's records.

use crate::info::Split;
use crate::{EnvInfo, Grant};
use prl_types::{EnvTurn, Message, Metric, Role, Score, Stop, Task, ToolDef};
use std::collections::HashSet;

type Checked<T> = Result<T, String>;

/// Most tasks of a split with a size: their order is kept in memory.
const MAX_TASKS: u64 = 1 << 24;
/// Longest stop reason, characters: it becomes part of a metric's name.
const STOP_REASON: usize = 64;

/// What a turn follows.
#[derive(Clone, Copy, Debug)]
pub enum Said<'a> {
    /// Nothing yet.
    Start,
    /// An assistant's message.
    Turn(&'a Message),
}

/// A description, of a component with these imports.
pub fn info(info: &EnvInfo, grants: &[Grant]) -> Checked<()> {
    if info.splits.is_empty() {
        return Err("it has no splits".into());
    }
    if let Some(Split { name, size: Some(size) }) =
        info.splits.iter().find(|split| split.size.is_some_and(|size| size > MAX_TASKS))
    {
        let advice = "such a split must be declared unbounded";
        return Err(format!("its split `{name}` has {size} tasks, more than {MAX_TASKS}; {advice}"));
    }
    for (what, text) in [("name", &info.name), ("version", &info.version)] {
        if text.chars().any(char::is_control) {
            return Err(format!("its {what} {text:?} holds control characters"));
        }
    }
    unique("split", info.splits.iter().map(|split| &split.name))?;
    unique("reward component", info.components.iter().map(|line| &line.name))?;
    unique("metric", &info.metrics)?;
    unique("role", &info.roles)?;
    if let Some(name) = info.metrics.iter().find(|name| info.components.iter().any(|line| line.name == **name)) {
        return Err(format!("`{name}` is a reward component and a metric"));
    }
    for line in &info.components {
        value("the weight of reward component", &line.name, line.weight)?;
    }
    if let Some(grant) = grants.iter().find(|grant| grant.is_outside() && info.features.deterministic) {
        return Err(format!("it claims to be deterministic and imports `{}`", grant.name()));
    }
    crate::schema::check_schema(&info.args_schema).map_err(|reason| format!("its args schema {reason}"))
}

fn unique<'a>(what: &str, names: impl IntoIterator<Item = &'a String>) -> Checked<()> {
    let mut seen = HashSet::new();
    for name in names {
        if name.is_empty() || !seen.insert(name) {
            return Err(format!("its {what} name `{name}` is empty or there twice"));
        }
        if name.chars().any(char::is_control) {
            return Err(format!("its {what} name {name:?} holds control characters"));
        }
    }
    Ok(())
}

fn value(what: &str, name: &str, value: f64) -> Checked<()> {
    prl_types::check_value(&format!("{what} `{name}`"), value)
}

/// A task that was asked for as `(split, index, seed)`.
pub fn task(info: &EnvInfo, asked: (&str, u64, u64), task: &Task) -> Checked<()> {
    let got = (task.split.as_str(), task.index, task.seed);
    if got != asked {
        return Err(format!("asked for task {asked:?} (split, index, seed), it gave {got:?}"));
    }
    if task.key.is_empty() || task.prompt.is_empty() {
        return Err("a task needs a key and at least one prompt message".into());
    }
    if task.key.chars().any(char::is_control) {
        return Err(format!("the task's key {:?} holds control characters", task.key));
    }
    if task.max_turns == Some(0) {
        return Err("a task allows 0 turns".into());
    }
    tools(info, &task.tools)
}

fn tools(info: &EnvInfo, tools: &[ToolDef]) -> Checked<()> {
    if !tools.is_empty() && !info.features.tools {
        return Err("it offers tools, which its features do not say".into());
    }
    let mut seen = HashSet::new();
    for tool in tools {
        if !tool.parameters.is_object() {
            return Err(format!("the schema of tool `{}` is not an object", tool.name));
        }
        if tool.name.is_empty() || !seen.insert(&tool.name) {
            return Err(format!("the tool name `{}` is empty or there twice", tool.name));
        }
    }
    Ok(())
}

fn metrics(info: &EnvInfo, list: &[Metric]) -> Checked<()> {
    for (at, metric) in list.iter().enumerate() {
        if !info.metrics.contains(&metric.name) {
            return Err(format!("metric `{}` is not in its description", metric.name));
        }
        if list[..at].iter().any(|other| other.name == metric.name) {
            return Err(format!("metric `{}` is there twice", metric.name));
        }
        value("metric", &metric.name, metric.value)?;
    }
    Ok(())
}

/// What was answered to `start` or `step`.
pub fn turn(info: &EnvInfo, said: Said<'_>, turn: &EnvTurn) -> Checked<()> {
    if let Some(reward) = turn.reward {
        if matches!(said, Said::Start) {
            return Err("it gives a reward before the first turn".into());
        }
        value("reward of", "turn", reward)?;
    }
    match (&turn.stop, said) {
        (Some(stop), _) => reason(stop)?,
        (None, Said::Start) => {}
        (None, Said::Turn(_)) if !info.features.multi_turn => {
            return Err("it goes on after a turn, which its features do not say".into());
        }
        (None, Said::Turn(_)) if turn.messages.is_empty() => {
            return Err("it neither stops nor says anything".into());
        }
        (None, Said::Turn(_)) => {}
    }
    for message in turn.messages.iter().filter(|message| message.role == Role::Tool) {
        let calls = match said {
            Said::Start => &[],
            Said::Turn(said) => said.tool_calls.as_slice(),
        };
        let Some(id) = &message.tool_call_id else {
            return Err("a tool result does not say which call it answers".into());
        };
        if !calls.iter().any(|call| call.id == *id) {
            return Err(format!("a tool result answers call `{id}`, which the last turn does not hold"));
        }
    }
    turn.tools.as_deref().map_or(Ok(()), |list| tools(info, list))?;
    metrics(info, &turn.metrics)
}

fn reason(stop: &Stop) -> Checked<()> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    if !stop.reason.is_empty() && stop.reason.len() <= STOP_REASON && stop.reason.chars().all(plain) {
        return Ok(());
    }
    let shown: String = stop.reason.chars().take(STOP_REASON).collect();
    Err(format!("the stop reason {shown:?} is not 1 to {STOP_REASON} of the characters a-z A-Z 0-9 _ - ."))
}

/// The final rubric; fills in the weights.
pub fn score(info: &EnvInfo, mut score: Score) -> Checked<Score> {
    for at in 0..score.components.len() {
        let (before, rest) = score.components.split_at_mut(at);
        let line = &mut rest[0];
        let Some(declared) = info.components.iter().find(|declared| declared.name == line.name) else {
            return Err(format!("reward component `{}` is not in its description", line.name));
        };
        if before.iter().any(|other| other.name == line.name) {
            return Err(format!("reward component `{}` is there twice", line.name));
        }
        value("reward component", &line.name, line.value)?;
        line.weight = declared.weight;
    }
    metrics(info, &score.metrics)?;
    value("the weighted", "total", score.total())?;
    Ok(score)
}
