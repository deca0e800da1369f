"""Algorithms and losses of `prl algo score` and `prl algo loss` equal independent float64 formulas (algorithm_formulas.py).

Usage: algorithms_equal.py PRL_BINARY [PLUGIN_FILE...]

200 random groups for each algorithm and 200 random batches for each loss, hard cases among them, in one call of the binary
each. Plug-ins that are given are compared where there is a formula of their name.
"""

import json
import pathlib
import subprocess
import sys

import numpy as np

import algorithm_formulas as formulas

CASES = 200
TOLERANCE = 1e-6
ROLES = ["system", "user", "assistant", "tool", None]
prl = sys.argv[1]
plugins = {pathlib.Path(file).stem.removeprefix("lib"): file for file in sys.argv[2:]}
rng = np.random.default_rng(0)


def ask(command, name, inputs, config=None):
    """Results of one call for a list of inputs."""
    words = [prl, "algo", command, plugins.get(name, name), "--input", "-", "--config", json.dumps(config or {})]
    done = subprocess.run(words, input=json.dumps(inputs), capture_output=True, text=True)
    assert done.returncode == 0, f"{name}: {done.stderr}"
    results = json.loads(done.stdout)
    assert len(results) == len(inputs)
    return results


def same(got, want, what, least=1.0):
    """Equal to 1e-6 of the largest value, or of `least` where that is more."""
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    assert got.shape == want.shape, f"{what}: {got.shape} for {want.shape}"
    if got.size:
        scale = max(least, np.abs(want).max())
        worst = np.abs(got - want).max()
        assert worst <= TOLERANCE * scale, f"{what}: off by {worst} of {scale}"


def group(case):
    """A random group; its kind goes round."""
    kind = case % 12
    n = 1 if kind == 0 else 64 if kind == 1 else int(rng.integers(2, 17))
    base = float(rng.uniform(-0.5, 1.5))
    rewards = [float(r) for r in rng.uniform(-2, 2, n)]
    if kind == 2:
        rewards = [base] * n
    elif kind == 3:
        rewards = [1e8 if i % 2 else -1e8 for i in range(n)]
    elif kind == 4:
        rewards = [base if i % 3 else float(np.nextafter(base, 9)) for i in range(n)]
    elif kind == 5:
        rewards = [float(r) for r in rng.integers(0, 2, n)]
    elif kind == 6:
        rewards = [1e8 + r for r in rewards]
    masks = [[int(m) for m in rng.integers(0, 2, rng.integers(1, 30))] for _ in range(n)]
    if kind == 7:
        masks[0] = [0] * len(masks[0])  # an empty completion
    elif kind == 8:
        masks = [[0] * len(mask) for mask in masks]
    made = {"rewards": rewards, "masks": masks, "turns": [int(t) for t in rng.integers(1, 6, n)], "group": case}
    made["roles"] = [[ROLES[int(r)] for r in rng.integers(0, len(ROLES), len(mask))] for mask in masks]
    made["contents"] = [[int(c) for c in rng.integers(0, 4, len(mask)) > 0] for mask in masks]
    made["token_ids"] = [[int(t) for t in rng.integers(0, 9, len(mask))] for mask in masks]
    made["ref_logprobs"] = [[float(np.float32(lp)) for lp in rng.uniform(-9, 0, len(mask))] for mask in masks]
    made["task_payload"] = {"demonstration": f"do {case}"}
    # Half of the rollouts have two branches.
    cuts = [int(rng.integers(0, len(mask) + 1)) if i % 2 else None for i, mask in enumerate(masks)]
    made["sample_lengths"] = [[len(m)] if c is None else [c, len(m) - c] for m, c in zip(masks, cuts)]
    return made


def samples(made, key, i):
    """The values of one rollout, sample by sample."""
    values, result = made[key][i], []
    for length in made["sample_lengths"][i]:
        result.append(values[:length])
        values = values[length:]
    return result


