//! Rollouts of a step as a list, and one of them as it was said. Owns the form; the record's is `env::record`'s.

use super::{Inspect, number};
use crate::env::record::{Line, Replay};
use crate::failure::Failure;
use crate::logging;
use crate::past::Past;
use crate::table::{short, table};
use prl_store::{Split, Subset, read_lines};
use prl_types::{Message, Rollout, Step};
use serde_json::json;

/// Tells the rollouts of `step`.
pub fn tell(past: &Past, step: Step, asked: &Inspect) -> Result<u8, Failure> {
    let log = past.view.rollouts();
    let run = past.view.root().display();
    let steps = log.steps().unwrap_or_default();
    if !steps.contains(&step) {
        let known = match (steps.first(), steps.last()) {
            (Some(first), Some(last)) => format!("there are steps {first} to {last}"),
            _ => "there are none of any step".into(),
        };
        return Err(Failure::input(format_args!("`{run}` has no rollouts of step {step}; {known}")));
    }
    let splits = [("train", Split::Train, !asked.eval), ("eval", Split::Eval, !asked.train)];
    let (mut rows, mut found, mut chosen) = (Vec::new(), 0, 0);
    for (split, kind, _) in splits.into_iter().filter(|(.., wanted)| *wanted) {
        let path = log.path(step, kind, Subset::All);
        if !path.exists() {
            continue;
        }
        for (at, line) in read_lines::<Line>(&path).map_err(Failure::input)?.enumerate() {
            let line = line.map_err(Failure::input)?;
            found += 1;
            let rollout = &line.rollout;
            let named = |k: &String| *k == at.to_string() || *k == rollout.id.to_string();
            if !asked.rollout.as_ref().is_none_or(named) {
                continue;
            }
            chosen += 1;
            match (&asked.rollout, asked.json) {
                (None, false) => rows.push(row(split, rollout)),
                (None, true) => drop(logging::print(&summary(split, at, rollout).to_string())?),
                (Some(_), false) => drop(logging::print(&said(split, step, &line))?),
                (Some(_), true) => drop(logging::print(&whole(split, at, &line).to_string())?),
            }
        }
    }
    match (&asked.rollout, chosen) {
        _ if found == 0 => {
            Err(Failure::input(format_args!("`{run}` has no rollouts of that kind in step {step}, or not yet")))
        }
        (Some(k), 0) => {
            Err(Failure::input(format_args!("none of the {found} rollouts of step {step} in `{run}` is called `{k}`")))
        }
        (None, _) if !asked.json => {
            let heading = ["ROLLOUT", "SPLIT", "ENV", "TASK", "REWARD", "TURNS", "TOKENS", "BRANCHES", "NOTES"];
            logging::print(table(&heading, &rows).trim_end())
        }
        _ => Ok(0),
    }
}

fn tokens(rollout: &Rollout) -> usize {
    rollout.turns.iter().map(|turn| turn.tokens).sum()
}

fn row(split: &str, rollout: &Rollout) -> Vec<String> {
    let notes = [rollout.error.as_ref().map(|e| format!("{:?}: {}", e.kind, e.message)), cut(rollout), out(rollout)];
    let notes: Vec<String> = notes.into_iter().flatten().collect();
    let branches = match rollout.branches.len() {
        0 => "-".into(),
        count => format!("{count}, {} trained", rollout.branches.iter().filter(|branch| branch.trained).count()),
    };
    vec![
        rollout.id.to_string(),
        split.into(),
        rollout.task.env.clone(),
        short(&rollout.task.key, 40),
        number(rollout.reward),
        rollout.turns.len().to_string(),
        tokens(rollout).to_string(),
        branches,
        short(&notes.join("; "), 100),
    ]
}

fn cut(rollout: &Rollout) -> Option<String> {
    rollout.truncation.as_ref().map(|cut| format!("truncated ({})", cut.reason))
}

fn out(rollout: &Rollout) -> Option<String> {
    let names = rollout.filters.join(", ");
    match (names.is_empty(), rollout.is_filtered) {
        (true, _) => None,
        (false, true) => Some(format!("filtered ({names})")),
        (false, false) => Some(format!("flagged ({names})")),
    }
}

