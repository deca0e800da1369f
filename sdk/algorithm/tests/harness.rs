//! The SDK through its own harness: every accessor, every writer, states, panics, metadata.

use prl_sdk::testing::{GroupBuilder, RolloutBuilder, Tested, check_golden, check_schema, score};
use prl_sdk::{
    ActionLoss, Algorithm, Component, Credit, Error, Group, Hook, Host, Level, NoConfig, Prefixes, Reference, Role,
    Rollout, Source, Stream, Turn,
};
use serde::Deserialize;

/// Reports everything it sees as text, through the log.
struct Reporter {
    seen: u8,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    #[serde(default)]
    mode: Option<String>,
    #[serde(default)]
    start: u8,
}

impl Algorithm for Reporter {
    const NAME: &'static str = "reporter";
    const ACTION_LOSS: ActionLoss = ActionLoss::RefKl;
    const HOOKS: &'static [Hook] = &[Hook::ScoreGroup, Hook::State];
    const CONFIG_SCHEMA: &'static str = r#"{"type": "object", "additionalProperties": false, "properties": {
        "mode": {"type": ["string", "null"], "default": null}, "start": {"type": "integer", "default": 0}}}"#;
    type Config = Config;

    fn new(config: Config, _host: &Host) -> Result<Self, Error> {
        match config.mode.as_deref() {
            None => Ok(Reporter { seen: config.start }),
            Some("panic") => panic!("on request"),
            Some(mode) => Err(format!("no mode {mode}").into()),
        }
    }

    fn score_group(&mut self, group: &Group, credit: &mut Credit) -> Result<(), Error> {
        self.seen += 1;
        assert_eq!((group.len(), group.id(), group.env(), group.task_key()), (2, 0, "test", "the task"));
        assert_eq!((group.task_payload(), group.task_answer()), ("{\"k\":1}", "\"é\""));
        assert_eq!((group.rewards(), group.output_tokens()), (&[1.5, -1.0][..], &[3, 1][..]));
        assert_eq!((group.total_tokens(), group.turns()), (&[7, 2][..], &[2, 0][..]));
        let first = group.rollout(0);
        assert_eq!((first.index(), first.member(), first.reward(), first.is_truncated()), (0, 0, 1.5, false));
        assert_eq!((first.policy_version(), first.stop_condition(), first.score_info()), (0, "done", "null"));
        assert_eq!(
            first.components().collect::<Vec<_>>(),
            [
                Component { name: "exact", value: 3.0, weight: 0.5 },
                Component { name: "style", value: 0.0, weight: 1.0 }
            ]
        );
        assert_eq!(group.rollout(1).components().len(), 0);
        let metric = group.rollout(1).metrics().next().ok_or("no metric")?;
        assert_eq!((metric.name, metric.value), ("chars", 4.0));
        assert_eq!(
            first.turns().collect::<Vec<_>>(),
            [Turn { tokens: 2, reward: Some(0.25) }, Turn { tokens: 1, reward: None }]
        );
        let samples: Vec<_> = group.rollouts().flat_map(|r| r.samples().collect::<Vec<_>>()).collect();
        assert_eq!(samples.iter().map(|s| s.index()).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!((samples[1].mask(), samples[1].token_ids()), (&[0, 1, 0][..], &[0, 1, 2][..]));
        assert_eq!((samples[1].sampling_logprobs(), samples[1].content()), (&[0.0, -0.5, 0.0][..], &[1, 1, 1][..]));
        assert_eq!((samples[1].role(0), samples[1].role(1)), (Some(Role::User), Some(Role::Assistant)));
        assert_eq!((samples[1].temperature(), samples[1].versions(), samples[1].len()), (1.0, (0, 0), 3));
        assert!(group.rollout(1).is_truncated());

        credit.assign(0, 0.1)?;
        credit.write(Stream::CeWeights, 1, &[1.0, 0.0, 0.5])?;
        credit.write(Stream::RlWeights, 2, &[0.0, 0.0])?;
        credit.write(Stream::RefKlWeights, 2, &[0.0, 2.0])?;
        credit.write(Stream::RefLogprobs, 2, &[0.0, -3.0])?;
        credit.write(Stream::Advantages, 2, &[0.0, 0.5])?;
        assert!(credit.random() != credit.random());
        credit.metric("seen", self.seen.into());
        credit.log(Level::Info, "fine");
        credit.drop_rollout(1, "told to")
    }

    fn save_state(&self) -> Result<Vec<u8>, Error> {
        Ok(vec![self.seen])
    }

    fn load_state(&mut self, state: &[u8]) -> Result<(), Error> {
        self.seen = *state.first().ok_or("an empty state")?;
        Ok(())
    }
}

