"""Weights over NCCL, from the GPU that trains to the servers on other GPUs: right, fast, and with an end to every wait.

    python3 tests/gpu/nccl.py PRL RL.TOML MODEL [LARGE]

MODEL is the folder that RL.TOML trains, with GPU 0 for `prl rl` and GPU 1 for `prl inference`. Shown are: with `--exact` what is
sampled is what was trained, to the last bits; a trainer that was killed keeps nobody out, and the next one goes on from its
checkpoint; a server that is stopped or killed in an update ends the run with its address in the message; 1,000 updates leave nothing
behind. With the folder of a larger model, which must have MODEL's tokenizer, another model than is served is refused, and the time
from an update to its use is taken over NCCL and through folders.
"""

import http.server
import json
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

PORT, DOOR = 8311, 8312
URL = f"http://localhost:{PORT}/v1"
PATIENCE = 8


class Server:
    def __init__(self, prl, model, *more):
        words = ["inference", "--device", "cuda:1", "--model.name", model, "--served-model-name", "m", "--server.port", str(PORT)]
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen([prl, *words, *more], stdout=self.log, stderr=self.log)
        for _ in range(600):
            try:
                return urllib.request.urlopen(f"http://localhost:{PORT}/health").close()
            except OSError:
                if self.process.poll() is not None:
                    break
                time.sleep(0.1)
        sys.exit(f"error: the server did not start: {self.text()}")

    def text(self):
        self.log.seek(0)
        return self.log.read()

    def end(self):
        self.process.kill()
        self.process.wait()


def rl(prl, toml, out, *more, way="nccl", steps=6):
    words = ["rl", "@", toml, "--device", "cuda:0", "--output-dir", str(out), "--max-steps", str(steps)]
    words += ["--orchestrator.model.client.base-url", URL, "--weight-broadcast.type", way, "--no-orchestrator.eval"]
    words += ["--weight-broadcast.timeout", str(PATIENCE)] if way == "nccl" else []
    return [prl, *words, "--log.level", "debug", *more]


def run(words):
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    return done.returncode, done.stdout + done.stderr


def series(out, key):
    lines = (pathlib.Path(out) / "metrics.jsonl").read_text().splitlines()
    return [line[key] for line in map(json.loads, lines) if key in line]


class Door(http.server.ThreadingHTTPServer):
    """Passes a trainer's requests on to the server, which gets a signal just before the update of this number."""

    def __init__(self, server, at, end):
        door, self.daemon_threads, self.updates = self, True, 0

        class Handler(http.server.BaseHTTPRequestHandler):
            def log_message(self, *_):
                pass

            def do_POST(self):
                door.updates += self.path == "/update_weights"
                if self.path == "/update_weights" and door.updates == at:
                    server.process.send_signal(end)
                body = self.rfile.read(int(self.headers["content-length"]))
                self.answer(urllib.request.Request(f"http://localhost:{PORT}{self.path}", body, {"content-type": "application/json"}))

            def do_GET(self):
                self.answer(f"http://localhost:{PORT}{self.path}")

            def answer(self, request):
                # What breaks off there breaks off here.
                with urllib.request.urlopen(request, timeout=60) as answer:
                    self.send_response(answer.status)
                    self.end_headers()
                    self.wfile.write(answer.read())

        super().__init__(("localhost", DOOR), Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, *_):
        pass


def check(what, good, said=""):
    print(f"{'ok  ' if good else 'FAIL'} {what}", flush=True)
    if not good:
        print(said[-3000:], flush=True)
        sys.exit(1)


def wait_for_step(out, step):
    for _ in range(1200):
        try:
            if max(series(out, "step"), default=0) >= step:
                return
        except OSError:
            pass
        time.sleep(0.05)
    sys.exit(f"error: no step {step} in {out}")


def updates(out):
    text = "".join(log.read_text() for log in (pathlib.Path(out) / "logs").glob("*.log"))
    times = [float(t) for t in re.findall(r"Servers took the weights of policy v\d+ in ([\d.]+) ms", text)]
    if not times:
        sys.exit(f"error: no times of updates in {out}/logs")
    return f"{sorted(times)[len(times) // 2]:.1f} ms (median of {len(times)}, {min(times):.1f} to {max(times):.1f})"


