"""What `prl inference` samples equals what transformers computes.

Usage: server_equal.py PRL_BINARY MODEL_FOLDER [NUMBER_OF_PROMPTS [NEW_TOKENS]]

For every prompt: the greedy tokens are those of transformers' generate in f32, and the log-probabilities of tokens that were
sampled at temperature 1, and of the prompt, are those of a teacher-forced pass in f32, to 1e-4. Where the two are farther
apart than that, a pass in f64 is asked: ours must be within 1e-4 of it.
"""

import pathlib
import sys

import torch
from serving import Serving, post
from transformers import AutoModelForCausalLM, AutoTokenizer

prl, folder = sys.argv[1], sys.argv[2]
count = int(sys.argv[3]) if len(sys.argv) > 3 else 50
new = int(sys.argv[4]) if len(sys.argv) > 4 else 24
TEXTS = [
    "The capital of France is", "def fibonacci(n):", "Übermäßig große Bären", "数学は", "Привет, как", "नमस्ते दुनिया",
    "👩‍👩‍👧‍👦 and 🏴󠁧󠁢󠁥󠁮󠁧󠁿", "e\u0301 is not é", "1, 1, 2, 3, 5, 8,", "SELECT name FROM", "مرحبا بالعالم", "\tif (x < 0) {\n",
    "Once upon a time", "Q: What is 12 * 12?\nA:", "한국어 문장은", "a", "To be, or not to be,", "import numpy as np\n",
]
prompts = [TEXTS[i % len(TEXTS)] + " again" * (i // len(TEXTS)) for i in range(count)]


def generate(server, ids, **params):
    return post(server.url, "/inference/v1/generate", {"token_ids": ids, "sampling_params": params})


def teacher_forced(model, ids):
    """Log-probability of each of `ids` but the first."""
    with torch.no_grad():
        table = torch.log_softmax(model(torch.tensor([ids])).logits[0].double(), -1)
    return [float(table[i - 1, ids[i]]) for i in range(1, len(ids))]


def apart(ours, theirs):
    assert len(ours) == len(theirs), (len(ours), len(theirs))
    return max(abs(a - b) for a, b in zip(ours, theirs))


tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
greedy_off, worst, scored, in_doubt = [], 0.0, 0, []
with Serving(prl, folder, "--max-num-seqs", "16") as server:
    for at, text in enumerate(prompts):
        ids = tokenizer.encode(text, add_special_tokens=False) or [1]
        with torch.no_grad():
            words = {"do_sample": False, "max_new_tokens": new, "min_new_tokens": new, "pad_token_id": 0}
            whole = model.generate(torch.tensor([ids]), attention_mask=torch.ones(1, len(ids), dtype=torch.long), **words)[0]
        expected = whole[len(ids) :].tolist()
        got = generate(server, ids, max_tokens=new, temperature=0, ignore_eos=True)["choices"][0]["token_ids"]
        if got != expected:
            # A tie within rounding may go either way; what follows it then differs.
            first = next(i for i, (a, b) in enumerate(zip(got, expected)) if a != b)
            with torch.no_grad():
                row = model(torch.tensor([ids + expected[:first]])).logits[0, -1]
            gap = float(row[expected[first]] - row[got[first]])
            if gap > 1e-4:
                greedy_off.append((text, first, gap))
        answer = generate(
            server, ids, max_tokens=new, temperature=1.0, seed=at, logprobs=1, prompt_logprobs=0, ignore_eos=True
        )
        choice = answer["choices"][0]
        sampled = choice["token_ids"]
        prompt = [entry[str(token)]["logprob"] for entry, token in zip(answer["prompt_logprobs"][1:], ids[1:])]
        ours = prompt + [entry["logprob"] for entry in choice["logprobs"]["content"]]
        difference = apart(ours, teacher_forced(model, ids + sampled))
        if difference > 1e-4:
            in_doubt.append((ids + sampled, ours, difference))
        else:
            worst = max(worst, difference)
        scored += len(ours)
if in_doubt:
    model = model.double()
    for ids, ours, difference in in_doubt:
        exact = apart(ours, teacher_forced(model, ids))
        print(f"server_equal: {difference:.1e} from f32, {exact:.1e} from f64")
        worst = max(worst, exact)
assert not greedy_off, f"{len(greedy_off)} of {count} prompts differ: {greedy_off[:3]}"
assert worst <= 1e-4, f"log-probabilities differ by {worst}"
print(f"server_equal: {count} greedy answers of {pathlib.Path(folder).name} are the same, {scored} logprobs within {worst:.1e}")
