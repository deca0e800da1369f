"""Trained and exported weights give in transformers what they gave in training, with tied and untied embeddings.

Usage: export_logits.py PRL_BINARY MODEL_FOLDER SCRATCH_FOLDER

A tiny model, and the same with a head of its own, are fine-tuned for some steps. The exported folder must load with no key missing
or left over and keep the tie; its loss on the training conversations must be the validation loss of the weights in memory, and
the logits that `prl inference` computes of it must be transformers'.
"""

import json
import pathlib
import subprocess
import sys

import chat_rows
import torch
from serving import Serving, post
from transformers import AutoModelForCausalLM, AutoTokenizer

prl, base, scratch = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3])
STEPS, LIKELIEST = 3, 20


def start(tied):
    """The model's folder, or one of its copy with a head of its own."""
    if tied:
        return pathlib.Path(base)
    folder, model = scratch / "untied", AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    model.config.tie_word_embeddings = False
    torch.manual_seed(1)
    head = model.get_input_embeddings().weight.detach()
    model.lm_head.weight = torch.nn.Parameter(head + 0.01 * torch.randn_like(head))
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(base).save_pretrained(folder)
    return folder


def trained(folder, out):
    """Exported weights, and the validation loss of the weights they were made of."""
    rows = str(chat_rows.PATH)
    options = {
        "--model.name": folder, "--device": "cpu", "--output-dir": out, "--max-steps": STEPS, "--optim.lr": 1e-3,
        "--data.name": rows, "--data.seq-len": 512, "--data.batch-size": 8,
        "--val.data.name": rows, "--val.data.seq-len": 512, "--val.interval": STEPS, "--ckpt.weights-only": "true",
    }  # fmt: skip
    done = subprocess.run([prl, "sft", *(str(w) for pair in options.items() for w in pair)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return out / f"weights/step_{STEPS}", [line["val/loss"] for line in lines if "val/loss" in line][-1]


def table(model, ids):
    with torch.no_grad():
        return torch.log_softmax(model(torch.tensor([ids])).logits[0].double(), -1)


def check(tied):
    folder = start(tied)
    exported, val_loss = trained(folder, scratch / f"out_{tied}")
    model, info = AutoModelForCausalLM.from_pretrained(exported, dtype=torch.float32, output_loading_info=True)
    problems = {k: v for k, v in info.items() if v}
    assert not problems, problems
    model.eval()
    same = model.lm_head.weight.data_ptr() == model.get_input_embeddings().weight.data_ptr()
    assert model.config.tie_word_embeddings == same == tied
    moved = (model.lm_head.weight - AutoModelForCausalLM.from_pretrained(folder).lm_head.weight).abs().max().item()
    assert 1e-4 < moved < 0.1, moved

    documents, nll, count, worst = list(chat_rows.documents(AutoTokenizer.from_pretrained(exported))), 0.0, 0, 0.0
    for ids, targets in documents:
        rows = table(model, ids)
        nll, count = nll - sum(rows[t - 1, ids[t]].item() for t in targets), count + len(targets)
    loss = nll / count
    assert abs(loss - val_loss) <= 1e-5 * loss, f"{loss} from the exported weights, {val_loss} from those in memory"
    with Serving(prl, str(exported)) as server:
        for ids, _ in documents[:8]:
            params = {"max_tokens": 1, "temperature": 1.0, "prompt_logprobs": LIKELIEST}
            answer = post(server.url, "/inference/v1/generate", {"token_ids": ids, "sampling_params": params})
            rows = table(model, ids)
            for n, entries in enumerate(answer["prompt_logprobs"][1:]):
                assert len(entries) >= LIKELIEST and set(rows[n].topk(LIKELIEST // 2).indices.tolist()) <= {*map(int, entries)}
                worst = max([worst, *(abs(e["logprob"] - rows[n, int(token)].item()) for token, e in entries.items())])
    assert worst <= 1e-4, worst
    return loss, abs(loss - val_loss), worst


for tied in (True, False):
    loss, off, worst = check(tied)
    print(f"export_logits: {'tied' if tied else 'untied'}: loss {loss:.4f} within {off:.1e}, log-probabilities within {worst:.1e}")
