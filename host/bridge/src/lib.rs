//! Stands in the sandbox for an environment that is served over HTTP: a component that exports the contract and forwards
//! each call (`docs/environments-http.md`). Owns what a call becomes on the wire and what an answer becomes of it; must not
//! know the server's address, which the host puts in front of the paths asked for here.
//!
//! It claims less than the server: nothing outside the sandbox is deterministic to the host. What is wrong with an answer is
//! an error of the call; whether the answer makes sense is for the host to check, as with any environment.

mod client;
mod convert;
mod same;
mod wire;

use client::Answer;
use prl_env::{
    Completion, Environment, Error, ErrorCode, Finished, Info, Result, Rollout, RolloutContext, Score, Task, Turn, log,
};
use serde_json::value::RawValue;
use std::cell::RefCell;
use std::rc::Rc;

/// The environment behind the server, under one set of arguments.
pub struct Bridge {
    args: Box<RawValue>,
    /// The server's name for these arguments.
    configuration: RefCell<String>,
    info: Info,
}

fn configure(args: &RawValue) -> Result<wire::Configured> {
    Ok(client::post("/configure", &wire::Configure { args })?)
}

impl Bridge {
    /// Asks something of the configuration. A server that was started anew in between is told it once more, if it is still
    /// the same environment.
    fn ask<T>(&self, ask: impl Fn(&str) -> Answer<T>) -> Result<T> {
        let answer = ask(&self.configuration.borrow());
        match answer {
            Err(failed) if failed.is_unknown() => {
                let wire::Configured { configuration, info } = configure(&self.args)?;
                same::check(&self.info, &convert::info(info))?;
                self.configuration.replace(configuration);
                Ok(ask(&self.configuration.borrow())?)
            }
            answer => Ok(answer?),
        }
    }
}

prl_env::export!(Bridge);

impl Environment for Bridge {
    type Rollout = Remote;

    fn describe() -> Info {
        match client::get("/info").map(convert::info) {
            Ok(info) => info,
            Err(failed) => give_up(&Error::from(failed).message),
        }
    }

    fn configure(args: &str) -> Result<Self> {
        let args = convert::raw(args.to_owned(), "the arguments")?;
        let wire::Configured { configuration, info } = configure(&args)?;
        Ok(Bridge { args, configuration: configuration.into(), info: convert::info(info) })
    }

    fn info(&self) -> Info {
        self.info.clone()
    }

    fn task(&self, split: &str, index: u64, seed: u64) -> Result<Task> {
        let ask = |configuration: &str| client::post("/task", &wire::GetTask { configuration, split, index, seed });
        self.ask(ask).map(convert::task)
    }

    fn open(self: &Rc<Self>, task: Task, context: RolloutContext) -> Result<Remote> {
        let (task, context) = (convert::task_to(task)?, convert::context_to(context));
        let ask = |configuration: &str| {
            client::post("/rollouts", &wire::Open { configuration, task: &task, context: &context })
        };
        let wire::Opened { id } = self.ask(ask)?;
        if id.is_empty() || id.len() > 128 || !id.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b)) {
            return Err(client::wrong("/rollouts", "`id` must be 1 to 128 of the characters a-z A-Z 0-9 - _"));
        }
        Ok(Remote { path: format!("/rollouts/{id}"), over: false, freed: false })
    }

    fn score_group(&self, task: Task, members: Vec<Finished>) -> Result<Vec<Score>> {
        let members = members.into_iter().map(convert::finished_to).collect::<Result<Vec<_>>>()?;
        let task = convert::task_to(task)?;
        let ask = |configuration: &str| {
            client::post("/score_group", &wire::ScoreGroup { configuration, task: &task, members: &members })
        };
        let wire::Scores { scores } = self.ask(ask)?;
        Ok(scores.into_iter().map(convert::score).collect())
    }
}

/// `describe` has no way to fail, so it ends the instance; the last line of the log tells why.
fn give_up(reason: &str) -> ! {
    log::error(reason);
    #[cfg(target_arch = "wasm32")]
    core::arch::wasm32::unreachable();
    #[cfg(not(target_arch = "wasm32"))]
    panic!("{reason}");
}

/// A rollout at the server.
pub struct Remote {
    path: String,
    /// Asked for its score, after which it takes no more calls.
    over: bool,
    /// Ended at the server.
    freed: bool,
}

impl Remote {
    fn at(&self, call: &str) -> Result<String> {
        match self.over {
            true => Err(Error::new(ErrorCode::InvalidState, "the rollout is over")),
            false => Ok(format!("{}/{call}", self.path)),
        }
    }
}

impl Rollout for Remote {
    fn start(&mut self) -> Result<Turn> {
        Ok(convert::turn(client::post(&self.at("start")?, &wire::Nothing {})?))
    }

    fn step(&mut self, completion: Completion) -> Result<Turn> {
        Ok(convert::turn(client::post(&self.at("step")?, &convert::completion_to(completion)?)?))
    }

    fn score(&mut self, truncated: Option<&str>) -> Result<Score> {
        let path = self.at("score")?;
        self.over = true;
        let score = client::post(&path, &wire::Truncated { truncated })?;
        self.freed = true;
        Ok(convert::score(score))
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        if !self.freed
            && let Err(failed) = client::delete(&self.path)
        {
            log::debug(&format!("not freed at the server: {}", Error::from(failed).message));
        }
    }
}

#[cfg(test)]
mod tests;
