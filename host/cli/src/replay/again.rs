//! One recorded rollout run again: the recorded turns are said to the recorded environment. Owns the comparison; must not
//! know where a record comes from.

use crate::env::open::{Asked, Opened, Place, Purpose, find};
use crate::env::record::{Answer, Environment, Line, Replay, finish_of};
use crate::environments::{sandbox, seconds};
use crate::failure::{Failure, input};
use prl_environment::{
    Assets, Completion, EnvError, Grant, GroupMember, Isolation, Kv, Limits, LoadConfig, Pool, PoolConfig, Sandbox,
    Services,
};
use prl_types::Metric;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Longest call, seconds: what a run limits by the clock is not limited here.
const CALL: f64 = 60.0;
/// Bound of a scratch map, bytes.
const KV_BYTES: u64 = 64 << 20;

/// What came of a rollout.
pub enum Verdict {
    /// The same, with its hash.
    Equal(String),
    /// What differs first.
    Different(String),
    /// Why it cannot be run again.
    Skipped(String),
}

/// The environments, as they were.
pub struct Again {
    sandbox: Sandbox,
    /// By digest.
    given: BTreeMap<String, PathBuf>,
    pools: BTreeMap<String, Pool>,
}

impl Again {
    /// `given` are components to take before others.
    pub async fn new(given: &[String]) -> Result<Self, Failure> {
        let sandbox = sandbox()?;
        let mut by_digest = BTreeMap::new();
        for what in given {
            let path = find(what, Path::new("")).map_err(input("`--env`"))?;
            let asked = Asked::plain(what);
            let opened = Opened::load_in(&sandbox, &Place::File(path.clone()), &asked, Purpose::Look).await?;
            by_digest.insert(opened.file.sha256().to_owned(), path);
        }
        Ok(Again { sandbox, given: by_digest, pools: BTreeMap::new() })
    }

