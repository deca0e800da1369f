"""An environment served over HTTP, asked as a host asks: the protocol, rollouts side by side, ends. Run with
`python -m unittest discover -s sdk/python/tests`."""

import contextlib
import http.client
import json
import os
import re
import resource
import select
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import unittest
import unittest.mock
from pathlib import Path

SOURCES = Path(__file__).resolve().parents[1] / "src"

CODE = '''
"""Does what it is told."""
import asyncio, os, random, threading, time
from random import random as draw
import prl_env as prl

GATE = threading.Barrier(2)
MAKING = threading.Barrier(2)
LET_GO = []


class Held:
    def __init__(self):
        self.thread = threading.get_ident()

    def __del__(self):
        LET_GO.append(threading.get_ident() == self.thread)


def load_environment(words: int = 1, role: str = "", meet: bool = False):
    if meet:
        MAKING.wait(30)
    rubric = prl.JudgeRubric(role=role) if role else prl.Rubric()
    env = prl.MultiTurnEnv("told", max_turns=9, metrics=["let_go"], rubric=rubric)

    @env.tasks("eval", size=3, seed=1)
    @env.tasks("train")
    def task(rng):
        return {"question": " ".join(str(rng.random()) for _ in range(words)), "answer": 1.5, "info": {"x": [0.1]}}

    @env.setup
    def setup(state):
        state["held"] = Held()
        state["loop"] = None

    @env.reply
    async def reply(text, state):
        loop = asyncio.get_running_loop()
        same = state["loop"] in (None, loop)
        state["loop"] = loop
        if text == "meet":
            # Blocks its thread and its loop until another rollout is here too.
            GATE.wait(30)
        if text == "draw":
            first = [random.random(), draw(), random.choice("abcdefgh")]
            await asyncio.sleep(0.01)
            return str(first + [random.random(), same])
        if text == "wait":
            await asyncio.sleep(0.5)
        if text == "hang":
            await asyncio.sleep(1000)
        if text == "out of order":
            raise prl.InvalidState("not now")
        if text == "let go":
            return prl.Turn("yes", metrics={"let_go": float(sum(LET_GO))})
        if text == "llm":
            prl.llm.generate("judge", "hm")
        if text == "nan":
            return prl.Turn("x", reward=float("nan"))
        if text == "set":
            return prl.Turn("x", sampling={"max_tokens": {1}})
        if text == "break":
            raise KeyError("gone")
        if text == "exit":
            raise SystemExit(3)
        if text == "print":
            print("to the log")
        return "\\ud800" if text == "half" else f"{text}!"

    @env.reward(weight=0.5)
    def turns(state):
        return state["turn"] / 3

    @env.reward
    def rank(completions) -> list[float]:
        return [float(at) for at in range(len(completions))]

    return env
'''


class Client:
    """A connection that is kept."""

    def __init__(self, port):
        self.http = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def close(self):
        self.http.close()

    def send(self, method, path, said=None, headers=None):
        body = None if said is None else json.dumps(said)
        headers = {"Content-Type": "application/json"} if headers is None else headers
        self.http.request(method, path, body, headers)
        response = self.http.getresponse()
        return response.status, json.loads(response.read())

    def call(self, path, said):
        status, answer = self.send("POST", f"/v0.1/{path}", said)
        assert status == 200, (status, answer)
        return answer

    def error(self, path, said):
        status, answer = self.send("POST", f"/v0.1/{path}", said)
        return status, answer["error"]["code"], answer["error"]["message"]

    def open(self, seed=1, configuration=None):
        configuration = configuration or self.call("configure", {"args": {}})["configuration"]
        task = self.call("task", {"configuration": configuration, "split": "train", "index": 0, "seed": 2**64 - 1})
        context = {"id": "0.0", "seed": seed, "member": 0, "group_size": 1, "step": 0, "eval": False}
        asked = {"configuration": configuration, "task": task, "context": context}
        path = f"rollouts/{self.call('rollouts', asked)['id']}"
        self.call(f"{path}/start", {})
        return path

    def say(self, path, text):
        return self.call(f"{path}/step", turn(text))


def turn(text):
    message = {"role": "assistant", "content": text}
    return {"message": message, "finish_reason": "tool_calls", "completion_tokens": 1, "context_left": None}


