//! `prl algo check`: whether a plug-in keeps the contract, one line a question. Owns the questions and their order; the cases
//! are `groups`' and `losses`'.

mod groups;
mod losses;

use super::group::Group;
use super::score::Whole;
use super::{Check, input, open};
use crate::failure::Failure;
use crate::report::{Found, Report};
use groups::Case;
use prl_algorithm::{Algorithm, AlgorithmError, Hook, Plugin, Reference};
use prl_types::Rollout;
use serde_json::{Value, json};

/// Tokens of the groups and batches whose scoring is timed.
const SIZES: [usize; 2] = [16_384, 131_072];

/// Seconds of one call that no run can afford.
const TOO_SLOW: f64 = 5.0;

/// A plug-in on the bench.
struct Bench {
    plugin: Plugin,
    config: Value,
    seed: u64,
    cases: Vec<Case>,
}

/// What a timed call came to.
pub struct Speed {
    /// For the reader.
    pub what: String,
    /// Wall-clock time inside the plug-in.
    pub seconds: f64,
}

/// Runs the command; the code is 1 where something does not hold.
pub fn run(asked: &Check) -> Result<u8, Failure> {
    let plugin = asked.asked.plugin()?;
    let config = open::config(&asked.config)?;
    let mut cases = groups::all().map_err(Failure::run)?;
    if let Some(path) = &asked.input {
        cases.extend(input::read::<Group>(path)?.items);
    }
    // A configuration that is refused is the user's.
    plugin.create(&config, asked.seed).map_err(Failure::input)?;
    let bench = Bench { plugin, config, seed: asked.seed, cases };
    let about = bench.plugin.metadata().clone();
    let mut report = Report::default();
    let hooks = super::inspect::words(&json!(about.hooks));
    report.add("metadata", Ok(format!("{} {} for ABI {}; hooks: {hooks}", about.name, about.version, about.abi)))?;
    report.add("options", bench.options())?;
    let mut fine = true;
    if bench.scores() {
        let (results, panics) = bench.score_all();
        fine = results.is_ok() && panics.is_ok();
        report.add("results", results)?;
        report.add("panics", panics)?;
        // Where groups cannot be scored, there is nothing more to learn of scoring.
        if fine {
            report.add("determinism", bench.determinism())?;
            report.add("state", bench.state())?;
        }
    } else {
        Report::note("scoring", "it is a loss and scores no groups")?;
    }
    if about.hooks.contains(&Hook::Loss) {
        for (name, found) in losses::check(&|| bench.fresh(), !asked.stop_gradient) {
            fine &= found.is_ok();
            report.add(name, found)?;
        }
    }
    if fine {
        report.add("speed", bench.speed())?;
    }
    report.end(&about.name)
}

impl Bench {
    fn fresh(&self) -> Result<Algorithm, String> {
        self.plugin.create(&self.config, self.seed).map_err(|error| error.to_string())
    }

    /// Whether it is an algorithm, rather than a loss alone.
    fn scores(&self) -> bool {
        let about = self.plugin.metadata();
        let scoring = [Hook::ScoreGroup, Hook::ScoreRollout, Hook::Reference];
        about.hooks.iter().any(|hook| scoring.contains(hook)) || !about.hooks.contains(&Hook::Loss)
    }

    /// Unknown keys are refused, and the schema says so and gives defaults that are taken.
    fn options(&self) -> Found {
        let schema = &self.plugin.metadata().config_schema;
        if schema.is_null() {
            return Err("there is no config_schema, so that nobody can see its options".into());
        }
        if schema["type"] != "object" || schema["additionalProperties"] != false {
            return Err("config_schema needs \"type\": \"object\" and \"additionalProperties\": false".into());
        }
        let create = |config: &Value| self.plugin.create(config, self.seed);
        let mut with = self.config.clone();
        with["no such key"] = 0.into();
        match create(&with) {
            Ok(_) => return Err("it takes unknown keys: a misspelt option would do nothing".into()),
            Err(AlgorithmError::Config { .. }) => {}
            Err(error) => return Err(format!("an unknown key: {error}")),
        }
        let properties = schema["properties"].as_object();
        for (key, property) in properties.into_iter().flatten() {
            let Some(default) = property.get("default") else { continue };
            let mut with = self.config.clone();
            with[key] = default.clone();
            create(&with).map_err(|error| format!("the default of `{key}`: {error}"))?;
        }
        let count = properties.map_or(0, serde_json::Map::len);
        Ok(format!("{count}, with defaults that are taken; unknown keys are refused"))
    }

    /// The rollouts of a case, with references where they are needed.
    fn rollouts(&self, (name, group): &Case) -> Result<Vec<Rollout>, String> {
        let mut rollouts = group.rollouts().map_err(|error| format!("{name}: {error}"))?;
        if self.plugin.metadata().reference != Reference::None {
            for rollout in &mut rollouts {
                for (sample, streams) in rollout.samples.iter().zip(&mut rollout.streams) {
                    streams.ref_logprobs.get_or_insert_with(|| vec![-0.75; sample.len()]);
                }
            }
        }
        Ok(rollouts)
    }