def correct(prl, toml, model, root):
    server = Server(prl, model, "--exact")
    sync = ["--exact", "--orchestrator.max-async-level", "0", "--ckpt.interval", "2"]
    code, said = run(rl(prl, toml, root / "a", *sync))
    check("a run over NCCL", code == 0, said)
    worst = max(series(root / "a", "mismatch_kl/all/max"))
    check(f"what is sampled is what was trained: mismatch_kl at most {worst:.1e}", worst < 1e-9, said)
    check("no weights went through a folder", not (root / "a/broadcasts").exists() or not any((root / "a/broadcasts").iterdir()))
    print(f"     {updates(root / 'a')} from an update to its use")

    trainer = subprocess.Popen(rl(prl, toml, root / "b", *sync, steps=500), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for_step(root / "b", 5)
    trainer.kill()
    trainer.wait()
    code, said = run(rl(prl, toml, root / "b", *sync, "--ckpt.resume-step", "-1", steps=12))
    check("a run whose trainer was killed goes on with the same server", code == 0, said)
    check("with the right weights", max(series(root / "b", "mismatch_kl/all/max")) < 1e-9, said)

    for name, end in [("stopped", signal.SIGSTOP), ("killed", signal.SIGKILL)]:
        out, door, begun = root / name, Door(server, 5, end), time.time()
        admin = ["--orchestrator.model.client.admin-base-url", f"http://localhost:{DOOR}/v1"]
        code, said = run(rl(prl, toml, out, *sync, *admin, steps=500))
        last = "".join(line for line in said.splitlines() if line.startswith("error"))
        good = code == 1 and f"localhost:{DOOR}" in last
        check(f"a server {name} in an update ends the run, {time.time() - begun:.0f} s after its start: {last}", good, said)
        door.shutdown()
        door.server_close()
        if end == signal.SIGSTOP:
            server.process.send_signal(signal.SIGCONT)
            code, said = run(rl(prl, toml, out, *sync, "--ckpt.resume-step", "-1", steps=8))
            check("which goes on when the server does", code == 0, said)
    server.end()


def memory(server):
    """Bytes in use on the server's GPU, and the server's own in main memory, MiB each."""
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "--id=1"]
    status = pathlib.Path(f"/proc/{server.process.pid}/status").read_text()
    return int(subprocess.check_output(query)), int(re.search(r"VmRSS:\s+(\d+)", status)[1]) // 1024


def many(prl, toml, model, root):
    server = Server(prl, model)
    trainer = subprocess.Popen(rl(prl, toml, root / "many", steps=1000), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for_step(root / "many", 200)
    before = memory(server)
    code = trainer.wait(timeout=200)
    after = memory(server)
    text = f"after 200 and after 1,000 updates under load the server holds {before[0]} and {after[0]} MiB of its GPU, {before[1]} and {after[1]} of memory"
    check(text, code == 0 and after[0] <= before[0] + 16 and after[1] <= before[1] + 64)
    print(f"     {updates(root / 'many')} from an update to its use")
    server.end()


def refused(prl, toml, other, root):
    server = Server(prl, other)
    code, said = run(rl(prl, toml, root / "no"))
    check("another model than is served is refused", code == 2 and "another one than is served" in said, said)
    check("before there is a run folder", not (root / "no").exists())
    server.end()


def timed(prl, toml, model, root):
    for way in ("nccl", "filesystem"):
        server = Server(prl, model)
        few = ["--model.name", model, "--orchestrator.batch-size", "16", "--orchestrator.group-size", "4", "--no-ckpt"]
        code, said = run(rl(prl, toml, root / f"large_{way}", *few, way=way, steps=8))
        check(f"eight updates of a larger model, {way}", code == 0, said)
        print(f"     {updates(root / f'large_{way}')} from an update to its use")
        shutil.rmtree(root / f"large_{way}")
        server.end()


def main():
    if len(sys.argv) not in (4, 5):
        print(__doc__, file=sys.stderr)
        sys.exit(2)
    prl, toml, model, *large = sys.argv[1:]
    with tempfile.TemporaryDirectory() as root:
        root = pathlib.Path(root)
        correct(prl, toml, model, root)
        many(prl, toml, model, root)
        if large:
            refused(prl, toml, large[0], root)
            timed(prl, toml, large[0], root)


if __name__ == "__main__":
    main()
