//! `prl env check`: whether an environment keeps the contract, one line a question. Owns the questions and their order; what
//! is said to an environment is `script`'s.

mod answers;
mod arguments;
mod script;

use super::drive::{self, Plan, Played};
use super::open::{Opened, Purpose};
use super::record::Environment;
use super::{Check, open};
use crate::failure::Failure;
use crate::report::{Found, Report};
use prl_environment::{Grant, Isolation, Pool};
use prl_types::{GroupId, RolloutId, Score, Summary, Task};
use script::Script;
use std::sync::Arc;
use std::time::Duration;

/// Rollouts of a group that is scored as a whole.
const GROUP: u32 = 3;

/// Rollouts that fail before the others are spared.
const HOPELESS: usize = 4;

/// An environment on the bench: twice with fresh instances, and once with one instance for all rollouts.
struct Bench {
    opened: Opened,
    environment: Environment,
    fresh: Pool,
    again: Pool,
    shared: Pool,
    tasks: Vec<Arc<Task>>,
    /// Every script on every task with fresh instances: what the checks share.
    tried: Vec<Tried>,
    seed: u64,
}

/// What is kept of a rollout that was played.
struct Tried {
    task: Arc<Task>,
    script: Script,
    digest: String,
    error: Option<String>,
    turns: usize,
    reward: f64,
    slowest: Duration,
}

impl Tried {
    fn new(task: &Arc<Task>, script: Script, played: Played) -> Self {
        Tried {
            task: task.clone(),
            script,
            digest: played.digest(),
            error: played.rollout.error.map(|error| error.message),
            turns: played.rollout.turns.len(),
            reward: played.rollout.reward,
            slowest: played.slowest,
        }
    }

    /// For findings.
    fn name(&self) -> String {
        format!("task {}, model that {}", self.task.key, self.script)
    }
}

/// Runs the command; the code is 1 where something does not hold.
pub fn run(asked: &Check) -> Result<u8, Failure> {
    open::block_on(async {
        let opened = Opened::load(&asked.asked, Purpose::Look).await?;
        let mut report = Report::default();
        let about = opened.file.info();
        let (splits, lines) = (about.splits.len(), about.components.len());
        report.add(
            "description",
            Ok(format!("{} {}: {splits} splits, {lines} reward components", about.name, about.version)),
        )?;
        notes(&opened)?;
        report.add("arguments", arguments::check(&opened).await)?;
        let fresh = opened.start(Isolation::Rollout, usize::MAX).await?;
        let again = opened.start(Isolation::Rollout, usize::MAX).await?;
        let shared = opened.start(Isolation::Worker, usize::MAX).await?;
        let environment = Environment::of(&fresh, opened.args.clone(), Default::default());
        let (tasks, tried) = (Vec::new(), Vec::new());
        let mut bench = Bench { opened, environment, fresh, again, shared, tasks, tried, seed: asked.seed };
        let tasks = bench.make_tasks(asked.tasks).await;
        let made = tasks.is_ok();
        report.add("tasks", tasks)?;
        if made {
            bench.try_all().await;
            report.add("rollouts", bench.rollouts())?;
        }
        // Where nothing works, there is nothing more to learn.
        if made && !bench.all_failed() {
            bench.knowing().map_or(Ok(()), |told| Report::note("answers", &told))?;
            report.add("determinism", bench.determinism().await)?;
            report.add("leaks", bench.leaks().await)?;
            report.add("bad answers", answers::check(&bench).await)?;
            report.add("cut off", bench.cut_off().await)?;
            if bench.fresh.info().features.group_scoring {
                report.add("groups", bench.groups().await)?;
            }
        }
        report.end(&bench.opened.name())
    })
}

