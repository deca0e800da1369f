//! Questions about a table that can only be reached through tools. Owns the tools, prompts, splits and rewards; tables
//! are made by `table`, questions by `question`. Must not know who trains on it.
//!
//! Names in tables of the eval split begin with syllables that the train split never uses, so no task is in both.

mod question;
mod table;

use prl_env::{Attempt, Error, Message, Recipe, Result, Rng, Spec, Task, Turn};
use prl_numbers::{Dialect, Rational, evaluate, last_tag};
use question::Question;
use serde_json::{Value, json};
use table::{DOMAINS, Table};

/// Tasks of the eval split.
const EVAL_TASKS: u64 = 256;
/// Mixed into the seed of demonstrations, so that their mistakes do not follow the question.
const DEMONSTRATION: u64 = 1;
/// Tables drawn for one question.
const DRAWS: usize = 200;
/// Places to which the calculator rounds what does not end.
const PLACES: u32 = 6;

prl_env::args! {
    /// What the run may set.
    pub struct Args {
        /// least level: 1 looks up one record, 2 two or three, 3 all records of a group
        min_level: usize = 1 => [min(1), max(3)];
        /// most level; each task draws evenly between the two
        max_level: usize = 3 => [min(1), max(3)];
        /// records in a table
        rows: usize = 8 => [min(4), max(20)];
        /// most assistant turns, the one with the answer included
        max_turns: u32 = 8 => [min(2), max(32)];
        /// share of tasks whose payload holds a right demonstration; the others show a typical mistake
        demonstration_quality: f64 = 1.0 => [min(0), max(1)];
    }
}

prl_env::args! {
    /// Of the calculator.
    struct Calculate {
        /// an expression of numbers, + - * / ^ and brackets
        expression: String;
    }
}

prl_env::args! {
    /// Of the look-up.
    struct LookUp {
        /// the name of a record
        name: String;
        /// the field wanted; without it all of them
        field: Option<String> = None;
    }
}

prl_env::args! {
    /// Of the search.
    struct Find {
        /// a field
        field: String;
        /// the value that it must have
        value: String;
    }
}

/// The configured environment.
pub struct ToolUse {
    args: Args,
}

/// The table at hand.
#[derive(Default)]
pub struct State {
    table: Table,
}

prl_env::export!(ToolUse);

impl Recipe for ToolUse {
    type Args = Args;
    type State = State;

    fn spec() -> Spec<Self> {
        let description = "Answer questions about a hidden table with a calculator, look-ups and searches.";
        Spec::<Self>::new("tool-use", env!("CARGO_PKG_VERSION"), description)
            .split("train", None)
            .split("eval", Some(EVAL_TASKS))
            .multi_turn(32)
            .tool("calculator", "Evaluates an arithmetic expression exactly.", |_, _, given: Calculate| {
                calculated(&given.expression)
            })
            .tool("lookup", "Tells the fields of one record.", |_, attempt: &mut Attempt<Self>, given: LookUp| {
                attempt.state.table.lookup(&given.name, given.field.as_deref())
            })
            .tool(
                "find",
                "Lists the names of the records with a value in a field.",
                |_, attempt: &mut Attempt<Self>, given: Find| attempt.state.table.find(&given.field, &given.value),
            )
            .reward("correct", 1.0, |_, attempt| correct(attempt))
            .measures("whether the last answer is the right one")
            .reward("format", 0.1, |_, attempt| last_tag(said(attempt), "answer").is_some())
            .measures("whether there is a tagged answer")
            .metric("tool_calls", |_, attempt| results(attempt).count() as f64)
            .metric("tool_errors", |_, attempt| {
                results(attempt).filter(|text| text.starts_with("error: ")).count() as f64
            })
            .metric("turns", |_, attempt| attempt.completions.len() as f64)
            .tags(&["tools", "multi-turn"])
    }

    fn new(args: Args) -> Result<Self> {
        if args.min_level > args.max_level {
            return Err(Error::invalid_config(format!(
                "min_level = {} must not be more than max_level = {}",
                args.min_level, args.max_level
            )));
        }
        Ok(ToolUse { args })
    }

