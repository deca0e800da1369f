"""Chat templates against transformers', template after template.

Usage: template_parity.py RENDER_BINARY SCRATCH_FOLDER [--write-hashes]

The templates are those that `trl` ships, downloaded from PyPI at a pinned version; the conversations are in
template_cases.jsonl (written by template_cases.py). Held against each other:
- the texts of the model's own template, for every template, conversation, with and without tools and generation prompt;
  template_hashes.json has their hashes, so that a change is seen even where both sides change alike;
- the loss mask, for templates that mark what the assistant writes, against transformers' assistant masks;
- the ids of the hand-written formats, against the template's wherever that renders each turn as the model saw it.
"""

import datetime
import hashlib
import json
import pathlib
import subprocess
import sys

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast
from transformers.utils.chat_template_utils import render_jinja_template

TRL = "1.16.0"
HERE = pathlib.Path(__file__).parent
CASES, HASHES = HERE / "template_cases.jsonl", HERE / "template_hashes.json"
binary, scratch = sys.argv[1], pathlib.Path(sys.argv[2])
write_hashes = "--write-hashes" in sys.argv[3:]

BOS, EOS = "<|begin_of_text|>", "<|im_end|>"
SPECIAL = [
    BOS, "<|im_start|>", EOS, "<|endoftext|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|eom_id|>",
    "<|python_tag|>", "<start_of_turn>", "<end_of_turn>", "<|user|>", "<|assistant|>", "<|end|>", "<|start|>", "<|return|>",
    "<|system|>", "<|observation|>", "[gMASK]", "<sop>", "<|channel|>", "<|message|>", "<|call|>",
]  # fmt: skip
PLAIN = [f"<{close}{name}>" for name in ("think", "tool_call", "tool_response", "arg_key", "arg_value") for close in ("", "/")]
# As Qwen's.
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# The format that each template is, where there is one; no other may be taken for one.
FORMATS = {
    "glm4moe": "glm-4.5",
    "gptoss": "gpt-oss",
    "llama3": "llama3",
    "llama3_1": "llama3",
    "llama3_2": "llama3",
    "qwen2_5": "qwen2.5",
    "qwen2_5_vl": "chatml",
    "qwen3": "qwen3",
    "qwen3_5_nothink": "qwen3.5",
    "qwen3_5_think": "qwen3.5",
    "qwen3_6": "qwen3.5",
    "qwen3_instruct_2507": "chatml",
    "qwen3_opened": "qwen3",
    "qwen3_vl": "chatml",
    "default_system": "chatml",
}
# With thinking off: what this template says of it is all that sets it apart.
QUIET = {"qwen3_8": "qwen3.5"}
# As SmolLM2's: a system message of its own, and nothing but texts.
OWN = {
    "default_system": "{% for m in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\n"
    "You are kind.<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
}


def templates():
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*command, "--dest", scratch, f"trl=={TRL}"], check=True)
    [wheel] = scratch.glob(f"trl-{TRL}-*.whl")
    subprocess.run([sys.executable, "-m", "zipfile", "-e", wheel, scratch / "trl"], check=True)
    # As the Qwen3 models have it that always think.
    qwen3 = (scratch / "trl/trl/chat_templates/qwen3.jinja").read_text()
    prompt = "add_generation_prompt %}\n    {{- '<|im_start|>assistant\\n"
    assert prompt in qwen3
    opened = qwen3.replace("enable_thinking is defined and enable_thinking is false", "false")
    own = {**OWN, "qwen3_opened": opened.replace(prompt, f"{prompt}<think>\\n")}
    for name, text in own.items():
        (scratch / "trl" / f"{name}.jinja").write_text(text)
    paths = sorted([*(scratch / "trl/trl/chat_templates").glob("*.jinja"), *(scratch / "trl").glob("*.jinja")])
    assert len(paths) > 70, f"only {len(paths)} templates in trl {TRL}"
    return {path.stem: path for path in paths}