    fn score(&self, algorithm: &mut Algorithm, case: &Case) -> Result<Whole, String> {
        Whole::of(algorithm, self.rollouts(case)?).map_err(|error| format!("{}: {error}", case.0))
    }

    /// Every case with an instance of its own: right lengths, finite values, all streams that the loss needs; and no panic.
    fn score_all(&self) -> (Found, Found) {
        let (mut wrong, mut panicked, mut whole, count) = (None, None, 0, self.cases.len());
        for case in &self.cases {
            let outcome = self.fresh().map_err(|e| (e, false)).and_then(|mut algorithm| {
                let rollouts = self.rollouts(case).map_err(|e| (e, false))?;
                Whole::of(&mut algorithm, rollouts)
                    .map_err(|e| (format!("{}: {e}", case.0), matches!(e, AlgorithmError::Panic { .. })))
            });
            match outcome {
                Ok(_) => whole += 1,
                Err((error, true)) => drop(panicked.get_or_insert(error)),
                Err((error, false)) => drop(wrong.get_or_insert(error)),
            }
        }
        let told = |failed: Option<String>, text: String| failed.map_or(Ok(text), Err);
        (
            told(wrong, format!("{whole} of {count} groups have whole, finite streams, hard cases among them")),
            told(panicked, format!("none in {count} groups")),
        )
    }

    /// All cases one after another with one instance, as JSON.
    fn sequence(&self, algorithm: &mut Algorithm, cases: &[Case]) -> Result<Vec<Value>, String> {
        cases.iter().map(|case| Ok(self.score(algorithm, case)?.json(algorithm))).collect()
    }

    /// The same seed and groups give the same numbers in two instances.
    fn determinism(&self) -> Found {
        let one = self.sequence(&mut self.fresh()?, &self.cases)?;
        let other = self.sequence(&mut self.fresh()?, &self.cases)?;
        match one.iter().zip(&other).position(|(one, other)| one != other) {
            Some(at) => Err(format!("two instances with one seed differ at {}", self.cases[at].0)),
            None => Ok(format!("{} groups are the same in two instances with one seed", one.len())),
        }
    }

    /// A state that is saved and loaded goes on with the same numbers; without one, groups do not depend on those before.
    fn state(&self) -> Found {
        let (before, after) = self.cases.split_at(self.cases.len() / 2);
        let mut first = self.fresh()?;
        self.sequence(&mut first, before)?;
        let said = |error: AlgorithmError| error.to_string();
        let has_state = self.plugin.metadata().hooks.contains(&Hook::State);
        let mut second = self.fresh()?;
        let bytes = if has_state { first.save_state().map_err(said)? } else { Vec::new() };
        if has_state {
            second.load_state(&bytes).map_err(said)?;
            if second.save_state().map_err(said)? != bytes {
                return Err("what it saves after loading a state is not that state".into());
            }
            if let Err(error @ AlgorithmError::Panic { .. }) = self.fresh()?.load_state(b"\xffnot a state of it") {
                return Err(format!("a state that is not its own: {error}"));
            }
        }
        let (one, other) = (self.sequence(&mut first, after)?, self.sequence(&mut second, after)?);
        let differs = one.iter().zip(&other).position(|(one, other)| one != other);
        match (differs, has_state) {
            (None, true) => Ok(format!("{} bytes; what loads them goes on with the same numbers", bytes.len())),
            (None, false) => Ok("none is kept: groups do not depend on those before them".into()),
            (Some(at), true) => Err(format!("what loads a saved state differs at {}", after[at].0)),
            (Some(at), false) => Err(format!(
                "`{}` depends on the groups before it, but there is no hook for a state: a resumed run would go on with other \
                 numbers",
                after[at].0
            )),
        }
    }

    /// How long calls take at sizes of real runs.
    fn speed(&self) -> Found {
        let mut told = Vec::new();
        for tokens in SIZES {
            let mut parts = Vec::new();
            let about = self.plugin.metadata();
            if about.hooks.iter().any(|hook| matches!(hook, Hook::ScoreGroup | Hook::ScoreRollout)) {
                let case = groups::long(tokens).map_err(|error| error.to_string())?;
                let seconds = self.score(&mut self.fresh()?, &case)?.scored.seconds;
                parts.push(Speed { what: format!("score {}", milliseconds(seconds)), seconds });
            }
            if about.hooks.contains(&Hook::Loss) {
                parts.push(losses::speed(&mut self.fresh()?, tokens)?);
            }
            for Speed { what, seconds } in parts {
                if seconds > TOO_SLOW {
                    return Err(format!("{what} on {tokens} tokens; the whole run waits for it"));
                }
                told.push(format!("{what} on {tokens} tokens"));
            }
        }
        Ok(if told.is_empty() { "it is never called".into() } else { told.join(", ") })
    }
}

/// Seconds as one reads them.
pub fn milliseconds(seconds: f64) -> String {
    format!("{:.2} ms", seconds * 1e3)
}