fn group() -> GroupBuilder {
    let first = RolloutBuilder::new(1.5)
        .sample(2, 2)
        .tokens(&[false, true, false])
        .turn(2, Some(0.25))
        .turn(1, None)
        .component("exact", 3.0, 0.5)
        .component("style", 0.0, 1.0);
    let second = RolloutBuilder::new(-1.0).sample(1, 1).metric("chars", 4.0).truncated();
    GroupBuilder::new().task("the task", "{\"k\":1}", "\"é\"").rollout(first).rollout(second)
}

#[test]
fn an_algorithm_sees_all_columns_and_writes_all_streams() {
    let scored = score::<Reporter>("{}", &group()).unwrap();
    assert_eq!(scored.streams[0].advantages, Some(vec![0.0, 0.0, 0.1, 0.1]));
    assert_eq!(scored.streams[1].advantages, Some(vec![0.0, 0.1, 0.0]));
    assert_eq!(scored.streams[1].ce_weights, Some(vec![1.0, 0.0, 0.5]));
    let last = &scored.streams[2];
    assert_eq!((&last.rl_weights, &last.ref_kl_weights), (&Some(vec![0.0, 0.0]), &Some(vec![0.0, 2.0])));
    assert_eq!((&last.ref_logprobs, &last.advantages), (&Some(vec![0.0, -3.0]), &Some(vec![0.0, 0.5])));
    assert_eq!(scored.dropped, [None, Some("told to".into())]);
    assert_eq!((scored.metrics, scored.log), (vec![("seen".into(), 1.0)], vec!["fine".into()]));
}

#[test]
fn states_travel() {
    let mut one = Tested::<Reporter>::new("{}").unwrap();
    one.score_group(&group()).unwrap();
    let state = one.save_state().unwrap();
    let mut two = Tested::<Reporter>::new("{}").unwrap();
    two.load_state(&state).unwrap();
    assert_eq!(two.score_group(&group()).unwrap().metrics, [("seen".into(), 2.0)]);
    assert_eq!(two.load_state(b"").unwrap_err(), "an empty state");
    assert_eq!(two.score_rollout(&group()).unwrap_err(), "score_rollout is not in HOOKS");
}