fn summary(split: &str, at: usize, rollout: &Rollout) -> serde_json::Value {
    json!({
        "split": split, "line": at + 1, "rollout": rollout.id.to_string(), "env": rollout.task.env,
        "task": rollout.task.key, "reward": rollout.reward, "turns": rollout.turns.len(), "tokens": tokens(rollout),
        "branches": rollout.branches, "truncation": rollout.truncation, "error": rollout.error,
        "filters": rollout.filters, "is_filtered": rollout.is_filtered, "policy_version": rollout.policy_version,
    })
}

fn whole(split: &str, at: usize, line: &Line) -> serde_json::Value {
    let opening = line.record().and_then(|record| record.opening).map(|opening| opening.messages);
    json!({ "split": split, "line": at + 1, "rollout": line.rollout, "opening": opening.unwrap_or_default() })
}

/// A rollout as people read it.
fn said(split: &str, step: Step, line: &Line) -> String {
    let rollout = &line.rollout;
    let mut text = format!(
        "rollout   {} of {} ({split}, step {step}, policy {})\ntask      {}\nreward    {}",
        rollout.id,
        rollout.task.env,
        rollout.policy_version,
        rollout.task.key,
        number(rollout.reward)
    );
    let parts = rollout.score.components.iter().map(|c| match c.weight {
        1.0 => format!("{} {}", c.name, number(c.value)),
        weight => format!("{} {} × {}", c.name, number(c.value), number(weight)),
    });
    let dense: f64 = rollout.turns.iter().filter_map(|turn| turn.reward).sum();
    let parts: Vec<String> = parts.chain((dense != 0.0).then(|| format!("turns {}", number(dense)))).collect();
    if !parts.is_empty() {
        text += &format!(" = {}", parts.join(" + "));
    }
    let metrics: Vec<String> =
        rollout.score.metrics.iter().map(|metric| format!("{} {}", metric.name, number(metric.value))).collect();
    if !metrics.is_empty() {
        text += &format!("\nmetrics   {}", metrics.join(", "));
    }
    let mut ended = vec![rollout.stop_condition.clone()];
    ended.extend(cut(rollout));
    ended.extend(out(rollout));
    text += &format!("\nended     {}", ended.join(", "));
    if let Some(error) = &rollout.error {
        text += &format!("\nerror     {:?}: {}", error.kind, error.message);
    }
    text += &branches(rollout);
    let record = line.record();
    let opening = record.iter().filter_map(|record| record.opening.as_ref()).flat_map(|opening| &opening.messages);
    text += "\n";
    rollout.task.prompt.iter().chain(opening).for_each(|message| text += &told(message));
    for (at, turn) in rollout.turns.iter().enumerate() {
        text += &format!("\n\n--- turn {}, {} tokens{}", at + 1, turn.tokens, finish(record.as_ref(), at));
        if let Some(reward) = turn.reward {
            text += &format!(", reward {}", number(reward));
        }
        text += &told(&turn.message);
        turn.replies.iter().for_each(|message| text += &told(message));
    }
    text + "\n"
}

fn finish(record: Option<&Replay>, turn: usize) -> String {
    record.and_then(|record| record.turns.get(turn)).map_or_else(String::new, |turn| format!(", {}", turn.finish))
}

/// Which turns lie on which branch.
fn branches(rollout: &Rollout) -> String {
    let of = |branch: &prl_types::Branch| {
        let (first, last) = (branch.first + 1, branch.first + branch.turns);
        let turns = if first == last { format!("turn {first}") } else { format!("turns {first} to {last}") };
        let trained = if branch.trained { "trained" } else { "not trained" };
        let advantage = branch.advantage.map_or_else(String::new, |mean| format!(", advantage {}", number(mean)));
        format!("{turns} ({} tokens, {trained}{advantage})", branch.tokens)
    };
    let all: Vec<String> = rollout.branches.iter().map(of).collect();
    if all.is_empty() { String::new() } else { format!("\nbranches  {}", all.join("; ")) }
}

fn told(message: &Message) -> String {
    let name = message.name.as_deref().map(|name| format!(" {name}")).unwrap_or_default();
    let call = message.tool_call_id.as_deref().map(|id| format!(" (answers {id})")).unwrap_or_default();
    let mut text = format!("\n[{}{name}{call}]", message.role.as_str());
    if let Some(reasoning) = &message.reasoning {
        text += &format!("\n(reasoning) {reasoning}");
    }
    if !message.content.is_empty() {
        text += &format!("\n{}", message.content);
    }
    message
        .tool_calls
        .iter()
        .for_each(|call| text += &format!("\n(calls {}) {}({})", call.id, call.name, call.arguments));
    text
}