    /// The environments that were run, for people.
    pub fn names(&self) -> Vec<String> {
        let name = |pool: &Pool| format!("{} sha256:{}", pool.info().name, pool.file().sha256());
        self.pools.values().map(name).collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// Starts the environment of a line, if it is not there yet.
    ///
    /// # Errors
    /// It is not found, or is another one.
    pub async fn prepare(&mut self, line: &Line) -> Result<(), Failure> {
        let Some(replay) = &line.replay else { return Ok(()) };
        let (env, key) = (&replay.env, key(&replay.env));
        if env.unsandboxed.is_some() || asks_outside(env).is_some() || self.pools.contains_key(&key) {
            return Ok(());
        }
        let grants = env.grants.iter().filter_map(|name| Grant::of(name)).collect();
        let limits = Limits {
            memory_bytes: env.memory_bytes,
            fuel: env.fuel,
            call_timeout: seconds(CALL),
            rollout_timeout: seconds(f64::INFINITY),
            ..Limits::default()
        };
        let load = LoadConfig { limits, grants };
        let path = self.file(&line.rollout.task.env, env)?;
        let file = self.sandbox.load(&path, &load).await.map_err(Failure::input)?;
        if file.sha256() != env.sha256 {
            return Err(Failure::input(format_args!(
                "the rollouts are of environment `{}` {} (sha256:{}), but `{}` is another one (sha256:{}); say where the \
                 recorded one is with --env FILE",
                env.name,
                env.version,
                env.sha256,
                path.display(),
                file.sha256()
            )));
        }
        let assets = match file.grants().contains(&Grant::Assets) {
            true => Some(Assets::open(&file.assets_dir()).map_err(|error| {
                Failure::input(format_args!(
                    "the files of `{}`: `{}`: {error}",
                    path.display(),
                    file.assets_dir().display()
                ))
            })?),
            false => None,
        };
        let config = PoolConfig {
            name: line.rollout.task.env.clone(),
            args: env.args.clone(),
            weights: env.weights.clone(),
            workers: 1,
            max_rollouts: usize::MAX,
            isolation: Isolation::Rollout,
            services: Services { assets, kv: Some(Kv::new(KV_BYTES)), ..Services::default() },
            log: Arc::new(|_| ()),
        };
        let pool = Pool::start(&file, config).await.map_err(Failure::input)?;
        self.pools.insert(key, pool);
        Ok(())
    }

    fn file(&self, name: &str, env: &Environment) -> Result<PathBuf, Failure> {
        if let Some(path) = self.given.get(&env.sha256) {
            return Ok(path.clone());
        }
        let recorded = PathBuf::from(&env.path);
        if recorded.is_file() {
            return Ok(recorded);
        }
        find(name, Path::new("")).map_err(|_| {
            Failure::input(format_args!(
                "the environment `{}` {} (sha256:{}) is no longer at `{}`; say where it is with --env FILE",
                env.name, env.version, env.sha256, env.path
            ))
        })
    }

    /// Runs the rollout at `at` again; its group, where groups are scored, is among `lines`.
    pub async fn compare(&self, lines: &[Line], at: usize) -> Verdict {
        let line = &lines[at];
        let Some(recorded) = line.record() else {
            return Verdict::Skipped("it never reached its environment, or its log is of a prl without replay".into());
        };
        if let Some(url) = &recorded.env.unsandboxed {
            let name = &recorded.env.name;
            return Verdict::Skipped(format!(
                "`{name}` ran outside the sandbox at {url}, where nothing can be run as it was"
            ));
        }
        if let Some(service) = asks_outside(&recorded.env) {
            let name = &recorded.env.name;
            return Verdict::Skipped(format!("`{name}` may ask `{service}`, whose answers are not in the log"));
        }
        let Some(pool) = self.pools.get(&key(&recorded.env)) else {
            return Verdict::Skipped(format!("its environment `{}` is not there", recorded.env.name));
        };
        if recorded.digest() != recorded.sha256 {
            return Verdict::Different("the log's hash is not that of its record: the line was changed".into());
        }
        let new = match again(pool, line, &recorded).await {
            Ok(new) => new,
            Err(reason) => return Verdict::Skipped(reason),
        };
        if let Some(reason) = difference(&recorded, &new) {
            return Verdict::Different(reason);
        }
        match self.group(pool, lines, at).await {
            Some(reason) => Verdict::Different(reason),
            None => Verdict::Equal(new.digest()),
        }
    }

    /// What differs in the score that the rollout has of its group.
    async fn group(&self, pool: &Pool, lines: &[Line], at: usize) -> Option<String> {
        let rollout = &lines[at].rollout;
        if !pool.info().features.group_scoring || rollout.error.is_some() {
            return None;
        }
        let of_group = |line: &&Line| {
            let other = &line.rollout;
            other.id.group == rollout.id.group && other.task == rollout.task && other.error.is_none()
        };
        let mut group: Vec<(&Line, Replay)> =
            lines.iter().filter(of_group).filter_map(|line| Some((line, line.record()?))).collect();
        group.sort_by_key(|(line, _)| line.rollout.id);
        let members: Vec<GroupMember> = group.iter().map(|(line, replay)| member(line, replay)).collect();
        let place = group.iter().position(|(line, _)| line.rollout.id == rollout.id)?;
        match pool.score_group(&rollout.task, &members).await {
            Ok(scores) if scores.get(place) == Some(&rollout.score) => None,
            Ok(scores) => Some(format!(
                "its group's score was {}, now {}",
                shown(&Some(&rollout.score)),
                shown(&scores.get(place))
            )),
            Err(error) => Some(format!("its group cannot be scored: {error}")),
        }
    }
}

/// A service whose answers differ from time to time.
fn asks_outside(env: &Environment) -> Option<&str> {
    env.grants.iter().map(String::as_str).find(|name| Grant::of(name).is_some_and(Grant::is_outside))
}

/// What makes two environments the same one.
fn key(env: &Environment) -> String {
    format!("{} {} {:?} {} {:?}", env.sha256, env.args, env.weights, env.memory_bytes, env.fuel)
}

/// As it was handed over to be scored with its group: its own score, and what its turns counted.
fn member(line: &Line, replay: &Replay) -> GroupMember {
    let rollout = &line.rollout;
    let messages = rollout.conversation(replay.opening.iter().flat_map(|opening| &opening.messages));
    let mut score = replay.score.clone().unwrap_or_default();
    let mut counted: Vec<Metric> = Vec::new();
    let answers = replay.opening.iter().chain(replay.turns.iter().filter_map(|turn| turn.answer.as_ref()));
    answers.for_each(|answer| Metric::add_all(&mut counted, &answer.metrics));
    score.take_counted(counted);
    let reward = score.reward(&rollout.turns);
    GroupMember { context: replay.context.clone(), messages, truncated: replay.truncated.clone(), score, reward }
}

/// The record that the environment gives now. The error is for a record that makes no sense.
async fn again(pool: &Pool, line: &Line, recorded: &Replay) -> Result<Replay, String> {
    let mut completions = Vec::new();
    for (turn, said) in recorded.turns.iter().zip(&line.rollout.turns) {
        let finish = finish_of(&turn.finish).ok_or_else(|| format!("a turn ended for the reason `{}`", turn.finish))?;
        completions.push(Completion {
            message: said.message.clone(),
            finish,
            tokens: turn.tokens,
            context_left: turn.context_left,
            turns_left: turn.turns_left,
        });
    }
    if completions.len() != recorded.turns.len() {
        return Err("its record has turns that the rollout has not".into());
    }
    let mut new = recorded.clone();
    (new.opening, new.score, new.error) = (None, None, None);
    new.turns.iter_mut().for_each(|turn| turn.answer = None);
    if let Err(error) = play(pool, line, recorded, completions, &mut new).await {
        new.error = Some(error.to_string());
    }
    Ok(new)
}

/// As far as the recorded rollout went.
async fn play(
    pool: &Pool,
    line: &Line,
    recorded: &Replay,
    completions: Vec<Completion>,
    new: &mut Replay,
) -> Result<(), EnvError> {
    let failed = recorded.error.is_some();
    let mut session = pool.open(&line.rollout.task, recorded.context.clone()).await?;
    if recorded.opening.is_none() && !failed {
        return Ok(());
    }
    new.opening = Some(Answer::from(session.start().await?));
    for (at, said) in completions.into_iter().enumerate() {
        // A turn without an answer is one that was given up, unless its call failed.
        if recorded.turns[at].answer.is_none() && !failed {
            return Ok(());
        }
        new.turns[at].answer = Some(Answer::from(session.step(said).await?));
    }
    if recorded.score.is_some() || failed {
        new.score = Some(session.score(recorded.truncated.as_deref()).await?);
    }
    Ok(())
}

/// The first thing that differs.
fn difference(recorded: &Replay, new: &Replay) -> Option<String> {
    let differs = |what: &str, old: String, new: String| Some(format!("{what} was {old}, now {new}"));
    if recorded.error.is_some() != new.error.is_some() {
        let told = |error: &Option<String>| error.clone().unwrap_or_else(|| "no error".into());
        return differs("the end", told(&recorded.error), told(&new.error));
    }
    if recorded.opening != new.opening {
        return differs("the opening", shown(&recorded.opening), shown(&new.opening));
    }
    for (at, (old, new)) in recorded.turns.iter().zip(&new.turns).enumerate() {
        if old.answer != new.answer {
            return differs(&format!("the answer to turn {at}"), shown(&old.answer), shown(&new.answer));
        }
    }
    if recorded.score != new.score {
        return differs("the score", shown(&recorded.score), shown(&new.score));
    }
    let (old, new) = (recorded.digest(), new.digest());
    if old != new { differs("the hash", old, new) } else { None }
}

fn shown<T: serde::Serialize>(value: &Option<T>) -> String {
    let text = value.as_ref().and_then(|value| serde_json::to_string(value).ok());
    crate::table::short(&text.unwrap_or_else(|| "nothing".into()), 300)
}
