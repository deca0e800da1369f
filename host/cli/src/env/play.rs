//! `prl env play`: a person answers in the terminal. Owns what is shown and how a line is read; the rollout is like any
//! other's.

use super::drive::{self, Asked, Plan, Said, Speaker};
use super::open::{Opened, Purpose};
use super::record::{Answer, Environment};
use super::{Play, open};
use crate::failure::Failure;
use crate::logging;
use futures::FutureExt;
use futures::future::BoxFuture;
use prl_environment::Isolation;
use prl_types::{ErrorKind, Message, Role, RolloutError, ToolCall, ToolDef};
use std::io::{BufRead, Write};
use std::sync::Arc;

/// Runs the command.
pub fn run(asked: &Play) -> Result<u8, Failure> {
    open::block_on(async {
        let opened = Opened::load(&asked.asked, Purpose::Use).await?;
        let pool = opened.start(Isolation::Rollout, 1).await?;
        logging::warn_outside(&pool);
        let split = open::split(&pool, asked.split.as_deref())?;
        let task = pool.task(&split, asked.index, asked.seed).await.map_err(Failure::input)?;
        let most = task
            .max_turns
            .map(|turns| format!(", at most {turns} turn{}", if turns == 1 { "" } else { "s" }))
            .unwrap_or_default();
        logging::print(&format!("{} {}: task {}{most}", pool.info().name, pool.info().version, task.key))?;
        logging::print("An empty line sends what is above it; `/call TOOL {JSON}` calls a tool; `/quit` ends.")?;
        let environment = Environment::of(&pool, opened.args.clone(), Default::default());
        let mut person = Person { shown: 0 };
        let task = Arc::new(task);
        let played = drive::play(&pool, &Plan::alone(task.clone(), asked.seed), &environment, &mut person).await;
        let rollout = &played.rollout;
        if let Some(error) = &rollout.error {
            return match error.kind {
                ErrorKind::Cancelled => logging::print("\nNot finished."),
                _ => Err(Failure::run(&error.message)),
            };
        }
        let mut text = format!("\nOver: {}\n", rollout.stop_condition);
        for line in &rollout.score.components {
            text += &format!("  {} = {} (weight {})\n", line.name, line.value, line.weight);
        }
        for metric in &rollout.score.metrics {
            text += &format!("  {} = {}\n", metric.name, metric.value);
        }
        text += &format!("Reward {}", rollout.reward);
        if let Some(answer) = &task.answer {
            text +=
                &format!("\nReference answer: {}", answer.as_str().map_or_else(|| answer.to_string(), str::to_owned));
        }
        logging::print(&text)
    })
}

struct Person {
    /// Messages of the conversation that were shown.
    shown: usize,
}

impl Speaker for Person {
    fn say<'a>(&'a mut self, asked: Asked<'a>) -> BoxFuture<'a, Result<Said, RolloutError>> {
        let said = self.ask(&asked);
        async move { said }.boxed()
    }

    fn hear(&mut self, answer: &Answer) {
        // Before the first turn they are shown with the prompt.
        if self.shown == 0 {
            return;
        }
        answer.messages.iter().for_each(show);
        self.shown += answer.messages.len();
        if let Some(reward) = answer.reward {
            out(&format!("[reward {reward}]"));
        }
    }
}

impl Person {
    fn ask(&mut self, asked: &Asked<'_>) -> Result<Said, RolloutError> {
        asked.messages.iter().skip(self.shown).for_each(show);
        asked.tools.iter().for_each(show_tool);
        let quit = || RolloutError { kind: ErrorKind::Cancelled, message: "given up".into() };
        loop {
            let text = read().ok_or_else(quit)?;
            if text.trim() == "/quit" {
                return Err(quit());
            }
            match spoken(&text) {
                Ok(message) => {
                    self.shown = asked.messages.len() + 1;
                    return Ok(Said::new(message));
                }
                Err(reason) => out(&reason),
            }
        }
    }
}

/// A turn out of what was typed: text, and the tools called in it.
fn spoken(text: &str) -> Result<Message, String> {
    let mut message = Message::text(Role::Assistant, "");
    let mut lines = Vec::new();
    for line in text.lines() {
        let Some(call) = line.strip_prefix("/call") else {
            lines.push(line);
            continue;
        };
        let (name, arguments) = call.trim().split_once(char::is_whitespace).unwrap_or((call.trim(), "{}"));
        if name.is_empty() {
            return Err("`/call` needs the tool's name: /call TOOL {JSON}".into());
        }
        let id = format!("call_{}", message.tool_calls.len());
        message.tool_calls.push(ToolCall { id, name: name.into(), arguments: arguments.trim().into() });
    }
    message.content = lines.join("\n");
    Ok(message)
}

/// Lines up to an empty one or the end of the input; `None` where there is nothing left.
fn read() -> Option<String> {
    let mut text = String::new();
    let mut input = std::io::stdin().lock();
    loop {
        if text.is_empty() {
            let mut console = std::io::stdout().lock();
            // Nobody looking is no error.
            let _ = console.write_all(b"> ").and_then(|()| console.flush());
        }
        let mut line = String::new();
        match input.read_line(&mut line) {
            Ok(0) | Err(_) => return Some(text).filter(|text| !text.is_empty()),
            Ok(_) if line.trim().is_empty() => return Some(text.trim_end_matches('\n').to_owned()),
            Ok(_) if line.trim() == "/quit" => return Some(line),
            Ok(_) => text += &line,
        }
    }
}

fn out(text: &str) {
    // Nobody looking is no error.
    let _ = logging::print(text);
}

fn show(message: &Message) {
    let name = message.name.as_deref().map(|name| format!(" ({name})")).unwrap_or_default();
    out(&format!("\n[{}{name}]\n{}", message.role.as_str(), message.content));
    for call in &message.tool_calls {
        out(&format!("  calls {} {}", call.name, call.arguments));
    }
}

fn show_tool(tool: &ToolDef) {
    out(&format!("[tool {}] {} {}", tool.name, tool.description, tool.parameters["properties"]));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_stand_on_lines_of_their_own() {
        let said = spoken("let me see\n/call add {\"a\": 1}\n/call now").unwrap();
        assert_eq!((said.content.as_str(), said.tool_calls.len()), ("let me see", 2));
        assert_eq!((said.tool_calls[0].name.as_str(), said.tool_calls[0].arguments.as_str()), ("add", "{\"a\": 1}"));
        assert_eq!((said.tool_calls[1].id.as_str(), said.tool_calls[1].arguments.as_str()), ("call_1", "{}"));
        assert!(spoken("/call").is_err());
    }
}
