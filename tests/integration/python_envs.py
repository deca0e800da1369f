"""Python environments in the real host: components give what the same code gives natively, and ports of `verifiers`
environments give the rewards of their originals.

Usage: python_envs.py ROLLOUTS SCRATCH [PART]...   (ROLLOUTS: the example of that name in the tests' crate; parts:
template envs reasoning-gym ports parsers)"""

import json
import os
import pathlib
import random
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
SOURCES = ROOT / "sdk/python/src"
sys.path.insert(0, str(SOURCES))

import prl_env as prl  # noqa: E402
from peers import V0, V1, python_of  # noqa: E402
from prl_env.build import build  # noqa: E402
from prl_env.new import new  # noqa: E402
from prl_env.testing import Harness, hostile  # noqa: E402

ROLLOUTS, SCRATCH = sys.argv[1], pathlib.Path(sys.argv[2])
PARTS = sys.argv[3:] or ["template", "envs", "reasoning-gym", "ports", "parsers"]
COMPLETIONS = 100


def component(folder: pathlib.Path) -> pathlib.Path:
    """The built environment."""
    out = SCRATCH / f"{folder.name}.wasm"
    made = build(folder, out)
    print(f"  {folder.name}: {made['bytes']} bytes, imports {', '.join(made['imports'])}")
    return out