#[test]
fn failures_come_back_as_text() {
    assert_eq!(Tested::<Reporter>::new(r#"{"mode": "x"}"#).err().unwrap(), "no mode x");
    let panic = Tested::<Reporter>::new(r#"{"mode": "panic"}"#).err().unwrap();
    assert_eq!(panic, "panicked: on request");
    let unknown = Tested::<Reporter>::new(r#"{"start": 1, "stop": 2}"#).err().unwrap();
    assert_eq!(unknown, "stop: unknown field `stop`, expected `mode` or `start`");
    assert_eq!(
        Tested::<Reporter>::new(r#"{"start": 256}"#).err().unwrap(),
        "start: invalid value: integer `256`, expected u8"
    );
    check_schema::<Reporter>().unwrap();
}

/// Takes unknown keys, and breaks rules by name.
struct Careless;

impl Algorithm for Careless {
    const NAME: &'static str = "careless-2";
    type Config = serde_json::Value;

    fn new(_config: Self::Config, _host: &Host) -> Result<Self, Error> {
        Ok(Careless)
    }

    fn score_group(&mut self, group: &Group, credit: &mut Credit) -> Result<(), Error> {
        let refused = [
            credit.assign(group.len(), 0.0),
            credit.assign(0, f64::NAN),
            credit.assign(0, 1e39),
            credit.write(Stream::Advantages, 0, &[0.0]),
            credit.write(Stream::Advantages, 9, &[]),
            credit.write(Stream::RlWeights, 1, &[0.0, f32::INFINITY, 0.0]),
            credit.drop_rollout(7, ""),
        ];
        assert!(refused.iter().all(Result::is_err));
        Ok(())
    }
}

#[test]
fn broken_rules_fail_the_call_even_when_ignored() {
    assert_eq!(score::<Careless>("{}", &group()).unwrap_err(), "there is no rollout 2");
    assert!(check_schema::<Careless>().unwrap_err().contains("deny_unknown_fields"));
}

struct Plain;

impl Algorithm for Plain {
    const NAME: &'static str = "plain";
    const HOOKS: &'static [Hook] = &[];
    type Config = NoConfig;

    fn new(_config: NoConfig, _host: &Host) -> Result<Self, Error> {
        Ok(Plain)
    }
}

#[test]
fn metadata_is_json_made_at_compile_time() {
    const LEN: usize = prl_sdk::export::metadata_len::<Reporter>("1.2.3");
    static TEXT: [u8; LEN] = prl_sdk::export::metadata::<Reporter, LEN>("1.2.3");
    let value: serde_json::Value = serde_json::from_slice(&TEXT).unwrap();
    assert_eq!(value["name"], "reporter");
    assert_eq!((&value["version"], &value["abi"]), (&"1.2.3".into(), &"1.0".into()));
    assert_eq!((&value["hooks"][1], &value["action_loss"]), (&"state".into(), &"ref_kl".into()));
    assert_eq!(value["config_schema"]["properties"]["start"]["default"], 0);
    assert_eq!(
        (&value["reference"], &value["source"], &value["entropy"]),
        (&"none".into(), &"policy".into(), &false.into())
    );

    const PLAIN: usize = prl_sdk::export::metadata_len::<Plain>("0");
    let value: serde_json::Value = serde_json::from_slice(&prl_sdk::export::metadata::<Plain, PLAIN>("0")).unwrap();
    assert_eq!(value["hooks"], serde_json::json!([]));
    Tested::<Plain>::new("{}").unwrap();
    assert!(Tested::<Plain>::new(r#"{"a": 1}"#).is_err());
}

/// Shows the live policy the task's answer, and takes what it then says of a sample as advantage.
struct Hinted;

impl Algorithm for Hinted {
    const NAME: &'static str = "hinted";
    const HOOKS: &'static [Hook] = &[Hook::Reference, Hook::ScoreGroup];
    const REFERENCE: Reference = Reference::Policy;
    const SOURCE: Source = Source::Frozen;
    type Config = NoConfig;

    fn new(_config: NoConfig, _host: &Host) -> Result<Self, Error> {
        Ok(Hinted)
    }

    fn reference(&mut self, rollout: &Rollout, prefixes: &mut Prefixes) -> Result<(), Error> {
        prefixes.log(Level::Debug, "asked");
        for sample in rollout.samples().skip(1) {
            prefixes
                .ask(sample.index(), &[(Role::System, rollout.group().task_answer()), (Role::User, "go \"on\"")])?;
        }
        prefixes.ask(rollout.samples().len() + usize::from(rollout.reward() < 0.0) - 1, &[])
    }

    fn score_group(&mut self, group: &Group, credit: &mut Credit) -> Result<(), Error> {
        for sample in group.rollouts().flat_map(|r| r.samples().collect::<Vec<_>>()) {
            let values = sample.ref_logprobs().map_or(vec![-9.0; sample.len()], <[f32]>::to_vec);
            credit.write(Stream::Advantages, sample.index(), &values)?;
        }
        Ok(())
    }
}

#[test]
fn an_algorithm_asks_for_references_and_sees_them() {
    let one = |reward| {
        GroupBuilder::new()
            .task("t", "{}", "42")
            .rollout(RolloutBuilder::new(reward).sample(1, 1).sample(1, 1).sample(1, 2))
    };
    let asked = Tested::<Hinted>::new("{}").unwrap().reference(&one(1.0)).unwrap();
    let messages = serde_json::json!([{"role": "system", "content": "42"}, {"role": "user", "content": "go \"on\""}]);
    assert_eq!(asked, [None, Some(messages), Some(serde_json::json!([]))]);
    let error = Tested::<Hinted>::new("{}").unwrap().reference(&one(-1.0)).unwrap_err();
    assert_eq!(error, "sample 3 cannot get a reference");

    let description = {
        const LEN: usize = prl_sdk::export::metadata_len::<Hinted>("1");
        static TEXT: [u8; LEN] = prl_sdk::export::metadata::<Hinted, LEN>("1");
        let mut out = prl_sdk::abi::Description {
            struct_size: std::mem::size_of::<prl_sdk::abi::Description>() as u32,
            action_loss: 0,
            needs: 0,
            metadata: prl_sdk::abi::Str::EMPTY,
        };
        assert_eq!(unsafe { prl_sdk::export::describe::<Hinted>(&mut out, &TEXT) }, prl_sdk::abi::OK);
        let json: serde_json::Value = serde_json::from_slice(&TEXT).unwrap();
        assert_eq!((&json["reference"], &json["source"]), (&"policy".into(), &"frozen".into()));
        out
    };
    assert_eq!((description.needs, description.action_loss), (6, 1));
}

const RECORDED: &str = r#"{"group_id": 3, "env": "e", "task_key": "e:1", "answer": "x", "rollouts": [
    {"reward": 1.0, "member": 2, "turns": [{"tokens": 2}], "samples": [
        {"token_ids": [1, 2, 3], "mask": [false, true, true], "logprobs": [0, -0.5, -1], "ref_logprobs": [0, -2, -3]}]},
    {"reward": 0.0, "truncated": true, "metrics": [{"name": "m", "value": 1}], "samples": [
        {"token_ids": [1, 2], "mask": [false, true], "logprobs": [0, -0.25], "versions": [4, 5],
         "spans": [{"start": 0, "len": 1, "role": "tool", "is_content": false}]}]}]}"#;

#[test]
fn recorded_groups_and_golden_vectors() {
    let group = GroupBuilder::from_json(RECORDED).unwrap();
    let scored = score::<Hinted>("{}", &group).unwrap();
    assert_eq!(scored.streams[0].advantages, Some(vec![0.0, -2.0, -3.0]));
    assert_eq!(scored.streams[1].advantages, Some(vec![-9.0, -9.0]), "without a reference");
    let golden = |second: &str| {
        format!(
            r#"[{{"name": "recorded", "config": {{}}, "group": {RECORDED},
                "streams": [{{"advantages": [0, -2, -3]}}, {{"advantages": {second}}}]}}]"#
        )
    };
    assert_eq!(check_golden::<Hinted>(&golden("[-9, -9]")), Ok(1));
    let error = check_golden::<Hinted>(&golden("[-9, -8.5]")).unwrap_err();
    assert_eq!(error, "recorded: advantages of sample 1: -9 at token 1, not -8.5");
    let error = check_golden::<Hinted>(&golden("[-9, -9], \"ce_weights\": [0, 0]")).unwrap_err();
    assert_eq!(error, "recorded: ce_weights of sample 1: None, not Some([0.0, 0.0])");
    let error = GroupBuilder::from_json(&RECORDED.replace("[0, -0.25]", "[0]")).err().unwrap();
    assert_eq!(error, "sample 0 of rollout 1: `logprobs` has 1 entries for 2 tokens");
    let error = GroupBuilder::from_json(&RECORDED.replace("\"len\": 1", "\"len\": 3")).err().unwrap();
    assert_eq!(error, "sample 0 of rollout 1: a span of 3 from 0 leaves its 2 tokens");
    assert!(GroupBuilder::from_json("{\"rollots\": []}").err().unwrap().contains("unknown field `rollots`"));
}
