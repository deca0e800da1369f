"""Guided output of `prl inference`, with OpenAI's own client.

Usage: guided.py PRL_BINARY MODEL_FOLDER SCRATCH_FOLDER

A model of random weights is bound to a JSON Schema: whatever it wants, what ends is valid JSON of that schema, and what does
not end was cut off. Then choices of a known distribution, made with logit_bias out of the model's own log-probabilities, are
drawn 20,000 times: the counts pass a chi-square test, at every sampler setting that leaves that distribution known.
"""

import json
import math
import shutil
import sys

import numpy as np
import openai
from safetensors.numpy import load_file, save_file
from serving import Serving

prl, folder, scratch = sys.argv[1], sys.argv[2], sys.argv[3]
ROUNDS, DRAWS = 50, 20_000
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "kind": {"enum": ["fish", "bird", None, 7]},
        "sizes": {"type": "array", "items": {"type": "integer", "minimum": -20, "maximum": 300}, "minItems": 1, "maxItems": 3},
        "inner": {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"], "additionalProperties": False},
    },
    "required": ["name", "kind", "sizes", "inner"],
    "additionalProperties": False,
}
# The 1 - 1e-6 quantile of chi-square with three degrees of freedom.
BOUND = 30.67


def valid(value) -> bool:
    sizes = value["sizes"]
    return (
        list(value) == ["name", "kind", "sizes", "inner"]
        and isinstance(value["name"], str)
        and len(value["name"]) <= 8
        and value["kind"] in ["fish", "bird", None, 7]
        and 1 <= len(sizes) <= 3
        and all(type(size) is int and -20 <= size <= 300 for size in sizes)
        and list(value["inner"]) == ["ok"]
        and type(value["inner"]["ok"]) is bool
    )


def random_model() -> str:
    target = shutil.copytree(folder, f"{scratch}/random")
    rng = np.random.default_rng(3)
    weights = load_file(f"{target}/model.safetensors")
    for name, tensor in weights.items():
        if tensor.ndim == 2:
            weights[name] = rng.normal(0, 0.3, tensor.shape).astype(tensor.dtype)
    save_file(weights, f"{target}/model.safetensors", metadata={"format": "pt"})
    return target


def schemas(client: openai.OpenAI) -> tuple[int, int]:
    """How many answers of the schema as it is, and without white space, ended by themselves."""
    ended = []
    for free, schema in ((True, SCHEMA), (False, {**SCHEMA, "x-guidance": {"whitespace_flexible": False}})):
        form = {"type": "json_schema", "json_schema": {"name": "animal", "strict": True, "schema": schema}}
        count = 0
        for seed in range(ROUNDS):
            ask = dict(messages=[{"role": "user", "content": f"animal {seed}"}], seed=seed, temperature=seed % 4 / 2, max_tokens=250)
            choice = client.chat.completions.create(model="m", **ask, response_format=form).choices[0]
            assert choice.finish_reason in ("stop", "length"), choice
            if choice.finish_reason == "stop":
                count += 1
                assert valid(json.loads(choice.message.content)), choice.message.content
            else:
                assert free, choice
        ended.append(count)
    return tuple(ended)


def logprobs(client: openai.OpenAI, prompt: list[int], ids: list[int]) -> dict[int, float]:
    """The model's own, of each id behind the prompt."""
    found = {}
    for one in ids:
        body = {"token_ids": [*prompt, one], "sampling_params": {"prompt_logprobs": 0, "max_tokens": 1}}
        answer = client.post("/../inference/v1/generate", cast_to=object, body=body)
        found[one] = answer["prompt_logprobs"][-1][str(one)]["logprob"]
    return found


def choices(client: openai.OpenAI) -> None:
    words = ["k", "q", "x", "z"]
    prompt, ids = ([client.post("/../tokenize", cast_to=object, body={"prompt": text})["tokens"] for text in ("The answer: ", "kqxz")])
    assert len(ids) == 4
    own = logprobs(client, prompt, ids)
    cases = [
        ([0.25, 0.25, 0.25, 0.25], {}),
        ([0.1, 0.2, 0.3, 0.4], {}),
        ([0.4, 0.3, 0.2, 0.1], {"top_k": 3}),
        ([0.4, 0.3, 0.2, 0.1], {"top_p": 0.65}),
        ([0.4, 0.3, 0.2, 0.1], {"min_p": 0.6}),
        ([0.4, 0.3, 0.2, 0.1], {"temperature": 2.0}),
    ]
    for seed, (wanted, how) in enumerate(cases):
        bias = {str(one): math.log(p) - own[one] for one, p in zip(ids, wanted)}
        kept = [p ** (1 / how.get("temperature", 1)) for p in wanted]
        kept = {"top_k": kept[:3], "top_p": kept[:2], "min_p": kept[:2]}.get(next(iter(how), None), kept)
        exact = np.array([*kept, *[0.0] * (4 - len(kept))]) / sum(kept)
        counts = dict.fromkeys(words, 0)
        extra = {"guided_choice": words, "top_k": how.get("top_k", -1), "min_p": how.get("min_p", 0)}
        ask = dict(model="m", prompt=prompt, n=1000, temperature=how.get("temperature", 1), top_p=how.get("top_p", 1), logit_bias=bias)
        for round in range(DRAWS // 1000):
            for choice in client.completions.create(**ask, seed=(seed * 100 + round) << 32, extra_body=extra).choices:
                assert choice.finish_reason == "stop", choice
                counts[choice.text] += 1
        seen = np.array(list(counts.values()))
        assert seen.sum() == DRAWS and not seen[exact == 0].any(), (how, seen)
        want = exact[exact > 0] * DRAWS
        chi2 = float(((seen[exact > 0] - want) ** 2 / want).sum())
        assert chi2 < BOUND, (how, wanted, seen, chi2)


def main() -> None:
    with Serving(prl, random_model(), "--served-model-name", "m", "--kv-cache-gb", "0.5") as server:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120)
        free, compact = schemas(client)
        choices(client)
    print(f"guided output: {free} and {compact} of {ROUNDS} answers ended, all of them valid; choices are drawn as they should be")


main()
