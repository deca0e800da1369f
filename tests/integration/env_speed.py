"""What a rollout's environment side costs: components in prl's sandbox beside the same task as an environment for
`verifiers`, driven through its own server and worker. Single turn: reverse a text, scored with difflib. The model is
one that answers at once on both sides, so what is timed is the task, the messages, the checks and the score.

Usage: env_speed.py PRL_BINARY SCRATCH_FOLDER [ROLLOUTS]

Prints a table. Not a test: it limits nothing.
"""

import asyncio
import json
import os
import pathlib
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
AT_ONCE = 64
ADDRESS = "tcp://127.0.0.1:{}"

PEER = '''
from difflib import SequenceMatcher

import verifiers as vf
import verifiers.envs.environment as environment
from datasets import Dataset
from verifiers.types import Response, ResponseMessage

WORDS = "alpha bravo charlie delta echo foxtrot golf hotel india juliet kilo lima mike november oscar papa".split()


class AtOnce(vf.Client):
    """A model that answers everything with the same text."""

    def setup_client(self, config):
        return None

    async def to_native_tool(self, tool):
        return tool

    async def to_native_prompt(self, messages):
        return messages, {}

    async def get_native_response(self, prompt, model, sampling_args, tools=None, **kwargs):
        text = "<reversed_text>ahpla ovarb</reversed_text>"
        message = ResponseMessage(role="assistant", content=text, finish_reason="stop", is_truncated=False)
        return Response(id="0", created=0, model=model, message=message)

    async def raise_from_native_response(self, response):
        return None

    async def from_native_response(self, response):
        return response

    async def close(self):
        return None


environment.resolve_client = lambda config: AtOnce(config)


def load_environment():
    rows = []
    for at in range(256):
        text = " ".join(WORDS[(at * 7 + k * 3) % len(WORDS)] for k in range(3))
        rows.append({"question": f"Reverse the text: {text}", "answer": text[::-1]})
    parser = vf.XMLParser(["reversed_text"], answer_field="reversed_text")

    def similarity(parser, completion, answer):
        return SequenceMatcher(None, parser.parse_answer(completion) or "", answer).ratio()

    rubric = vf.Rubric([similarity], parser=parser)
    return vf.SingleTurnEnv(dataset=Dataset.from_list(rows), parser=parser, rubric=rubric)
'''


def tree(pid: int) -> list[int]:
    """A process and all below it."""
    children: dict[int, list[int]] = {}
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        children.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    found, todo = [], [pid]
    while todo:
        found.append(todo.pop())
        todo += children.get(found[-1], [])
    return found


def resident(pid: int) -> int:
    pages = sum(int(pathlib.Path(f"/proc/{one}/statm").read_text().split()[1]) for one in tree(pid))
    return pages * os.sysconf("SC_PAGE_SIZE")


def drive(port: int, count: int) -> None:
    """Runs in the Python that has verifiers: the server, and a client that keeps it busy."""
    import verifiers as vf
    from verifiers.serve import ZMQEnvClient

    code = (
        "from verifiers.serve import ZMQEnvServer; "
        f"ZMQEnvServer.run_server('peer-words', num_workers=1, address={ADDRESS.format(port)!r}, console_logging=False)"
    )
    start = time.monotonic()
    server = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)

    async def run() -> dict:
        client = ZMQEnvClient(address=ADDRESS.format(port))
        await client.wait_for_server_startup()
        config, prompt = vf.ClientConfig(), [{"role": "user", "content": "Reverse the text: alpha bravo"}]

        async def one(at: int) -> float:
            row = {"prompt": prompt, "answer": "ovarb ahpla", "example_id": at, "task": "peer", "info": {}}
            done = await client.run_rollout(row, config, "none", {})
            assert not done.get("error"), done
            return done["reward"]

        await one(0)
        ready = time.monotonic() - start
        begun, queue, rewards = time.monotonic(), iter(range(count)), []

        async def worker() -> None:
            for at in queue:
                rewards.append(await one(at))

        await asyncio.gather(*(worker() for _ in range(AT_ONCE)))
        assert len(rewards) == count and min(rewards) > 0, rewards[:3]
        seconds = time.monotonic() - begun
        found = {"ready": ready, "per_second": count / seconds, "bytes": resident(server.pid)}
        await client.close()
        return found

    try:
        print(json.dumps(asyncio.run(run())))
    finally:
        server.terminate()
        server.wait()


def main() -> None:
    prl, scratch = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
    count = int(sys.argv[3]) if len(sys.argv) > 3 else 2000
    sys.path.insert(0, str(ROOT / "sdk/python/src"))
    from peers import V0, python_of
    from prl_env.build import build
    from prl_env.new import new

    scratch.mkdir(parents=True, exist_ok=True)
    (scratch / "peer_words.py").write_text(PEER)
    hello, python_wasm = scratch / "hello", scratch / "hello.wasm"
    if not hello.exists():
        new("hello", hello)
    build(hello, python_wasm)
    rows = []
    for name, wasm, isolation in (
        ("prl, Rust component", ROOT / "envs/reverse-text.wasm", "rollout"),
        ("prl, Python component", python_wasm, "rollout"),
        ("the same, isolation worker", python_wasm, "worker"),
    ):
        command = [prl, "env", "bench", wasm, "--json", "--isolation", isolation]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        found = json.loads(done.stdout)
        memory = f"{found['resident_bytes'] / 2**20:.2f} a rollout"
        rows.append((name, found["cached_load_s"], found["rollouts_per_second"], memory))
    environment = dict(os.environ, PYTHONPATH=str(scratch))
    peer = [python_of("verifiers-0.1", *V0), __file__, "--drive", "5917", str(count)]
    done = subprocess.run(peer, check=True, env=environment, stdout=subprocess.PIPE, text=True)
    found = json.loads(done.stdout.splitlines()[-1])
    memory = f"{found['bytes'] / 2**20:.0f} in all"
    rows.append(("verifiers 0.1.14, one worker", found["ready"], found["per_second"], memory))
    print(f"{'':30} {'ready, s':>9} {'rollouts/s':>11}   MiB")
    for name, ready, rate, memory in rows:
        print(f"{name:30} {ready:9.3f} {rate:11.0f}   {memory}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--drive"]:
        drive(int(sys.argv[2]), int(sys.argv[3]))
    else:
        main()