def compare_groups(name, groups, advantages=None, config=None, **streams):
    """`advantages` has one list a group; each of `streams` maps (group, rollout, sample) to its values, None for absent."""
    for at, (made, result) in enumerate(zip(groups, ask("score", name, groups, config))):
        for i, of_samples in enumerate(result["streams"]):
            for j, (stream, mask) in enumerate(zip(of_samples, samples(made, "masks", i), strict=True)):
                what = f"{name} {config or ''}, group {at}, rollout {i}, sample {j}"
                want = {"rl_weights": None, "ce_weights": None, "ref_kl_weights": None}
                want["ref_logprobs"] = samples(made, "ref_logprobs", i)[j]
                want["advantages"] = None if advantages is None else formulas.broadcast(advantages[at][i], mask)
                want |= {key: values(made, i, j) for key, values in streams.items()}
                for key, values in want.items():
                    assert (stream[key] is None) == (values is None), f"{what}: {key} is {stream[key]}"
                    if values is not None:
                        same(stream[key], values, f"{what}: {key}")
            if advantages is not None:
                told, sampled = result["advantages"][i], 1 in made["masks"][i]
                assert (told is not None) == sampled, f"{name}, group {at}: advantage of rollout {i} is {told}"
        if advantages is not None:
            # However close the rewards are; and exactly 0 for equal ones.
            sampled = [i for i, mask in enumerate(made["masks"]) if 1 in mask]
            told = [result["advantages"][i] for i in sampled]
            same(told, advantages[at][sampled], f"{name} {config or ''}, group {at}: advantages", least=0.0)
    print(f"algorithms_equal: {name} {json.dumps(config) if config else ''}: {len(groups)} groups are the same")


groups = [group(case) for case in range(CASES)]
rewards = [made["rewards"] for made in groups]
mask_of = lambda made, i, j: np.array(samples(made, "masks", i)[j], float)
zeros = lambda made, i, j: np.zeros(len(mask_of(made, i, j)))

compare_groups("grpo", groups, [formulas.grpo(r) for r in rewards])
weights = [0.5, 0.2, 0.3]
keys = ["num_output_tokens_weight", "num_input_tokens_weight", "num_turns_weight"]
penalised = [
    formulas.grpo(
        formulas.length_penalty(
            made["rewards"],
            [sum(mask) for mask in made["masks"]],
            [len(mask) - sum(mask) for mask in made["masks"]],
            made["turns"],
            weights,
        )
    )
    for made in groups
]
# Lengths differ, so that equal rewards are not equal after the penalty; exact zeros are plain grpo's.
lengths_differ = [made for made in groups if len(set(made["rewards"])) > 1]
kept = [a for a, made in zip(penalised, groups) if len(set(made["rewards"])) > 1]
compare_groups("grpo", lengths_differ, kept, {"length_penalty": dict(zip(keys, weights))})
compare_groups("max_rl", groups, [formulas.max_rl(r) for r in rewards])


def echo(alphas, **filters):
    def weights(made, i, j):
        parts = [samples(made, key, i)[j] for key in ("masks", "roles", "contents", "token_ids")]
        found = formulas.echo_weights(*parts, alphas, **filters)
        return found if found.any() else None

    return weights


plain = [formulas.grpo(r) for r in rewards]
compare_groups("echo", groups, plain, ce_weights=echo({"tool": 0.1}))
alphas = {"user": 0.5, "assistant": 2.0, "system": 0.25}
config = {"roles": {role: {"alpha": alpha} for role, alpha in alphas.items()}}
compare_groups("echo", groups, plain, config, ce_weights=echo(alphas))
config["filter"] = {"max_tokens": 2, "skip_token_ids": [1, 4]}
compare_groups("echo", groups, plain, config, ce_weights=echo(alphas, max_tokens=2, skipped=(1, 4)))
for name in ("opd", "opsd"):
    compare_groups(name, groups, rl_weights=zeros, ref_kl_weights=mask_of)
compare_groups("sft", groups, rl_weights=zeros, ce_weights=mask_of)
template = "Here is an example of an expert response:\n<demonstration>\n{}\n</demonstration>"
for made, result in zip(groups, ask("score", "opsd", groups)):
    message = [{"role": "system", "content": template.format(made["task_payload"]["demonstration"])}]
    assert all(prefix == message for of_samples in result["prefixes"] for prefix in of_samples)
if "rae" in plugins:
    compare_groups("rae", groups, formulas.rae(rewards, 0.9), {"decay": 0.9})
if "gspo" in plugins:
    compare_groups("gspo", groups, [formulas.standardised(r) for r in rewards])