def make_tokenizer(texts):
    """A byte-level tokenizer that merges as real ones do, across spaces and line breaks."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    split = pre_tokenizers.Split(tokenizers.Regex(PATTERN), "isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=1500, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([*texts, *["\n\n", "\n\n\n", " \n"] * 50], trainer)
    tokenizer.add_tokens([tokenizers.AddedToken(token, normalized=False) for token in PLAIN])
    folder = scratch / "tokenizer"
    folder.mkdir(exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": BOS, "eos_token": EOS}))
    return folder, PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), bos_token=BOS, eos_token=EOS)


def chat(messages, as_text):
    """Messages as prl hands them to a template: reasoning under both of its names, arguments as the template takes them."""
    out = []
    for message in messages:
        message = json.loads(json.dumps(message))
        if "reasoning_content" in message:
            message["thinking"] = message["reasoning_content"]
        for call in message.get("tool_calls", []):
            arguments = call["function"]["arguments"]
            if as_text and not isinstance(arguments, str):
                call["function"]["arguments"] = json.dumps(arguments, ensure_ascii=False)
            if not as_text and isinstance(arguments, str):
                call["function"]["arguments"] = read(arguments)
        out.append(message)
    return out


def read(arguments):
    """An object that is written as text; other texts stay what they are."""
    try:
        value = json.loads(arguments)
    except ValueError:
        return arguments
    return value if isinstance(value, dict) else arguments


def render(template, messages, tools, generate, variables, as_text=False):
    """The text, or None where the template refuses."""
    try:
        rendered, _ = render_jinja_template(
            conversations=[chat(messages, as_text)],
            tools=tools or None,
            chat_template=template,
            add_generation_prompt=generate,
            bos_token=BOS,
            eos_token=EOS,
            documents=None,
            **variables,
        )
    except Exception:
        return None
    return rendered[0]


def takes_text(template, variables):
    """Whether arguments must be text."""
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "", "tool_calls": []}]
    call = {"id": "call_0", "type": "function", "function": {"name": "f", "arguments": {}}}
    messages[1]["tool_calls"] = [call]
    as_object = render(template, messages, None, False, variables)
    return as_object is None and render(template, messages, None, False, variables, as_text=True) is not None


def variants(text):
    """The variables that a template is rendered with."""
    return [{}, *([{"enable_thinking": False}] if "enable_thinking" in text else [])]


def undated(text):
    now = datetime.datetime.now()
    for format in ("%d %b %Y", "%Y-%m-%d", "%B %d, %Y", "%d %B %Y"):
        text = text.replace(now.strftime(format), "TODAY")
    return text


def ours(folder, renderers):
    job, out = scratch / "job.json", scratch / "out.json"
    job.write_text(json.dumps({"folder": str(folder), "conversations": str(CASES), "renderers": renderers}))
    subprocess.run([binary, job, out], check=True)
    return json.loads(out.read_text())


def texts_equal(paths, cases, folder):
    asked = [(name, variables) for name, path in paths.items() for variables in variants(path.read_text())]
    rendered = ours(folder, [{"template": str(paths[n]), "name": "default", "variables": v} for n, v in asked])
    hashes, count, refused, wrong = {}, 0, 0, []
    for (name, variables), got in zip(asked, rendered):
        assert "error" not in got, f"{name}: {got['error']}"
        text = paths[name].read_text()
        as_text = takes_text(text, variables)
        digest = hashes.setdefault(name, hashlib.sha256())
        for case, pair in zip(cases, got["conversations"]):
            for tools, both in zip((None, case["tools"]), pair):
                for generate, one in ((False, both["closed"]), (True, both["open"])):
                    want = render(text, case["messages"], tools, generate, variables, as_text)
                    count, refused = count + 1, refused + (want is None)
                    digest.update(json.dumps(want and undated(want)).encode())
                    if want != one.get("text"):
                        wrong.append((name, variables, case["name"], bool(tools), generate, want, one))
    for name, variables, case, tools, generate, want, one in wrong[:5]:
        print(f"{name} {variables} {case} tools={tools} generate={generate}\n  theirs {want!r}\n  ours   {one!r}")
    assert not wrong, f"{len(wrong)} of {count} renders differ: {sorted({w[0] for w in wrong})}"
    print(f"{len(paths)} templates: {count} renders equal transformers', {refused} of them refusals")
    return {name: digest.hexdigest()[:32] for name, digest in hashes.items()}


def masks_equal(paths, cases, folder, tokenizer):
    marked = [name for name, path in paths.items() if "generation %}" in path.read_text().replace("endgeneration", "")]
    rendered = ours(folder, [{"template": str(paths[name]), "name": "auto"} for name in marked])
    rows, trained = 0, 0
    for name, got in zip(marked, rendered):
        text = paths[name].read_text()
        assert got["format"] is None, f"{name} has marks, and yet {got['format']} was chosen"
        as_text = takes_text(text, {})
        for case, pair in zip(cases, got["conversations"]):
            for tools, both in zip((None, case["tools"]), pair):
                try:
                    want = tokenizer.apply_chat_template(
                        chat(case["messages"], as_text),
                        tools=tools,
                        chat_template=text,
                        return_dict=True,
                        return_assistant_tokens_mask=True,
                        documents=None,
                    )
                except Exception:
                    assert "error" in both["sample"], f"{name} {case['name']}: only transformers refuses"
                    continue
                place = f"{name} {case['name']} tools={bool(tools)}"
                assert "error" not in both["sample"], f"{place}: {both['sample']['error']}"
                assert both["sample"]["ids"] == want["input_ids"], f"{place}: ids"
                mask = [int(target) for target in both["sample"]["mask"]]
                assert mask == want["assistant_masks"], f"{place}\n{mask}\n{want['assistant_masks']}"
                rows, trained = rows + 1, trained + sum(mask)
    assert len(marked) > 25 and trained > 10_000
    print(f"{len(marked)} templates with marks: the masks of {rows} rows equal transformers', {trained} trained tokens")


def shows_all(messages, tools, text):
    """Whether a text has all that a conversation has; some templates leave things out without a word."""
    parts = [tool["function"]["name"] for tool in tools or []]
    for message in messages:
        parts += [message.get("content", "").strip(), message.get("reasoning_content", "").strip()]
        for call in message.get("tool_calls", []):
            arguments = call["function"]["arguments"]
            arguments = read(arguments) if isinstance(arguments, str) else arguments
            parts += [call["function"]["name"], *([arguments] if isinstance(arguments, str) else arguments)]
    # What a template writes as JSON is in it with escapes.
    return all(part in text or json.dumps(part, ensure_ascii=False)[1:-1] in text for part in parts)


def stable(encode, shown, messages):
    """Whether each turn's ids, in the whole, are what the model saw and said."""
    whole = encode(shown(messages, False))
    for n in (n for n, message in enumerate(messages) if message["role"] == "assistant"):
        before, through = shown(messages[:n], True), shown(messages[: n + 1], False)
        if before is None or through is None:
            return False
        before, through = encode(before), encode(through)
        if through[: len(before)] != before or whole[: len(through)] != through:
            return False
    return True