/// What was stood in for.
fn notes(opened: &Opened) -> Result<(), Failure> {
    if let Some(url) = opened.file.unsandboxed() {
        let text = format!("it runs outside the sandbox at {url}: nothing there is held to limits or repeats for sure");
        return Report::note("sandbox", &text);
    }
    for role in &opened.stood_in {
        let text =
            format!("the model `{role}` is stood in for: it answers \"1\"; name one with --llm {role}=MODEL@URL");
        Report::note("services", &text)?;
    }
    if opened.file.grants().contains(&Grant::Http) {
        Report::note("services", "it may reach the addresses of --http-allow, and no others")?;
    }
    Ok(())
}

impl Bench {
    /// Makes the first tasks of every split, and the last of one that ends, in two instances.
    async fn make_tasks(&mut self, most: u64) -> Found {
        let splits = self.fresh.info().splits.clone();
        let mut told = Vec::new();
        for split in &splits {
            let count = split.size.map_or(most, |size| size.min(most));
            let mut indices: Vec<u64> = (0..count).collect();
            indices.extend(split.size.and_then(|size| size.checked_sub(1)).filter(|last| *last >= count));
            for index in indices {
                let task = self.fresh.task(&split.name, index, self.seed).await.map_err(|e| e.to_string())?;
                let again = self.again.task(&split.name, index, self.seed).await.map_err(|e| e.to_string())?;
                if task != again {
                    return Err(format!("task {index} of split `{}` differs between two instances", split.name));
                }
                let other = self.tasks.iter().find(|other| other.key == task.key && ***other != task);
                if let Some(other) = other {
                    return Err(format!(
                        "the key `{}` names different tasks: {} of `{}` and {index} of `{}`",
                        task.key, other.index, other.split, split.name
                    ));
                }
                self.tasks.push(Arc::new(task));
            }
            told.push(format!("{count} of {}", split.name));
        }
        match self.tasks.is_empty() {
            true => Err("there is no task in any split".into()),
            false => Ok(format!("{}, the same in two instances", told.join(", "))),
        }
    }

    fn plan(&self, task: &Arc<Task>) -> Plan {
        Plan { max_turns: Some(script::MAX_TURNS), ..Plan::alone(task.clone(), self.seed) }
    }

    async fn play(&self, pool: &Pool, task: &Arc<Task>, script: &Script) -> Played {
        drive::play(pool, &self.plan(task), &self.environment, &mut script.clone()).await
    }

    async fn try_all(&mut self) {
        for task in &self.tasks {
            for script in Script::ordinary(task).into_iter().chain(Script::bad()) {
                let played = self.play(&self.fresh, task, &script).await;
                self.tried.push(Tried::new(task, script, played));
                if self.tried.len() >= HOPELESS && self.all_failed() {
                    return;
                }
            }
        }
    }

    /// Every task comes to a score with ordinary answers.
    fn rollouts(&self) -> Found {
        let ordinary: Vec<&Tried> = self.tried.iter().filter(|tried| !tried.script.is_bad()).collect();
        if let Some((tried, error)) = ordinary.iter().find_map(|tried| Some((tried, tried.error.as_ref()?))) {
            return Err(format!("{}: {error}", tried.name()));
        }
        let (count, turns): (_, usize) = (ordinary.len(), ordinary.iter().map(|tried| tried.turns).sum());
        let slowest = ordinary.iter().map(|tried| tried.slowest).max().unwrap_or_default();
        let mean = Summary::of(ordinary.iter().map(|tried| tried.reward)).mean;
        let ms = slowest.as_secs_f64() * 1e3;
        Ok(format!("{count} in {turns} turns, mean reward {mean:.3}, slowest call {ms:.1} ms"))
    }

    fn all_failed(&self) -> bool {
        self.tried.iter().all(|tried| tried.error.is_some())
    }