def batch(case):
    """A random batch; its kind goes round."""
    kind = case % 8
    n = int(rng.integers(1, 400))
    inference = rng.uniform(-6, -1e-3, n)
    trainer = np.minimum(inference + rng.normal(0, 0.3, n), -1e-4)
    advantages = rng.normal(0, 1, n)
    made = {}
    if kind == 1:
        made["mask"] = [0] * n
    elif kind == 2:
        advantages = rng.choice([1e8, -1e8], n)
    elif kind == 3:
        advantages = np.zeros(n)  # tokens whose probability falls are masked all the same
        trainer = inference - rng.uniform(0, 3, n)
    elif kind == 4:
        trainer = inference  # the policy did not move
    elif kind == 5:
        inference, trainer = rng.uniform(-15, -1e-3, n), rng.uniform(-15, -1e-3, n)
    if kind in (0, 2, 3, 5, 6):
        made["mask"] = [int(m) for m in rng.integers(0, 2, n)]
    if kind in (5, 6):
        made["weights"] = [float(w) for w in rng.choice([0, 0.25, 1, 3], n)]
    cut = int(rng.integers(0, n))
    made["sequence_lengths"] = [length for length in (cut, n - cut) if length]
    as_list = lambda values: [float(v) for v in values]
    made |= {"trainer_logprobs": as_list(trainer), "inference_logprobs": as_list(inference)}
    return made | {"advantages": as_list(advantages), "ref_logprobs": as_list(rng.uniform(-6, -1e-3, n))}


def compare_batches(name, batches, formula, config=None):
    for at, (made, result) in enumerate(zip(batches, ask("loss", name, batches, config))):
        n = len(made["trainer_logprobs"])
        mask = np.array(made.get("mask", [1] * n), bool)
        columns = {key: formulas.as_columns(made[key]) for key in made if key not in ("mask", "sequence_lengths")}
        columns.setdefault("weights", mask.astype(float))
        loss, gradient = formula(mask=mask, lengths=made["sequence_lengths"], **columns)
        same([result["loss"]], [loss], f"{name} {config or ''}, batch {at}: loss")
        same(result["grad"], gradient, f"{name} {config or ''}, batch {at}: gradient")
        assert all(g == 0 for g, m in zip(result["grad"], mask) if not m), f"{name}, batch {at}: a masked token has a gradient"
    print(f"algorithms_equal: loss {name} {json.dumps(config) if config else ''}: {len(batches)} batches are the same")


def policy_gradient(kind, **settings):
    return lambda trainer_logprobs, inference_logprobs, advantages, mask, weights, **_: formulas.policy_gradient(
        kind, trainer_logprobs, inference_logprobs, advantages, mask, weights, **settings
    )


batches = [batch(case) for case in range(CASES)]
compare_batches("default", batches, policy_gradient("default"))
settings = {"dppo_mask_low": 0.05, "dppo_mask_high": 0.4, "adv_tau": 0.5, "kl_tau": 0.1}
changed = policy_gradient("default", low=0.05, high=0.4, adv_tau=0.5, kl_tau=0.1)
compare_batches("default", batches, changed, settings)
compare_batches("ipo", batches, policy_gradient("ipo"))
compare_batches("ipo", batches, policy_gradient("ipo", threshold=0.3), {"ipo_threshold": 0.3})
compare_batches(
    "ce",
    # Its members are the tokens with a weight, sampled or not; a mask gives weights where none are said.
    [made if "weights" not in made else made | {"mask": [1] * len(made["weights"])} for made in batches],
    lambda trainer_logprobs, weights, **_: formulas.cross_entropy(trainer_logprobs, weights),
)


def on_sampled(made):
    """Weights of the reference-KL component are for sampled tokens; others are refused."""
    if "weights" not in made:
        return made
    return made | {"weights": [w * m for w, m in zip(made["weights"], made["mask"])]}


compare_batches(
    "ref_kl",
    [on_sampled(made) for made in batches],
    lambda trainer_logprobs, inference_logprobs, ref_logprobs, mask, weights, **_: formulas.reference_kl(
        trainer_logprobs, inference_logprobs, ref_logprobs, mask, weights
    ),
)


def of_gspo(**clips):
    return lambda trainer_logprobs, inference_logprobs, advantages, mask, weights, lengths, **_: formulas.gspo(
        trainer_logprobs, inference_logprobs, advantages, mask, weights, lengths, **clips
    )


if "gspo" in plugins:
    compare_batches("gspo", batches, of_gspo())
    compare_batches("gspo", batches, of_gspo(low=0.2, high=0.3), {"clip_low": 0.2, "clip_high": 0.3})
if "cispo" in plugins:
    compare_batches(
        "cispo",
        batches,
        lambda trainer_logprobs, inference_logprobs, advantages, mask, weights, **_: formulas.cispo(
            trainer_logprobs, inference_logprobs, advantages, mask, weights
        ),
    )