    fn task(&self, split: &str, index: u64, seed: u64) -> Result<Task> {
        let eval = split == "eval";
        // The eval split is the same whatever the seed, so that runs compare.
        let mut rng = Rng::for_task(split, index, if eval { 0 } else { seed });
        let level = self.args.min_level + rng.below(self.args.max_level - self.args.min_level + 1);
        let at = rng.below(DOMAINS.len());
        let domain = &DOMAINS[at];
        // Some tables have no answer to give: two records share the largest value, an average does not end.
        let drawn = (0..DRAWS).find_map(|_| {
            let table = Table::draw(&mut rng, domain, self.args.rows, eval);
            question::draw(&mut rng, at, &table, level).map(|question| (table, question))
        });
        let (table, Question { text, answer, number, plan }) =
            drawn.ok_or_else(|| Error::internal(format!("no question of level {level} in {DRAWS} tables")))?;
        let fields: Vec<String> = domain.fields.iter().map(|(name, what)| format!("`{name}` ({what})")).collect();
        let instruction = format!(
            "You answer questions about {}. You do not see the records: use the tools to look them up, to search them and \
             to calculate. The fields of a record are {}. Put the final answer, a number or a name, in <answer> tags.",
            domain.about,
            fields.join(", ")
        );
        let mut rng = Rng::from_parts(&[index, seed, DEMONSTRATION]);
        let mistake = (rng.unit() >= self.args.demonstration_quality).then(|| rng.below(3));
        let demonstration = demonstration(&table, &plan, &answer, mistake)?;
        let plan: Vec<Value> =
            plan.into_iter().map(|(tool, arguments)| json!({ "tool": tool, "arguments": arguments })).collect();
        let payload = json!({
            "table": table.to_json(), "number": number, "level": level, "plan": plan, "demonstration": demonstration,
        });
        let mut task =
            Task::new(vec![Message::system(instruction), Message::user(text)]).answer(answer).payload(payload);
        task.tags = vec![domain.name.into(), format!("level-{level}")];
        Ok(task.max_turns(self.args.max_turns))
    }

    fn start(&self, attempt: &mut Attempt<Self>) -> Result<Turn> {
        attempt.state.table = Table::from_json(&attempt.payload()["table"])
            .ok_or_else(|| Error::invalid_task(format!("the payload of task `{}` holds no table", attempt.task.key)))?;
        Ok(Turn::next(Vec::new()))
    }
}

/// The plan's calls with their answers, one a turn, then the final answer: messages as in OpenAI's API. A beginner gives
/// up at once, takes what came before the last call for the answer, or does not say it.
fn demonstration(table: &Table, plan: &[(&str, Value)], answer: &str, mistake: Option<usize>) -> Result<Vec<Value>> {
    let calls = match mistake {
        Some(0) => 0,
        Some(1) => plan.len() - 1,
        _ => plan.len(),
    };
    let mut messages = Vec::new();
    let mut last = "0".to_owned();
    for (at, (tool, arguments)) in plan.iter().take(calls).enumerate() {
        let text = |name: &str| arguments[name].as_str().unwrap_or_default();
        let answered = match *tool {
            "calculator" => calculated(text("expression")),
            "lookup" => table.lookup(text("name"), arguments["field"].as_str()),
            _ => table.find(text("field"), text("value")),
        };
        last = answered.map_err(|error| Error::internal(format!("the plan's `{tool}`: {error}")))?;
        let id = format!("call_{at}");
        let function = json!({ "name": tool, "arguments": arguments.to_string() });
        messages.push(json!({
            "role": "assistant", "tool_calls": [{ "id": &id, "type": "function", "function": function }],
        }));
        messages.push(json!({ "role": "tool", "tool_call_id": id, "name": tool, "content": &last }));
    }
    let said = match mistake {
        Some(0) => "I cannot see the records.".to_owned(),
        Some(1) => format!("<answer>{last}</answer>"),
        Some(_) => "It is done.".to_owned(),
        None => format!("<answer>{answer}</answer>"),
    };
    messages.push(json!({ "role": "assistant", "content": said }));
    Ok(messages)
}

/// What the tool `calculator` answers.
fn calculated(expression: &str) -> std::result::Result<String, String> {
    let found = evaluate(expression, Dialect::Calculator).map_err(|fault| fault.to_string())?;
    Ok(shown(found.value))
}

/// A result as the calculator shows it.
fn shown(value: Rational) -> String {
    match (value.decimal(), value.rounded(PLACES)) {
        (Some(text), _) => text,
        (None, Some(rounded)) => format!("{value} (about {rounded})"),
        (None, None) => value.to_string(),
    }
}

/// What the model said last, unless that called tools: then there is no final answer.
fn said(attempt: &Attempt<ToolUse>) -> &str {
    let last = attempt.messages.last().filter(|message| message.tool_calls.is_empty());
    let text = last.and_then(|message| match message.content.first() {
        Some(prl_env::ContentPart::Text(text)) if message.role == prl_env::Role::Assistant => Some(text.as_str()),
        _ => None,
    });
    text.map_or("", |text| text.rsplit_once("</think>").map_or(text, |(_, said)| said))
}

fn correct(attempt: &Attempt<ToolUse>) -> bool {
    let (said, right) = (said(attempt), attempt.answer());
    if attempt.payload()["number"] == true {
        let value = prl_numbers::answer(said).number.map(|number| number.value);
        return value.is_some() && value == prl_numbers::last(&right).map(|number| number.value);
    }
    let name = last_tag(said, "answer").unwrap_or(said);
    let name = name.trim_matches(|c: char| c.is_whitespace() || c.is_ascii_punctuation());
    !right.is_empty() && name.eq_ignore_ascii_case(&right)
}

/// The texts of all tool results.
fn results(attempt: &Attempt<ToolUse>) -> impl Iterator<Item = String> {
    attempt.messages.iter().filter(|message| message.tool_call_id.is_some()).map(Message::text)
}

#[cfg(test)]
mod tests;
