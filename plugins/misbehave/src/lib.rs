//! A plug-in that does on request what plug-ins should not do; the host's tests are held against it. It keeps a state, sees
//! single rollouts, asks for references, has a loss, and drops and writes by the token, so that the rarer parts of the
//! border are in use as well. `mode` in its configuration says what goes wrong.

use prl_sdk::{
    Algorithm, Batch, Credit, Error, Group, Hook, Host, Level, Loss, Prefixes, Reference, Role, Rollout, Stream,
};
use serde::Deserialize;
use std::time::Duration;

struct Misbehave {
    mode: String,
    groups: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    mode: String,
}

impl Algorithm for Misbehave {
    const NAME: &'static str = "misbehave";
    const HOOKS: &'static [Hook] = &[Hook::ScoreRollout, Hook::ScoreGroup, Hook::State, Hook::Loss, Hook::Reference];
    const REFERENCE: Reference = Reference::Policy;
    const ENTROPY: bool = true;
    const CONFIG_SCHEMA: &'static str = r#"{"type": "object", "additionalProperties": false, "required": ["mode"],
        "properties": {"mode": {"type": "string"}}}"#;
    type Config = Config;

    fn new(config: Config, host: &Host) -> Result<Self, Error> {
        host.log(Level::Debug, "created");
        match config.mode.as_str() {
            "panic in new" => panic!("no instance for {}", config.mode),
            _ => Ok(Misbehave { mode: config.mode, groups: 0 }),
        }
    }

    fn reference(&mut self, rollout: &Rollout, prefixes: &mut Prefixes) -> Result<(), Error> {
        match self.mode.as_str() {
            "no such sample" => prefixes.ask(rollout.samples().len(), &[]),
            "ignored sample" => {
                drop(prefixes.ask(99, &[]));
                Ok(())
            }
            "panic" => panic!("no idea what to ask"),
            _ => prefixes.ask(0, &[(Role::System, "think \"twice\"")]),
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
            "no reference" => credit.write(Stream::RefKlWeights, first.index(), &vec![1.0; first.len()])?,
            "drop" => credit.drop_rollout(0, "too easy")?,
            "drop all" => credit.drop_group("no signal")?,
            "sleep" => std::thread::sleep(Duration::from_millis(1010)),
            // SAFETY: none; this is the crash that a host cannot survive.
            "fault" => unsafe { std::ptr::without_provenance_mut::<u8>(64).write_volatile(1) },
            "random" => {
                credit.metric("random", (credit.random() >> 11) as f64);
                credit.metric("groups", self.groups as f64);
            }
            "references" => {
                let known =
                    group.rollouts().flat_map(|r| r.samples().map(|s| s.ref_logprobs().is_some()).collect::<Vec<_>>());
                credit.metric("known", known.map(|k| f64::from(u8::from(k))).sum());
                credit.metric("first", first.ref_logprobs().map_or(0.0, |v| f64::from(v[v.len() - 1])));
            }
            other => return Err(format!("no mode {other}").into()),
        }
        if matches!(
            self.mode.as_str(),
            "infinite metric" | "no reference" | "drop" | "random" | "long" | "sleep" | "references"
        ) {
            for rollout in group.rollouts() {
                credit.assign(rollout.index(), rollout.reward())?;
            }
        }
        Ok(())
    }

    fn loss(&mut self, batch: &Batch, out: &mut Loss) -> Result<(), Error> {
        let last = batch.len() - 1;
        match self.mode.as_str() {
            "panic" => panic!("no loss for {} tokens", batch.len()),
            "error" => return Err("out of ideas".into()),
            "nan" => out.d_logprob()[last] = f32::NAN,
            "nan loss" => out.add(f64::NAN),
            "infinite entropy" => out.d_entropy().ok_or("no entropies")?[last] = f32::NEG_INFINITY,
            "nan token" => out.token_loss()[last] = f32::NAN,
            "infinite metric" => out.metric("speed", f64::INFINITY),
            "random" => out.metric("random", (out.random() >> 11) as f64),
            // Everywhere, members or not.
            "everywhere" => {
                out.d_logprob().fill(0.5);
                out.d_entropy().ok_or("no entropies")?.fill(-0.25);
                out.add(f64::from(batch.entropy().ok_or("no entropies")?.iter().sum::<f32>()));
            }
            "nothing" => {}
            other => return Err(format!("no mode {other}").into()),
        }
        Ok(())
    }

    fn save_state(&self) -> Result<Vec<u8>, Error> {
        match self.mode.as_str() {
            "bad state" => Ok(b"not my own".to_vec()),
            "panic" => panic!("no state"),
            _ => Ok(self.groups.to_le_bytes().to_vec()),
        }
    }

    fn load_state(&mut self, state: &[u8]) -> Result<(), Error> {
        if self.mode == "panic" {
            panic!("{} bytes are too many", state.len());
        }
        self.groups = u64::from_le_bytes(state.try_into().map_err(|_| "the state is not 8 bytes")?);
        Ok(())
    }
}

prl_sdk::export!(Misbehave);