class Process:
    """A served environment."""

    def __init__(self, folder, *words, code=CODE, files=None):
        self.file = Path(folder) / "told.py"
        self.file.write_text(textwrap.dedent(code))
        command = [sys.executable, "-m", "prl_env.serve", str(self.file), "--port", "0", *words]
        environment = dict(os.environ, PYTHONPATH=str(SOURCES))
        pipe = subprocess.PIPE
        limit = None if files is None else lambda: resource.setrlimit(resource.RLIMIT_NOFILE, files)
        self.child = subprocess.Popen(
            command, stdout=pipe, stderr=pipe, text=True, env=environment, preexec_fn=limit
        )
        self.ready = self.child.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:(\d+)", self.ready)
        self.port = int(found[1]) if found else None

    def end(self, number=signal.SIGTERM):
        if self.child.poll() is None:
            self.child.send_signal(number)
        out, err = self.child.communicate(timeout=60)
        return self.child.returncode, out, err


class Served(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        temporary = tempfile.TemporaryDirectory()
        cls.addClassCleanup(temporary.cleanup)
        cls.process = Process(temporary.name)
        cls.addClassCleanup(cls.process.end)

    def setUp(self):
        self.client = Client(self.process.port)
        self.addCleanup(self.client.close)

    def test_the_protocol(self):
        self.assertRegex(self.process.ready, r"^told 0\.1\.0 at http://127\.0\.0\.1:\d+, outside the sandbox\n$")
        client = self.client
        status, info = client.send("GET", "/v0.1/info")
        self.assertEqual(
            (status, info["name"], info["features"]), (200, "told", ["multi_turn", "group_scoring", "deterministic"])
        )
        self.assertEqual(info["splits"], [{"name": "train", "size": None}, {"name": "eval", "size": 3}])
        self.assertEqual(
            [(line["name"], line["weight"]) for line in info["components"]], [("turns", 0.5), ("rank", 1.0)]
        )
        one, two = (client.call("configure", {"args": args})["configuration"] for args in ({}, {"words": 2}))
        self.assertNotEqual(one, two)
        self.assertEqual(client.call("configure", {"args": {"words": 2}})["configuration"], two)
        asked = {"split": "train", "index": 3, "seed": 2**64 - 1}
        tasks = [client.call("task", {"configuration": name, **asked}) for name in (one, two, one)]
        self.assertEqual([len(task["prompt"][0]["content"].split()) for task in tasks], [1, 2, 1])
        self.assertEqual(tasks[0], tasks[2])
        self.assertEqual(
            (tasks[0]["seed"], tasks[0]["answer"], tasks[0]["payload"]["info"]), (2**64 - 1, 1.5, {"x": [0.1]})
        )
        path = client.open()
        said = client.say(path, "hi")
        self.assertEqual((said["messages"], said["stop"]), ([{"role": "user", "content": "hi!"}], None))
        score = client.call(f"{path}/score", {"truncated": "max_turns"})
        self.assertEqual(score["components"], [{"name": "turns", "value": 1 / 3}])
        self.assertEqual(client.error(f"{path}/score", {"truncated": None})[:2], (409, "invalid_state"))
        member = {
            "context": {"id": "0.0", "seed": 1, "member": 0, "group_size": 2, "step": 0, "eval": False},
            "messages": [*tasks[0]["prompt"], {"role": "assistant", "content": "hi"}],
            "truncated": None,
            "score": score,
            "reward": 0.2,
        }
        scores = client.call("score_group", {"configuration": one, "task": tasks[0], "members": [member, member]})
        self.assertEqual([line["components"][1]["value"] for line in scores["scores"]], [0.0, 1.0])

    def test_what_is_wrong_is_an_error(self):
        client = self.client
        name = client.call("configure", {"args": {}})["configuration"]
        first = {"configuration": name, "split": "t", "index": 0, "seed": 0}
        for given, *expected in (
            (("configure", {"args": {"words": "x"}}), 400, "invalid_config", "`words`"),
            (("configure", {"args": [1]}), 400, "invalid_config", "object"),
            (("configure", {"args": {"role": "judge"}}), 404, "unsupported", "models (`judge`)"),
            (("configure", {}), 400, "unsupported", "lacks `args`"),
            (("configure", 5), 400, "unsupported", "not of the protocol"),
            (("task", {**first, "configuration": "x"}), 410, "invalid_state", "`configure`"),
            (("task", {**first, "configuration": ["x"]}), 400, "unsupported", "`configuration` is ['x'], no text"),
            (("task", first), 400, "invalid_task", "`t`"),
            (("task", {**first, "index": -1}), 400, "unsupported", "-1"),
            (("task", {**first, "index": 2**64}), 400, "unsupported", "above 2^64 - 1"),
            (("rollouts", {"configuration": name, "task": {}, "context": {}}), 400, "invalid_task", "lacks `split`"),
            (("rollouts/none/start", {}), 409, "invalid_state", "no such rollout"),
        ):  # fmt: skip
            with self.subTest(given=given):
                status, code, message = client.error(*given)
                self.assertEqual((status, code), tuple(expected[:2]))
                self.assertIn(expected[2], message)
        task = client.call("task", {**first, "split": "train"})
        for wrong, words in (
            ({"key": 5}, "`key` is 5, no text"),
            ({"kee": 5}, "a key 'kee'"),
            ({"tags": [1]}, "`tags`"),
            ({"prompt": [{"role": "user", "content": [{"type": "text"}]}]}, "`text` is None"),
        ):
            asked = {"configuration": name, "task": {**task, **wrong}, "context": {}}
            status, code, message = client.error("rollouts", asked)
            self.assertEqual((status, code), (400, "invalid_task"))
            self.assertIn(words, message)
        self.assertEqual(client.send("GET", "/")[0], 404)
        self.assertEqual(client.send("POST", "/v0.1/configure", {"args": {}}, {"Content-Type": "text/plain"})[0], 400)
        client.http.request("POST", "/v0.1/configure", "{", {"Content-Type": "application/json"})
        response = client.http.getresponse()
        self.assertEqual((response.status, json.loads(response.read())["error"]["code"]), (400, "unsupported"))

    def test_a_call_that_fails_ends_its_rollout(self):
        client = self.client
        for text, *expected in (
            ("nan", 500, "internal", "is nan"),
            ("set", 500, "internal", "no JSON"),
            ("llm", 404, "unsupported", "has no `llm` from the host"),
            ("break", 500, "internal", "KeyError: 'gone' (told.py:"),
            ("exit", 500, "internal", "SystemExit: 3"),
            ("out of order", 409, "invalid_state", "not now"),
        ):
            with self.subTest(text=text):
                path = client.open()
                status, code, message = client.error(f"{path}/step", turn(text))
                self.assertEqual((status, code), tuple(expected[:2]))
                self.assertIn(expected[2], message)
                self.assertIn("no such rollout", client.error(f"{path}/step", turn("hi"))[2])
        path = client.open()
        # A request that cannot be read never came to it.
        for call, *expected in (
            ("step", 400, "unsupported", "lacks `message`"),
            ("jump", 404, "unsupported", "no `POST"),
        ):
            status, code, message = client.error(f"{path}/{call}", {})
            self.assertEqual((status, code), tuple(expected[:2]))
            self.assertIn(expected[2], message)
        self.assertEqual(client.say(path, "half")["messages"][0]["content"], "?")
        self.assertEqual(client.say(path, "still here")["messages"][0]["content"], "still here!")

    def test_a_body_is_never_the_next_request(self):
        hidden = "GET /v0.1/nothing HTTP/1.1\r\nHost: localhost\r\n\r\n"
        for method, headers, body, status, closes in (
            ("GET", f"Content-Length: {len(hidden)}", hidden, 200, False),
            ("DELETE", f"Content-Length: {len(hidden)}", hidden, 404, False),
            ("GET", "Transfer-Encoding: chunked", f"{len(hidden):x}\r\n{hidden}\r\n0\r\n\r\n", 400, True),
            ("GET", f"Content-Length: {len(hidden)}\r\nContent-Length: 0", hidden, 400, True),
            ("POST", f"Content-Length: 2\r\nTransfer-Encoding: chunked", "{}", 400, True),
            ("POST", "Content-Length: +2", "{}", 400, True),
        ):  # fmt: skip
            with self.subTest(method=method, headers=headers):
                with socket.create_connection(("127.0.0.1", self.process.port), timeout=30) as connection:
                    head = f"{method} /v0.1/info HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n\r\n"
                    connection.sendall((head + body).encode())
                    last = "GET /v0.1/info HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
                    with contextlib.suppress(OSError):
                        connection.sendall(last.encode())
                    said = b""
                    with contextlib.suppress(ConnectionResetError):
                        while piece := connection.recv(1 << 16):
                            said += piece
                told = re.findall(rb"HTTP/1\.1 (\d+)", said)
                self.assertEqual(told, [str(status).encode()] + ([] if closes else [b"200"]), said)

    def test_a_call_that_nobody_waits_for_ends_its_rollout(self):
        path = self.client.open()
        with contextlib.closing(Client(self.process.port)) as other:
            body = json.dumps(turn("wait"))
            other.http.request("POST", f"/v0.1/{path}/step", body, {"Content-Type": "application/json"})
            time.sleep(0.1)
        for _ in range(50):
            status, answer = self.client.send("POST", f"/v0.1/{path}/step", turn("hi"))
            if status == 409 and "no such rollout" in answer["error"]["message"]:
                return
            time.sleep(0.05)
        self.fail("it is still there")

    def test_one_configuration_does_not_wait_for_another(self):
        def meet(words, answers):
            with contextlib.closing(Client(self.process.port)) as client:
                answers.append(client.send("POST", "/v0.1/configure", {"args": {"meet": True, "words": words}})[0])

        answers = []
        threads = [threading.Thread(target=meet, args=(words, answers)) for words in (1, 2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        self.assertEqual(answers, [200, 200])

    def test_only_names_of_this_machine_reach_it(self):
        own = [(host, 200) for host in ("127.0.0.1:9", "localhost")]
        for host, status in (*own, ("evil.example", 403), ("[::1]:80", 403), ("", 403)):
            with self.subTest(host=host):
                client = Client(self.client.http.port)
                self.assertEqual(client.send("GET", "/v0.1/info", None, {"Host": host})[0], status)
                client.close()

    def test_rollouts_run_side_by_side(self):
        def meet(answers):
            with contextlib.closing(Client(self.process.port)) as client:
                answers.append(client.say(client.open(), "meet")["messages"][0]["content"])

        answers = []
        threads = [threading.Thread(target=meet, args=(answers,)) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        self.assertEqual(answers, ["meet!", "meet!"])

    def test_each_rollout_draws_as_if_it_were_alone(self):
        def draws(seed, into):
            with contextlib.closing(Client(self.process.port)) as client:
                path = client.open(seed)
                into[seed] = [client.say(path, "draw")["messages"][0]["content"] for _ in range(3)]

        alone, together = {}, {}
        for seed in range(6):
            draws(seed, alone)
        threads = [threading.Thread(target=draws, args=(seed, together)) for seed in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        self.assertEqual(alone, together)
        self.assertEqual(len({text for texts in alone.values() for text in texts}), 18)
        self.assertTrue(all(text.endswith("True]") for texts in alone.values() for text in texts))

    def test_what_is_dropped_is_let_go_on_its_own_thread(self):
        client = self.client
        watch = client.open()
        let_go = lambda: client.say(watch, "let go")["metrics"][0]["value"]
        before = let_go()
        dropped, scored = client.open(), client.open()
        self.assertEqual(client.send("DELETE", f"/v0.1/{dropped}"), (200, {}))
        self.assertEqual(client.send("DELETE", f"/v0.1/{dropped}"), (200, {}))
        client.call(f"{scored}/score", {"truncated": None})
        for _ in range(6):
            if let_go() >= before + 2:
                return
            time.sleep(0.05)
        self.fail("it is still held")


class Ends(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = temporary.name

    def refused(self, *words, code=CODE):
        process = Process(self.folder, *words, code=code)
        status, out, err = process.end()
        lines = [line for line in err.splitlines() if line.startswith("error: ")]
        self.assertEqual((status, process.ready, out, len(lines)), (2, "", "", 1), err)
        return lines[0]

    def test_signals_end_it_well(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            process = Process(self.folder)
            with contextlib.closing(Client(process.port)) as client:
                client.say(client.open(), "print")
            self.assertEqual(process.end(number), (0, "", "to the log\n"))

    def test_rollouts_that_nobody_asks_for_expire(self):
        process = Process(self.folder, "--expire", "0.2")
        self.addCleanup(process.end)
        client = Client(process.port)
        self.addCleanup(client.close)
        path = client.open()
        until = time.monotonic() + 30
        while time.monotonic() < until:
            time.sleep(0.5)
            status, code, message = client.error(f"{path}/step", turn("hi"))
            if code == "invalid_state":
                self.assertIn("nobody asked for it", message)
                return
        self.fail("it is still there")

    def test_a_call_that_hangs_expires(self):
        process = Process(self.folder, "--expire", "0.3")
        self.addCleanup(process.end)
        client = Client(process.port)
        self.addCleanup(client.close)
        status, code, message = client.error(f"{client.open()}/step", turn("hang"))
        self.assertEqual((status, code), (413, "limit"))
        self.assertIn("took longer than 0.3 s (`--expire`)", message)
        watch = client.open()
        for _ in range(6):
            if client.say(watch, "let go")["metrics"][0]["value"]:
                return
            time.sleep(0.05)
        self.fail("what it held is still held")

    def test_without_room_it_says_so(self):
        # The soft limit is raised: 50 connections, 21 rollouts.
        process = Process(self.folder, files=(100, 200))
        self.addCleanup(process.end)
        client = Client(process.port)
        self.addCleanup(client.close)
        with contextlib.ExitStack() as stack:
            idle = [stack.enter_context(socket.create_connection(("127.0.0.1", process.port))) for _ in range(150)]
            paths = [client.open() for _ in range(21)]
            self.assertTrue(idle)
            with self.assertRaisesRegex(AssertionError, r"413, .*21 rollouts are alive.*`max_concurrent`"):
                client.open()
        for path in paths[1:]:
            client.say(path, "hi")
        client.send("DELETE", f"/v0.1/{paths[0]}")
        for _ in range(50):
            with contextlib.suppress(AssertionError):
                client.say(client.open(), "hi")
                return
            time.sleep(0.02)
        self.fail("there is still no room")

    def test_slow_requests_are_cut_off(self):
        sys.path.insert(0, str(SOURCES))
        from prl_env import serve

        connections = serve.Connections(3)
        pairs = [socket.socketpair() for _ in range(3)]
        for (here, _), idle in zip(pairs, (True, False, None)):
            connections.mark(here, idle)
        self.assertFalse(connections.has_room())
        with unittest.mock.patch.object(serve, "REQUEST", -1.0):
            connections.end_slow()
        ended = lambda: [bool(select.select([there], [], [], 0)[0]) for _, there in pairs]
        self.assertEqual(ended(), [False, True, False])
        connections.end_idle()
        self.assertEqual(ended(), [True, True, False])
        connections.end_idle()
        for here, there in pairs:
            connections.remove(here)
            here.close()
            there.close()
        self.assertTrue(connections.has_room())

    def test_what_is_wrong_is_one_line(self):
        first = Process(self.folder)
        self.addCleanup(first.end)
        taken = self.refused("--port", str(first.port))
        self.assertIn(f"cannot listen on 127.0.0.1:{first.port}: Address already in use", taken)
        self.assertIn("ModuleNotFoundError: No module named 'torch_of_yore'", self.refused(code="import torch_of_yore"))
        self.assertIn("SystemExit: 9", self.refused(code="raise SystemExit(9)"))
        self.assertIn("holds no Environment", self.refused(code="x = 1"))
        self.assertIn("70000 is no port", self.refused("--port", "70000"))
        self.assertIn("--expire", self.refused("--expire", "nan"))
        judge = CODE.replace('role: str = ""', 'role: str = "judge"')
        self.assertIn("asks the host for models (`judge`)", self.refused(code=judge))
        for given, words in (("none/here", "no such file or folder"), ("no.module", "file, folder or module")):
            command = [sys.executable, "-m", "prl_env.serve", given]
            done = subprocess.run(
                command, env=dict(os.environ, PYTHONPATH=str(SOURCES)), capture_output=True, text=True
            )
            self.assertEqual((done.returncode, done.stdout, len(done.stderr.splitlines())), (2, "", 1), done.stderr)
            self.assertIn(words, done.stderr)


if __name__ == "__main__":
    unittest.main()