def leads_on(message, following):
    """Whether a message begins with the token that GLM-4.5 ends an answer with; else both stand there, and no template has that."""
    role = "tool" if message.get("tool_calls") else "user"
    return message["role"] != "assistant" or following["role"] == role


def formats_equal(paths, cases, folder, tokenizer):
    unmarked = [name for name in paths if not name.endswith("_training")]
    asked = [(name, variables, "auto") for name in unmarked for variables in variants(paths[name].read_text())]
    # Templates that keep all turns are formats as they are.
    asked += [("qwen3_training", {}, "qwen3"), ("qwen3_5_think_training", {}, "qwen3.5"), ("qwen3_6_training", {}, "qwen3.5")]
    rendered = ours(folder, [{"template": str(paths[n]), "name": r, "variables": v} for n, v, r in asked])

    def encode(text):
        return tokenizer.encode(text, add_special_tokens=False)

    for (name, variables, _), got in zip(asked, rendered):
        assert "error" not in got, f"{name}: {got['error']}"
        expected = FORMATS.get(name.removesuffix("_training"), QUIET.get(name) if variables else None)
        assert got["format"] == expected, f"{name} {variables}: {got['format']}, not {expected}"
        if expected is None:
            continue
        text, equal = paths[name].read_text(), 0
        for case, pair in zip(cases, got["conversations"]):
            for tools, both in zip((None, case["tools"]), pair):

                def shown(messages, generate, tools=tools):
                    return render(text, messages, tools, generate, variables)

                whole = shown(case["messages"], False)
                if whole is None or not shows_all(case["messages"], tools, whole):
                    continue
                if not stable(encode, shown, case["messages"]):
                    continue
                # Of several calls this template shows the first alone.
                if expected == "gpt-oss" and any(len(m.get("tool_calls", [])) > 1 for m in case["messages"]):
                    continue
                if expected == "glm-4.5" and not all(map(leads_on, case["messages"], case["messages"][1:])):
                    continue
                answered = case["messages"][-1]["role"] == "assistant"
                # A turn may end with the token that begins the next one; no template shows it behind the last.
                unended = answered and expected == "glm-4.5"
                for generate, one in ((False, both["closed"]), (True, both["open"])):
                    # Nobody is invited to speak behind an answer; these templates then end it in another way.
                    if generate and answered and expected in ("glm-4.5", "gpt-oss"):
                        continue
                    want = shown(case["messages"], generate)
                    place = f"{name} {variables} {case['name']} tools={bool(tools)} generate={generate}"
                    if unended:
                        assert one["text"].endswith(("<|user|>", "<|observation|>")), f"{place}: {one['text']!r}"
                        one = {"text": one["text"][: one["text"].rindex("<|")], "ids": one["ids"][:-1]}
                    assert one.get("text") == want, f"{place}\n  theirs {want!r}\n  ours   {one!r}"
                    assert one["ids"] == encode(want), f"{place}: ids"
                    equal += 1
        assert equal >= 12, f"{name} {variables}: only {equal} renders could be compared"
        print(f"{name} {variables or ''}: the format {expected} gives the ids of {equal} stable renders")


def main():
    scratch.mkdir(parents=True, exist_ok=True)
    cases = [json.loads(line) for line in CASES.read_text().splitlines()]
    paths = templates()
    corpus = [render(path.read_text(), case["messages"], case["tools"], True, {}) for path in paths.values() for case in cases]
    folder, tokenizer = make_tokenizer([text for text in corpus if text])
    hashes = {"trl": TRL, **texts_equal(paths, cases, folder)}
    if write_hashes:
        HASHES.write_text(json.dumps(hashes, indent=1) + "\n")
    known = json.loads(HASHES.read_text())
    changed = sorted(name for name in {*known, *hashes} if known.get(name) != hashes.get(name))
    assert not changed, f"renders are not those of template_hashes.json: {changed}; if that is right, --write-hashes"
    masks_equal(paths, cases, folder, tokenizer)
    formats_equal(paths, cases, folder, tokenizer)


if __name__ == "__main__":
    main()