def play(wasm: pathlib.Path, requests: list[dict], args: dict | None = None) -> list[dict]:
    """Rollouts in the host."""
    cache = SCRATCH / "code"
    command = [ROLLOUTS, str(wasm), json.dumps(args or {}), str(cache)]
    text = "\n".join(json.dumps(request) for request in requests)
    done = subprocess.run(command, input=text, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == len(requests)
    return answers


def score_of(answer: dict) -> dict:
    assert "error" not in answer, answer["error"]
    return {line["name"]: line["value"] for line in answer["score"]["components"] + answer["score"]["metrics"]}


def total_of(answer: dict) -> float:
    turns = sum(turn["reward"] or 0.0 for turn in answer["turns"])
    return turns + sum(line["value"] * line["weight"] for line in answer["score"]["components"])


def same_as_native(wasm: pathlib.Path, harness: Harness, tasks: list[tuple], scripts, args: dict | None = None) -> int:
    """The host's rollouts against the harness's: tasks, what is said back, scores."""
    requests, expected = [], []
    for split, index, seed in tasks:
        task = harness.task(split, index, seed)
        for turns in scripts(task):
            played = harness.script(task, turns, prl.Context("0.1", 1))
            said = [m for m in played.messages[len(task.prompt) :] if m["role"] == "assistant"]
            requests.append({"split": split, "index": index, "seed": seed, "turns": said})
            expected.append((task, played))
    for answer, (task, played) in zip(play(wasm, requests, args), expected):
        values = score_of(answer)
        got = answer["task"]
        assert [m["content"] for m in got["prompt"]] == [m.text for m in task.prompt], (task.key, got)
        assert (got["key"], got.get("answer"), got["payload"]) == (task.key, task.answer, task.payload), (task, got)
        assert answer["stop"] == played.stop, (answer, played)
        native = [[m["content"] for m in turn.messages] for turn in played.turns]
        assert [[m["content"] for m in turn["messages"]] for turn in answer["turns"]] == native, (answer, native)
        assert values == {**played.score.components, **played.score.metrics}, (values, played.score)
        assert abs(total_of(answer) - played.reward) < 1e-12
    return len(requests)


def template() -> None:
    folder = new("my-env", SCRATCH / "my-env")
    environment = dict(os.environ, PYTHONPATH=str(SOURCES))
    subprocess.run([sys.executable, folder / "test_my_env.py"], check=True, env=environment)
    subprocess.run(
        [sys.executable, "-m", "prl_env.check", folder], check=True, env=environment, stdout=subprocess.DEVNULL
    )
    wasm = component(folder)
    tasks = [(split, index, 3) for split in ("train", "eval") for index in range(20)]
    right = lambda task: [[f"<reversed_text>{task.answer}</reversed_text>"], *([said] for said in hostile(task))]
    count = same_as_native(wasm, Harness(folder), tasks, right)
    print(f"template: {count} rollouts in the host are those of the harness")


def envs() -> None:
    for name in ("alphabet-sort", "wordle"):
        folder = ROOT / "envs/python" / name
        test = folder / f"test_{name.replace('-', '_')}.py"
        subprocess.run([sys.executable, test], check=True, env=dict(os.environ, PYTHONPATH=str(SOURCES)))
        harness, wasm, rng = Harness(folder), component(folder), random.Random(1)

        def scripts(task):
            yield from ([said] for said in hostile(task)[:4])
            if name == "wordle":
                words = rng.sample(harness.module.ANSWERS, 5)
                for last in (task.answer, "zzzzz"):
                    yield [f"<guess>{word}</guess>" for word in (*words, last)]
                return
            for _ in range(3):
                turns = []
                for at, truth in enumerate(task.info["ground_truths"]):
                    lines = rng.sample(truth, len(truth)) if rng.random() < 0.5 else truth
                    turns.append("<{0}>\n{1}\n</{0}>".format(harness.module.tag_of(at), "\n".join(lines)))
                yield turns

        tasks = [(split, index, 5) for split in ("train", "eval") for index in range(15)]
        count = same_as_native(wasm, harness, tasks, scripts)
        print(f"{name}: {count} rollouts in the host are those of the harness")


# Their items follow the order of sets of texts or tuples, whose hashes differ between processes and between 32 and 64
# bits.
HASHED = {
    "course_schedule", "family_relationships", "isomorphic_strings", "knight_swap",
    "polynomial_multiplication", "ransom_note", "rearc", "word_ladder",
}  # fmt: skip


def reasoning_gym() -> None:
    """Every task in the host: items and scores are the package's own under CPython with all it needs."""
    folder = ROOT / "envs/python/reasoning-gym"
    python = python_of("verifiers-0.1", *V0)
    environment = dict(os.environ, PYTHONPATH=f"{SOURCES}:{folder}", PYTHONHASHSEED="0")
    native = subprocess.run([python, folder / "native.py"], check=True, env=environment, capture_output=True, text=True)
    native = json.loads(native.stdout)
    wasm = component(folder)
    different, wrong = [], []
    for name, expected in native.items():
        asked = [{key: item[key] for key in ("split", "index", "seed")} for item in expected]
        found = play(wasm, [{**ask, "turns": []} for ask in asked], {"task": name})
        requests = []
        for ask, answer in zip(asked, found):
            right = answer["task"].get("answer")
            requests += [
                {**ask, "turns": [said]} for said in (f"<answer>{right}</answer>", "<answer>17</answer>", "no")
            ]
        scores = [score_of(answer)["check_answer_reward_func"] for answer in play(wasm, requests, {"task": name})]
        scores = [scores[at : at + 3] for at in range(0, len(scores), 3)]
        items = [(answer["task"]["prompt"][-1]["content"], answer["task"].get("answer")) for answer in found]
        if items != [(item["question"], item["answer"]) for item in expected]:
            different.append(name)
            # Its own right answers are worth what they are natively.
            wrong += [name] * ([score[0] for score in scores] != [item["scores"][0] for item in expected])
        else:
            wrong += [name] * (scores != [item["scores"] for item in expected])
    assert not wrong, f"other scores: {wrong}"
    assert set(different) <= HASHED, f"other items: {sorted(set(different) - HASHED)}"
    print(
        f"reasoning-gym: {len(native)} tasks; {len(native) - len(different)} give the items and scores of CPython, "
        f"{len(different)} other items, scored alike"
    )


def originals(python: str, words: list[str], requests: list[dict]) -> list[dict]:
    helper = ROOT / "tests/integration/verifiers_rewards.py"
    done = subprocess.run([python, helper, *words], input=json.dumps(requests), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


# CPython adds floats with an error term since 3.12, so sums differ in their last bits between the sandbox and older
# ones.
CLOSE = 1e-12


def against_original(
    name: str, wasm: pathlib.Path, python: str, words: list[str], split: str, said, args=None, main=None
) -> None:
    """The same messages to the port in the host and to the original."""
    tasks = [
        answer["task"]
        for answer in play(wasm, [{"split": split, "index": at, "seed": 0, "turns": []} for at in range(20)], args)
    ]
    rng = random.Random(2)
    requests = [(at % len(tasks), said(tasks[at % len(tasks)], at, rng)) for at in range(COMPLETIONS)]
    ours = play(wasm, [{"split": split, "index": index, "seed": 0, "turns": [text]} for index, text in requests], args)
    theirs = originals(python, words, [{"index": index, "text": text} for index, text in requests])
    seen = set()
    for (index, text), our, their in zip(requests, ours, theirs):
        assert our["task"]["prompt"][-1]["content"] == their["prompt"], (name, index)
        assert abs(total_of(our) - their["reward"]) < CLOSE, (name, text, total_of(our), their)
        for line, value in score_of(our).items():
            assert abs(value - their["rewards"][line]) < CLOSE, (name, text, line, value, their)
        seen.add(their["reward"])
    assert len(seen) > 1, f"{name}: all rewards are {seen}"
    print(f"{name}: {COMPLETIONS} rewards as under verifiers, {len(seen)} different ones")


LINES = [
    "an old silent pond",
    "a frog jumps into the pond",
    "splash silence again",
    "the light of a candle",
    "is moved to another candle",
    "spring twilight",
    "who will tell the sea",
    "of all the ships it has kept",
    "under the moon's hand",
    "never odd or even",
    "I am not so sure",
    "a man a plan a canal panama",
    "see me sleep",
    "bells knell",
    "sweet sleepers sleep",
]


def poem(task: dict, at: int, rng: random.Random) -> str:
    text = "\n".join(rng.choice(LINES) for _ in range(rng.choice([1, 3, 3, 5, 14])))
    return text if at % 3 else f"<think>hm</think>\n{text}"


def layout(task: dict, at: int, rng: random.Random) -> str:
    pieces = [dict(piece) for piece in task["answer"]]
    if at % 4 == 1:
        pieces[0]["x"] += rng.choice([-20, 20, 40, 7])
    if at % 4 == 2:
        pieces[0]["rot"] = rng.choice([-3, 0, 3, 13])
    if at % 4 == 3:
        return rng.choice(
            ["no", "[]", "```json\n[{}]\n```", "```json\n" + json.dumps(pieces * 2) + "\n```", json.dumps(pieces)]
        )
    return f"I think\n```json\n{json.dumps(pieces)}\n```"


def arithmetic(task: dict, at: int, rng: random.Random) -> str:
    right = task["answer"]
    said = (right, f"{right}.0", f" {int(right) + 1}", f"about {right}", "", f"{right} apples")[at % 6]
    return (f"<answer>{said}</answer>", f"<answer>1</answer> no: <answer>\n{said}\n</answer>", said)[at % 3]


def ports() -> None:
    v0, v1 = python_of("verifiers-0.1", *V0), python_of("verifiers-0.4", *V1)
    folder = ROOT / "examples/verifiers_ports"
    against_original("constraint-gym", component(folder / "constraint-gym"), v0, ["constraint-gym"], "train", poem)
    against_original("marble", component(folder / "marble"), v1, ["marble"], "train", layout)
    wasm = SCRATCH / "reasoning-gym.wasm"
    wasm = wasm if wasm.is_file() else component(ROOT / "envs/python/reasoning-gym")
    for task in ("chain_sum", "leg_counting"):
        words = ["reasoning-gym", task]
        against_original(f"reasoning-gym {task}", wasm, v0, words, "eval", arithmetic, {"task": task})


def parsers() -> None:
    """Our parsers read and rate random texts as those of verifiers do."""
    rng = random.Random(3)
    bits = [
        "<think>",
        "</think>",
        "<answer>",
        "</answer>",
        "<code>",
        "</code>",
        "\\boxed{",
        "}",
        "{",
        "\n",
        " ",
        "4",
        "yes",
        "<",
    ]
    texts = ["".join(rng.choice(bits) for _ in range(rng.randrange(12))) for _ in range(2000)]
    code = """
import json, sys, logging
logging.disable(logging.CRITICAL)
module = sys.argv[1]
if module == "prl_env":
    import prl_env as vf
    from prl_env import extract_boxed_answer
else:
    import verifiers as vf
    from verifiers.utils.data_utils import extract_boxed_answer
xml = vf.XMLParser(["think", ("code", "answer")], answer_field="answer")
others = [vf.ThinkParser(), vf.MaybeThinkParser(), vf.Parser()]
out = []
for text in json.load(sys.stdin):
    said = [{"role": "user", "content": "<answer>u</answer>"}, {"role": "assistant", "content": text}]
    row = [vars(xml.parse(text)), xml.parse_answer(text), xml.parse_answer(said), xml.get_format_reward_func()(said)]
    row += [extract_boxed_answer(text), extract_boxed_answer(text, strict=True)]
    for parser in others:
        row += [parser.parse(text), parser.parse_answer(said), parser.get_format_reward_func()(said)]
    out.append(row)
json.dump(out, sys.stdout)
"""
    environment = dict(os.environ, PYTHONPATH=str(SOURCES))
    results = []
    for python, module in ((sys.executable, "prl_env"), (python_of("verifiers-0.1", *V0), "verifiers")):
        command = [python, "-c", code, module]
        done = subprocess.run(command, input=json.dumps(texts), capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stderr[-2000:]
        results.append(json.loads(done.stdout))
    for text, ours, theirs in zip(texts, *results):
        assert ours == theirs, (text, ours, theirs)
    print(f"parsers: {len(texts)} texts are read and rated as by verifiers")


SCRATCH.mkdir(parents=True, exist_ok=True)
(SCRATCH / "code").mkdir(mode=0o700, exist_ok=True)
for part in PARTS:
    {"template": template, "envs": envs, "reasoning-gym": reasoning_gym, "ports": ports, "parsers": parsers}[part]()
