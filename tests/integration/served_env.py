"""An environment served with `prl env serve-python` against the component of the same code: the same tasks and
completions give the same turns and scores. A run trains on a served one.

Usage: served_env.py PRL COMPONENT SCRATCH   (COMPONENT: the built envs/python/alphabet-sort)"""

import contextlib
import http.server
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import threading

ROOT = pathlib.Path(__file__).resolve().parents[2]
SOURCES = ROOT / "sdk/python/src"
sys.path.insert(0, str(SOURCES))

from prl_env.new import new  # noqa: E402
from prl_env.testing import Harness  # noqa: E402

PRL, COMPONENT, SCRATCH = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3])
FOLDER = ROOT / "envs/python/alphabet-sort"
TASKS = 24
# CPython adds floats with an error term since 3.12, so sums differ in their last bits between the component and older
# interpreters.
CLOSE = 1e-12


def prl(*words: object, code: int = 0) -> subprocess.CompletedProcess:
    done = subprocess.run([PRL, *map(str, words)], capture_output=True, text=True, cwd=SCRATCH)
    assert done.returncode == code, (words, done.returncode, done.stdout[-3000:], done.stderr[-3000:])
    return done


@contextlib.contextmanager
def served(folder: pathlib.Path):
    """The address of a served environment, which must end well when it is told to."""
    command = [PRL, "env", "serve-python", str(folder), "--port", "0"]
    environment = dict(os.environ, PYTHONPATH=str(SOURCES))
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        ready = child.stdout.readline()
        found = re.search(r"http://[\d.]+:\d+", ready)
        assert found, ready
        yield found[0]
    finally:
        child.send_signal(signal.SIGTERM)
        status = child.wait(60)
    assert status == 0, status


class Model(http.server.ThreadingHTTPServer):
    """A chat server that knows the tasks and is right now and then: always alike for the same conversation."""

    daemon_threads = True

    def __init__(self) -> None:
        harness = Harness(FOLDER)
        self.tag_of = harness.module.tag_of
        tasks = [harness.task("eval", index, 0) for index in range(TASKS)]
        self.truths = {task.prompt[-1].text: task.info["ground_truths"] for task in tasks}
        super().__init__(("127.0.0.1", 0), Chat)

    def say(self, messages: list[dict]) -> str:
        users = [message["content"] for message in messages if message["role"] == "user"]
        names = list(self.truths[users[0]][len(users) - 1])
        rng = random.Random(json.dumps(messages))
        if rng.random() < 0.4:
            rng.shuffle(names)
        tag = self.tag_of(len(users) - 1)
        return f"<{tag}>\n" + "\n".join(names) + f"\n</{tag}>"


class Chat(http.server.BaseHTTPRequestHandler):
    server: Model

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        message = {"role": "assistant", "content": self.server.say(asked["messages"])}
        choices = [{"message": message, "finish_reason": "stop"}]
        said = json.dumps({"choices": choices, "usage": {"completion_tokens": 9}}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    def log_message(self, *_: object) -> None:
        pass


def results(env: object, base_url: str, out: str) -> list[dict]:
    words = ("--base-url", base_url, "--model", "m", "-n", TASKS, "-r", 2, "--output", out, "--json")
    done = prl("eval", env, *words)
    summary = json.loads(done.stdout)
    assert summary["errors"] == 0, summary
    outside = "runs outside the sandbox" in done.stderr
    assert outside == (summary["unsandboxed"] is not None) == str(env).startswith("http://"), (summary, done.stderr)
    return [json.loads(line) for line in (SCRATCH / out / "results.jsonl").read_text().splitlines()]


def close(one: object, other: object) -> bool:
    """Equal up to the last bits of numbers."""
    if isinstance(one, float) and isinstance(other, float):
        return abs(one - other) < CLOSE
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(close(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(close, one, other))
    return one == other


def same_as_the_component() -> None:
    model = Model()
    threading.Thread(target=model.serve_forever, daemon=True).start()
    base_url = f"http://127.0.0.1:{model.server_address[1]}/v1"
    with served(FOLDER) as url:
        checked = prl("env", "check", url).stdout
        assert f"it runs outside the sandbox at {url}" in checked and "keeps the contract" in checked, checked
        outside = results(url, base_url, "outside")
    inside = results(COMPONENT, base_url, "inside")
    for one, other in zip(inside, outside, strict=True):
        for key in ("turns", "score", "reward", "stop_condition", "truncation", "error"):
            assert close(one[key], other[key]), (key, one[key], other[key])
        assert {**one["task"], "env": ""} == {**other["task"], "env": ""}, (one["task"], other["task"])
        for key in ("context", "opening", "turns", "truncated"):
            assert close(one["replay"][key], other["replay"][key]), (key, one["replay"], other["replay"])
    rewards = {line["reward"] for line in inside}
    assert len(rewards) > 2, rewards
    refused = prl("replay", "outside", code=2).stderr
    assert "ran outside the sandbox" in refused and len(refused.splitlines()) == 1, refused
    print(f"served: {len(inside)} rollouts are those of the component, {len(rewards)} different rewards")


def a_run() -> None:
    folder = new("my-env", SCRATCH / "my-env")
    with served(folder) as url:
        config = (folder / "rl.toml").read_text().replace('id = "my-env.wasm"', f'id = "{url}"\nname = "my-env"')
        assert url in config
        (folder / "served.toml").write_text(config)
        out = SCRATCH / "run"
        model = ROOT / "examples/reverse_text/model"
        done = prl("rl", "@", folder / "served.toml", "--model.name", model, "--max-steps", 3, "--output-dir", out)
    assert done.stdout.count(f"environment `my-env` runs outside the sandbox at {url}") == 1, done.stdout
    rows = [json.loads(line) for line in (out / "rollouts/step_3/train/all/traces.jsonl").read_text().splitlines()]
    assert len(rows) == 128 and not any(row["error"] for row in rows)
    assert {row["replay"]["env"]["unsandboxed"] for row in rows} == {url}
    print(f"served: a run of 3 steps, mean reward {sum(row['reward'] for row in rows) / len(rows):.3f} in the last")


os.makedirs(SCRATCH, exist_ok=True)
same_as_the_component()
a_run()
