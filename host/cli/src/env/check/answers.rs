//! Whether an environment takes whatever a policy may say. Owns which answers are tried on which tasks.

use super::script::{BAD_ARGUMENTS, Script};
use super::{Bench, Found, Tried};
use prl_environment::Finish;
use prl_types::{Message, Role, Task, ToolCall};
use std::sync::Arc;
use std::time::Duration;

/// Tasks that are tried.
const TASKS: usize = 2;

/// Every bad answer on a few tasks: none may cost the rollout.
pub async fn check(bench: &Bench) -> Found {
    let mut kinds = 0;
    let mut wrong = Vec::new();
    let mut slowest = Duration::ZERO;
    for task in bench.tasks.iter().take(TASKS) {
        let mut of_task = Vec::new();
        for script in calls(task) {
            let played = bench.play(&bench.fresh, task, &script).await;
            of_task.push(Tried::new(task, script, played));
        }
        // Those that need no tool were tried before.
        let bad = bench.tried.iter().filter(|tried| Arc::ptr_eq(&tried.task, task) && tried.script.is_bad());
        let all: Vec<&Tried> = bad.chain(&of_task).collect();
        kinds = kinds.max(all.len());
        for tried in all {
            slowest = slowest.max(tried.slowest);
            wrong.extend(tried.error.as_ref().map(|error| format!("{}: {error}", tried.name())));
        }
    }
    match wrong.first() {
        None => {
            let (tasks, ms) = (bench.tasks.len().min(TASKS), slowest.as_secs_f64() * 1e3);
            Ok(format!("{kinds} kinds on {tasks} tasks, none costs the rollout, slowest call {ms:.1} ms"))
        }
        Some(first) => Err(format!("{} of them cost the rollout; the first: {first}", wrong.len())),
    }
}

/// Bad arguments for every tool that is there.
fn calls(task: &Task) -> impl Iterator<Item = Script> {
    task.tools.iter().flat_map(|tool| {
        BAD_ARGUMENTS.iter().map(move |(name, arguments)| {
            let call = ToolCall { id: "call_0".into(), name: tool.name.clone(), arguments: (*arguments).into() };
            let message = Message { tool_calls: vec![call], ..Message::text(Role::Assistant, "") };
            Script::Bad(name, message, Finish::ToolCalls)
        })
    })
}
