//! Made-up groups that every algorithm must cope with: ordinary ones, and those that have broken algorithms before. Owns the
//! cases, in the form in which anybody can write one down.

use crate::algo::group::Group;
use serde_json::{Value, json};

/// A named group.
pub type Case = (String, Group);

/// All of them. Tasks have a demonstration, and all tokens a reference, for algorithms that look at these.
pub fn all() -> Result<Vec<Case>, serde_json::Error> {
    let next_up = f64::from_bits(0.1f64.to_bits() + 1);
    let many: Vec<f64> = (0..64).map(|i| f64::from(i * 37 % 11) / 10.0).collect();
    let cases = [
        (
            "an ordinary group",
            json!({ "rewards": [1, 0, 0.5, 0.25], "output_tokens": [5, 3, 8, 1], "input_tokens": [4, 4, 4, 4] }),
        ),
        ("one rollout", json!({ "rewards": [0.7] })),
        ("equal rewards", json!({ "rewards": vec![0.1; 7] })),
        ("rewards of 0", json!({ "rewards": [0, 0, 0] })),
        ("negative rewards", json!({ "rewards": [-1, -0.5, -2] })),
        ("huge rewards", json!({ "rewards": [1e8, -1e8, 1e8, 0] })),
        ("rewards one rounding apart", json!({ "rewards": [next_up, 0.1] })),
        ("an empty completion", json!({ "rewards": [1, 0], "output_tokens": [0, 3] })),
        ("no sampled token at all", json!({ "rewards": [1, 0], "output_tokens": [0, 0], "input_tokens": [3, 2] })),
        ("a group of 64", json!({ "rewards": many })),
        (
            "gaps among the members",
            json!({ "rewards": [1, 0], "members": [1, 6], "truncated": [0, 1],
            "stop_conditions": ["done", "max_turns"], "policy_versions": [3, 4], "group": 9 }),
        ),
        (
            "turns of an agent",
            json!({ "rewards": [1, 0],
            "masks": [[0, 0, 1, 1, 0, 0, 0, 1, 0, 1], [0, 1, 0, 0]],
            "roles": [["system", "user", "assistant", "assistant", "tool", "tool", "tool", "assistant", "user", "assistant"],
                      [null, "assistant", "tool", null]],
            "contents": [[1, 1, 1, 1, 0, 1, 1, 1, 1, 1], [1, 1, 1, 1]],
            "turns": [3, 1], "turn_tokens": [[2, 1, 1], [1]], "turn_rewards": [[0.5, null, 0.5], [null]] }),
        ),
        (
            "branches",
            json!({ "rewards": [1, 0.5], "masks": [[0, 1, 1, 0, 1], [0, 1]], "sample_lengths": [[3, 2], [2]] }),
        ),
        (
            "a rubric",
            json!({ "rewards": [1.5, 0], "components": [[{ "name": "exact", "value": 1, "weight": 1 },
            { "name": "größe", "value": 0.5, "weight": 1 }], []], "metrics": [{ "chars": 12 }, {}],
            "score_info": [{ "note": "ok" }, null] }),
        ),
    ];
    cases.into_iter().map(|(name, group)| Ok((name.to_owned(), serde_json::from_value(furnished(group))?))).collect()
}

/// A group of 16 rollouts with so many tokens in all, each half prompt and half completion.
pub fn long(tokens: usize) -> Result<Case, serde_json::Error> {
    const ROLLOUTS: usize = 16;
    let half = tokens / ROLLOUTS / 2;
    let rewards: Vec<f64> = (0..ROLLOUTS).map(|i| (i % 5) as f64 / 4.0).collect();
    let group =
        json!({ "rewards": rewards, "output_tokens": vec![half; ROLLOUTS], "input_tokens": vec![half; ROLLOUTS] });
    Ok((format!("{tokens} tokens"), serde_json::from_value(furnished(group))?))
}

fn furnished(mut group: Value) -> Value {
    group["env"] = "check".into();
    group["task_key"] = "check:0".into();
    group["task_payload"] = json!({ "demonstration": "An expert's answer: \"é\".", "text": "hello" });
    group["task_answer"] = "olleh".into();
    group
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_is_a_group() {
        for (name, group) in all().unwrap() {
            assert!(group.rollouts().is_ok_and(|r| !r.is_empty()), "{name}");
        }
        let rollouts = long(16_384).unwrap().1.rollouts().unwrap();
        assert_eq!(rollouts.iter().flat_map(|r| &r.samples).map(prl_types::Sample::len).sum::<usize>(), 16_384);
    }
}
