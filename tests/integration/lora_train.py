"""`prl sft` trains an adapter as PEFT and torch do, and what it exports is what it trained.

Usage: lora_train.py PRL_BINARY EXAMPLE_FOLDER SCRATCH_FOLDER

From the adapter that prl begins with, saved in PEFT's layout, torch takes the same steps of AdamW on the same texts. Losses, the
trained factors and modules are held against each other; then the log-probabilities of the merged weights, in transformers and in
`prl inference`, against the adapter's in PEFT and beside the served base. Tied and untied, with modules that are trained whole.
"""

import json
import pathlib
import shutil
import subprocess
import sys
import urllib.request

import torch
from peft import PeftModel
from safetensors.torch import load_file
from serving import Serving
from transformers import AutoModelForCausalLM, AutoTokenizer

prl, example, out = sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])
STEPS, ROWS, ROW, LR, DECAY = 20, 4, 120, 2e-3, 0.01
out.mkdir(parents=True, exist_ok=True)
torch.set_num_threads(1)


def untied():
    """The example's model with a head of its own."""
    folder = out / "untied"
    model = AutoModelForCausalLM.from_pretrained(example / "model", dtype=torch.float32)
    torch.manual_seed(1)
    head = model.get_input_embeddings().weight.detach() + 0.02 * torch.randn(model.get_input_embeddings().weight.shape)
    model.config.tie_word_embeddings = False
    model.lm_head.weight = torch.nn.Parameter(head)
    model.save_pretrained(folder)
    for name in ["tokenizer.json", "tokenizer_config.json"]:
        shutil.copy(example / "model" / name, folder)
    return folder


def texts():
    """Conversations so long that a row holds one of them."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = ["".join(letters[(i * 7 + j * (3 + i % 5)) % 26] for j in range(30 + i % 9)) for i in range(STEPS * ROWS)]
    pair = lambda word: [{"role": "user", "content": word}, {"role": "assistant", "content": word[::-1]}]
    return [pair(word) for word in words]


def prl_sft(folder, name, lr, steps, words):
    toml = out / "sft.toml"
    toml.write_text(f'[data]\nname = "texts.jsonl"\nshuffle = false\nseq_len = {ROW}\nbatch_size = {ROWS}\n[ckpt]\n')
    (out / "texts.jsonl").write_text("".join(json.dumps({"messages": pair}) + "\n" for pair in texts()))
    run = out / name
    line = [prl, "sft", "@", str(toml), "--model.name", str(folder), "--device", "cpu", "--max-steps", str(steps)]
    line += ["--optim.lr", str(lr), "--optim.weight-decay", str(DECAY), "--output-dir", str(run), *words]
    done = subprocess.run(line + ["--model.lora", "--ckpt.weights.save-adapter-separately"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(row) for row in open(run / "metrics.jsonl")]
    return run / f"weights/step_{steps}", [row["loss/mean"] for row in rows if "loss/mean" in row]


def batches(tokenizer):
    """Ids and which of them are targets, by step."""
    rows = []
    for pair in texts():
        ids = lambda messages, open: tokenizer.apply_chat_template(messages, add_generation_prompt=open)["input_ids"]
        whole, prompt = ids(pair, False), ids(pair[:1], True)
        end = len(whole) - whole[::-1].index(tokenizer.eos_token_id)
        assert ROW // 2 < len(whole) <= ROW, len(whole)
        rows.append((torch.tensor([whole]), torch.arange(len(prompt), end)))
    return [rows[i : i + ROWS] for i in range(0, len(rows), ROWS)]


def logprobs(model, ids):
    return torch.log_softmax(model(ids).logits[0, :-1].double(), -1).gather(1, ids[0, 1:, None])[:, 0]


def post(url, path, body):
    request = urllib.request.Request(url + path, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as answer:
        return json.load(answer)


def served(url, name, ids):
    """Log-probabilities of all tokens but the first."""
    body = {"model": name, "prompt": ids[0].tolist(), "max_tokens": 1, "temperature": 1.0, "prompt_logprobs": 1}
    table = post(url, "/v1/completions", body)["choices"][0]["prompt_logprobs"]
    return torch.tensor([entry[str(int(i))]["logprob"] for entry, i in zip(table[1:], ids[0, 1:])], dtype=torch.float64)


def case(name, folder, words, whole):
    start, _ = prl_sft(folder, f"{name}_start", 0.0, 1, words)
    end, ours = prl_sft(folder, f"{name}_end", LR, STEPS, words)
    base = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model = PeftModel.from_pretrained(base, start / "lora_adapters", is_trainable=True)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=LR, betas=(0.9, 0.999), eps=1e-8, weight_decay=DECAY)
    steps, theirs = batches(AutoTokenizer.from_pretrained(folder)), []
    for rows in steps:
        count = sum(len(targets) for _, targets in rows)
        loss = -sum(logprobs(model, ids)[targets - 1].sum() for ids, targets in rows) / count
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        theirs.append(loss.item())
    worst = max(abs(a - b) / b for a, b in zip(ours, theirs, strict=True))
    assert worst <= 1e-3 and theirs[-1] < 0.9 * theirs[0], (worst, list(zip(ours, theirs)))

    saved = load_file(end / "lora_adapters/adapter_model.safetensors")
    begun = load_file(start / "lora_adapters/adapter_model.safetensors")
    model.save_pretrained(out / f"{name}_theirs")
    for key, want in load_file(out / f"{name}_theirs/adapter_model.safetensors").items():
        if key in saved:
            went, off = (want - begun[key]).norm(), (saved[key] - want).norm()
            assert off <= 2e-2 * went, f"{key}: off by {off} of {went}"

    # Of the exported weights: PEFT's word, transformers' of the merged ones, and ours of both.
    base = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    adapted = PeftModel.from_pretrained(base, end / "lora_adapters").eval()
    merged = AutoModelForCausalLM.from_pretrained(end, dtype=torch.float32).eval()
    assert merged.config.tie_word_embeddings == base.config.tie_word_embeddings
    ids = [rows[0][0] for rows in steps[:4]]
    with torch.no_grad():
        want = [logprobs(adapted, one) for one in ids]
        with adapted.disable_adapter():
            moved = max((logprobs(adapted, one) - w).abs().max() for one, w in zip(ids, want))
        off = {"merged": max((logprobs(merged, one) - w).abs().max() for one, w in zip(ids, want))}
    far = lambda url, model: max((served(url, model, one) - w).abs().max() for one, w in zip(ids, want))
    with Serving(prl, str(end), "--served-model-name", "merged") as server:
        off["merged, served"] = far(server.url, "merged")
    if not whole:
        with Serving(prl, str(folder), "--served-model-name", "base", "--enable-lora") as server:
            post(server.url, "/load_lora_adapter", {"lora_name": "own", "lora_path": str(end / "lora_adapters")})
            off["beside the base, served"] = far(server.url, "own")
    assert max(off.values()) <= 1e-4 and moved > 1e-2, (off, moved)
    told = ", ".join(f"{what} {float(x):.1e}" for what, x in off.items())
    print(f"lora_train: {name}: {STEPS} losses within {worst:.1e} of PEFT's; logprobs off PEFT's by: {told}")


case("tied", example / "model", [], False)
case("untied", untied(), ["--model.lora.rank", "4", "--model.lora.target-modules", '["q_proj","v_proj"]'], False)
case("tied_whole", example / "model", ["--model.lora.modules-to-save", '["embed_tokens","norm"]'], True)
case("untied_whole", out / "untied", ["--model.lora.modules-to-save", '["embed_tokens","lm_head","input_layernorm"]'], True)
