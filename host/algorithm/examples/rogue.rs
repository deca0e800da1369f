//! A plug-in that does on request what plug-ins should not do; the tests hold the host against it. It keeps a state, sees
//! single rollouts, and drops and writes by the token, so that the rarer parts of the border are in use as well.

use prl_sdk::{ActionLoss, Algorithm, Credit, Error, Group, Hook, Host, Level, Rollout, Stream};
use serde::Deserialize;

struct Rogue {
    mode: String,
    groups: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    mode: String,
}

impl Algorithm for Rogue {
    const NAME: &'static str = "rogue";
    const ACTION_LOSS: ActionLoss = ActionLoss::Rl;
    const HOOKS: &'static [Hook] = &[Hook::ScoreRollout, Hook::ScoreGroup, Hook::State];
    const CONFIG_SCHEMA: &'static str = r#"{"type": "object", "additionalProperties": false, "required": ["mode"],
        "properties": {"mode": {"type": "string"}}}"#;
    type Config = Config;

    fn new(config: Config, host: &Host) -> Result<Self, Error> {
        host.log(Level::Debug, "created");
        match config.mode.as_str() {
            "panic in new" => panic!("no instance for {}", config.mode),
            _ => Ok(Rogue { mode: config.mode, groups: 0 }),
        }
    }

    fn score_rollout(&mut self, rollout: &Rollout, credit: &mut Credit) -> Result<(), Error> {
        for sample in rollout.samples() {
            let weights: Vec<f32> = sample.mask().iter().map(|m| if *m == 0 { 0.25 } else { 0.0 }).collect();
            credit.write(Stream::CeWeights, sample.index(), &weights)?;
        }
        Ok(())
    }

    fn score_group(&mut self, group: &Group, credit: &mut Credit) -> Result<(), Error> {
        self.groups += 1;
        let first = group.rollout(0).samples().next().ok_or("no sample")?;
        match self.mode.as_str() {
            "panic" => {
                let empty: Vec<f32> = Vec::new();
                credit.assign(0, f64::from(empty[group.len()]))?;
            }
            "error" => return Err("out of ideas".into()),
            "nothing" => {}
            "nan" => credit.write(Stream::Advantages, first.index(), &vec![f32::NAN; first.len()])?,
            "overflow" => credit.assign(0, 1e300)?,
            "short" => credit.write(Stream::Advantages, first.index(), &vec![0.0; first.len() - 1])?,
            // Goes on as if nothing had happened.
            "long" => drop(credit.write(Stream::Advantages, first.index(), &vec![0.0; first.len() + 1])),
            "no such rollout" => credit.assign(group.len(), 0.0)?,
            "infinite metric" => credit.metric("speed", f64::INFINITY),
            "reference" => credit.write(Stream::RefKlWeights, first.index(), &vec![1.0; first.len()])?,
            "drop" => credit.drop_rollout(0, "too easy")?,
            "drop all" => credit.drop_group("no signal")?,
            "random" => {
                credit.metric("random", (credit.random() >> 11) as f64);
                credit.metric("groups", self.groups as f64);
            }
            other => return Err(format!("no mode {other}").into()),
        }
        if matches!(self.mode.as_str(), "infinite metric" | "reference" | "drop" | "random" | "long") {
            for rollout in group.rollouts() {
                credit.assign(rollout.index(), rollout.reward())?;
            }
        }
        Ok(())
    }

    fn save_state(&self) -> Result<Vec<u8>, Error> {
        Ok(self.groups.to_le_bytes().to_vec())
    }

    fn load_state(&mut self, state: &[u8]) -> Result<(), Error> {
        self.groups = u64::from_le_bytes(state.try_into().map_err(|_| "the state is not 8 bytes")?);
        Ok(())
    }
}

prl_sdk::export!(Rogue);
