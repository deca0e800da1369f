//! One recorded rollout run again: the recorded turns are said to the recorded environment, and services answer what they
//! answered then. Owns the comparison; must not know where a record comes from.

use crate::env::open::{Asked, Opened, Place, Purpose, find};
use crate::env::record::{Answer, Environment, Line, Replay, finish_of};
use crate::environments::{sandbox, seconds};
use crate::failure::{Failure, input};
use prl_environment::{
    Assets, Completion, EnvError, EnvFile, Grant, Isolation, Limits, LoadConfig, Pool, PoolConfig, Sandbox, Served,
    Services, Tape,
};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Longest call, seconds: what a run limits by the clock is not limited here.
const CALL: f64 = 60.0;

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
    /// Started ones, with the files published with them.
    pools: BTreeMap<String, Started>,
}

/// A started environment.
type Started = (Pool, Option<Assets>);

/// What it takes to run a rollout again.
pub enum Ready {
    /// Its environment.
    Runs(Pool),
    /// Why it cannot be run.
    Not(String),
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
        let name = |(pool, _): &Started| format!("{} sha256:{}", pool.info().name, pool.file().sha256());
        self.pools.values().map(name).collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// What it takes to run a line's rollout again; starts its environment, if it is not there yet.
    ///
    /// # Errors
    /// The environment or a file published with it is not found, or is another one.
    pub async fn prepare(&mut self, line: &Line) -> Result<Ready, Failure> {
        let Some(replay) = &line.replay else {
            return Ok(Ready::Not("it never reached its environment, or its log is of a prl without replay".into()));
        };
        if let Some(reason) = refusal(&replay.env, replay.services.as_ref()) {
            return Ok(Ready::Not(reason));
        }
        let key = key(&replay.env);
        let (pool, assets) = match self.pools.get(&key) {
            Some(started) => started,
            None => match self.start(line, replay).await? {
                Ok(started) => self.pools.entry(key).or_insert(started),
                Err(reason) => return Ok(Ready::Not(reason)),
            },
        };
        if let Some(assets) = assets {
            unchanged(pool.file(), assets, replay)?;
        }
        Ok(Ready::Runs(pool.clone()))
    }

    /// The inner error is for one that did not start then either, or not with these answers.
    async fn start(&self, line: &Line, replay: &Replay) -> Result<Result<Started, String>, Failure> {
        let env = &replay.env;
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
        if let Some(assets) = &assets {
            unchanged(&file, assets, replay)?;
        }
        let config = PoolConfig {
            name: line.rollout.task.env.clone(),
            args: env.args.clone(),
            weights: env.weights.clone(),
            workers: 1,
            max_rollouts: usize::MAX,
            isolation: Isolation::Rollout,
            services: Services { assets: assets.clone(), ..Services::default() },
            log: Arc::new(|_| ()),
        };
        let setup = replay.services.as_ref().map(Served::setup).unwrap_or_default();
        let answered = !setup.asked.is_empty();
        match Pool::start_again(&file, config, setup).await {
            Ok(pool) => Ok(Ok((pool, assets))),
            Err(error) if answered => Ok(Err(format!("its environment does not start with its answers: {error}"))),
            Err(error) => Err(Failure::input(error)),
        }
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
                env.name.escape_debug(),
                env.version.escape_debug(),
                env.sha256.escape_debug(),
                env.path.escape_debug()
            ))
        })
    }
}

/// Runs a line's rollout again.
pub async fn compare(ready: &Ready, line: &Line) -> Verdict {
    let pool = match ready {
        Ready::Runs(pool) => pool,
        Ready::Not(reason) => return Verdict::Skipped(reason.clone()),
    };
    let Some(recorded) = line.record() else { return Verdict::Skipped("it has no record".into()) };
    if recorded.digest() != recorded.sha256 {
        return Verdict::Different("the log's hash is not that of its record: the line was changed".into());
    }
    let tape = tape(&recorded.env, recorded.services.as_ref());
    let new = match again(pool, line, &recorded, &tape).await {
        Ok(new) => new,
        Err(reason) => return Verdict::Skipped(reason),
    };
    // What follows from another answer is no finding of its own. A rollout without a score did not make all its calls.
    let unasked = || recorded.score.as_ref().and_then(|_| tape.unasked());
    match tape.finding().or_else(|| difference(&recorded, &new)).or_else(unasked) {
        Some(reason) => Verdict::Different(reason),
        None => Verdict::Equal(new.digest()),
    }
}

/// Why what services answered then cannot be had again, if that is so.
pub fn refusal(env: &Environment, served: Option<&Served>) -> Option<String> {
    if let Some(url) = &env.unsandboxed {
        let name = &env.name;
        return Some(format!("`{name}` ran outside the sandbox at {url}, where nothing can be run as it was"));
    }
    match (env.recorded(), served) {
        (Some(grant), None) => Some(format!(
            "`{}` uses `{}`, and its log is of a prl that did not keep what that answered",
            env.name,
            grant.name()
        )),
        (_, served) => served.and_then(Served::refusal),
    }
}

/// Gives out the answers of then.
pub fn tape(env: &Environment, served: Option<&Served>) -> Tape {
    match (env.recorded(), served) {
        (Some(_), Some(served)) => Tape::play(served.clone()),
        _ => Tape::default(),
    }
}

/// Refuses published files that are not those of then.
fn unchanged(file: &EnvFile, assets: &Assets, replay: &Replay) -> Result<(), Failure> {
    let dir = file.assets_dir();
    let files = [&replay.services, &replay.group_services].into_iter().flatten().flat_map(|served| &served.files);
    match assets.changed(files).map_err(input(format_args!("the files in `{}`", dir.display())))? {
        None => Ok(()),
        Some(what) => Err(Failure::input(format_args!(
            "the rollouts are of other files than those in `{}`: {what}; put the recorded ones there, or say where the \
             environment with them is with --env FILE",
            dir.display()
        ))),
    }
}

/// What makes two environments the same one.
fn key(env: &Environment) -> String {
    format!("{} {} {:?} {} {:?}", env.sha256, env.args, env.weights, env.memory_bytes, env.fuel)
}

/// The record that the environment gives now. The error is for a record that makes no sense.
async fn again(pool: &Pool, line: &Line, recorded: &Replay, tape: &Tape) -> Result<Replay, String> {
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
    if let Err(error) = play((pool, tape), line, recorded, completions, &mut new).await {
        new.error = Some(error.to_string());
    }
    Ok(new)
}

/// As far as the recorded rollout went.
async fn play(
    (pool, tape): (&Pool, &Tape),
    line: &Line,
    recorded: &Replay,
    completions: Vec<Completion>,
    new: &mut Replay,
) -> Result<(), EnvError> {
    let failed = recorded.error.is_some();
    let mut session = pool.open_taped(&line.rollout.task, recorded.context.clone(), tape.clone()).await?;
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

/// A value, for people.
pub fn shown<T: serde::Serialize>(value: &Option<T>) -> String {
    let text = value.as_ref().and_then(|value| serde_json::to_string(value).ok());
    crate::table::short(&text.unwrap_or_else(|| "nothing".into()), 300)
}