    /// What it is worth to know the answer; `None` where no task has one.
    fn knowing(&self) -> Option<String> {
        let best = |knows: bool| {
            let of = self.tried.iter().filter(|tried| !tried.script.is_bad() && tried.script.knows() == knows);
            of.max_by(|one, other| one.reward.total_cmp(&other.reward))
        };
        let known = best(true)?;
        let told = format!("reference answers earn {:.3} at best ({})", known.reward, known.name());
        Some(match best(false).filter(|other| known.reward <= other.reward) {
            None => told,
            Some(other) => format!(
                "{told}, said in the tags that the prompt names or as they are; a model that {} earns {:.3}; `prl env play` \
                 shows what other forms earn",
                other.script, other.reward
            ),
        })
    }

    /// The same task, seed and completions give the same turns and scores in two instances.
    async fn determinism(&self) -> Found {
        let (count, mut different) = (self.tried.len(), Vec::new());
        for tried in &self.tried {
            if self.play(&self.again, &tried.task, &tried.script).await.digest() != tried.digest {
                different.push(tried.name());
            }
        }
        let claimed = self.fresh.info().features.deterministic;
        match (different.first(), claimed) {
            (None, true) => Ok(format!("{count} rollouts are hash-equal in two instances")),
            (None, false) => Ok(format!("not claimed, but {count} rollouts are hash-equal in two instances")),
            (Some(_), false) => Ok(format!("not claimed; {} of {count} rollouts differ", different.len())),
            (Some(first), true) => Err(format!(
                "claimed, but {} of {count} rollouts differ in two instances; the first: {first}",
                different.len()
            )),
        }
    }

    /// An instance that serves many rollouts at once gives what fresh ones give.
    async fn leaks(&self) -> Found {
        // Interleaved, each twice: what one leaves behind shows in the others.
        let twice = || self.tried.iter().chain(&self.tried);
        let play = async |tried: &Tried| self.play(&self.shared, &tried.task, &tried.script).await;
        let played = futures::future::join_all(twice().map(play)).await;
        let mut different = played.iter().zip(twice()).filter(|(played, tried)| played.digest() != tried.digest);
        let count = played.len();
        match (different.next(), self.fresh.info().features.deterministic) {
            (None, _) => Ok(format!("{count} rollouts in one shared instance give what fresh ones give")),
            (Some(_), false) => Ok("cannot be told: it is not deterministic".into()),
            (Some((played, tried)), true) => {
                let error = played.rollout.error.as_ref().map(|e| format!(" ({})", e.message)).unwrap_or_default();
                let left = different.count() + 1;
                let first = format!("{}{error}", tried.name());
                Err(format!("{left} of {count} rollouts differ when one instance serves them all; the first: {first}"))
            }
        }
    }

    /// A rollout that the host ends after one turn has a score.
    async fn cut_off(&self) -> Found {
        for task in &self.tasks {
            let plan = Plan { max_turns: Some(1), ..self.plan(task) };
            let mut script = Script::says("I do not know.");
            let played = drive::play(&self.fresh, &plan, &self.environment, &mut script).await;
            if let Some(error) = &played.rollout.error {
                return Err(format!("task {} after one turn: {}", task.key, error.message));
            }
        }
        Ok(format!("{} rollouts that end after one turn have a score", self.tasks.len()))
    }

    /// A group is scored as a whole, and alike in two instances.
    async fn groups(&self) -> Found {
        for task in &self.tasks {
            let mut members = Vec::new();
            for member in 0..GROUP {
                let id = RolloutId { group: GroupId(0), member };
                let plan = Plan { id, group_size: GROUP, ..self.plan(task) };
                let mut script = Script::says(&format!("answer {member}"));
                members.push(drive::play(&self.fresh, &plan, &self.environment, &mut script).await.member());
            }
            let one: Vec<Score> = self.fresh.score_group(task, &members).await.map_err(|e| e.to_string())?;
            let other = self.again.score_group(task, &members).await.map_err(|e| e.to_string())?;
            if one != other && self.fresh.info().features.deterministic {
                return Err(format!("the group of task {} has different scores in two instances", task.key));
            }
        }
        Ok(format!("{} groups of {GROUP} are scored", self.tasks.len()))
    }
}
