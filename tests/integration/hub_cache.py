"""The cache of hub repositories, shared with huggingface_hub: what one has fetched the other finds, and neither fetches it
again. Against a stand-in of the hub that keeps large files elsewhere, on the loopback interface.

Usage: hub_cache.py PRL MODEL SCRATCH
"""

import hashlib
import http.server
import json
import os
import pathlib
import subprocess
import sys
import threading
import urllib.parse

PRL, MODEL, SCRATCH = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3])
COMMIT = "0123456789abcdef0123456789abcdef01234567"
REPO = "some-one/rows"
ROWS = "".join(json.dumps({"prompt": f"say {i}", "completion": f"here is {i}"}) + "\n" for i in range(40)).encode()
FILES = {"README.md": b"# Rows", "data/train part 1.jsonl": ROWS, "data/test.jsonl": ROWS[:200]}
LARGE = "data/train part 1.jsonl"
asked = []


class Hub(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def answer(self, status, headers, body):
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def do_GET(self):
        path = urllib.parse.unquote(self.path.split("?")[0])
        elsewhere = self.server is other
        asked.append((self.command, path, elsewhere, self.headers.get("Authorization")))
        if path == f"/api/datasets/{REPO}/revision/main":
            siblings = [{"rfilename": name, "size": len(data)} for name, data in FILES.items()]
            return self.answer(200, {"Content-Type": "application/json"}, json.dumps({"sha": COMMIT, "siblings": siblings}).encode())
        name = path.split(f"/resolve/{'main' if '/resolve/main/' in path else COMMIT}/")[-1]
        data = FILES.get(name)
        if data is None:
            return self.answer(404, {}, b"")
        if name == LARGE and not elsewhere:
            headers = {
                "Location": f"http://127.0.0.1:{other.server_port}{self.path}?signed",
                "X-Linked-Etag": f'"{hashlib.sha256(data).hexdigest()}"',
                "X-Linked-Size": str(len(data)),
                "X-Repo-Commit": COMMIT,
            }
            return self.answer(302, headers, b"")
        sum = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
        self.answer(200, {"ETag": f'"{sum}"', "X-Repo-Commit": COMMIT}, data)

    do_HEAD = do_GET


def serve():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


hub, other = serve(), serve()
fetched = lambda: [path for method, path, _, _ in asked if method == "GET" and "/resolve/" in path]


def environment(cache, **more):
    return {
        **os.environ,
        "HF_HOME": str(SCRATCH / cache),
        "HF_ENDPOINT": f"http://127.0.0.1:{hub.server_port}",
        "HF_TOKEN": "hf_secret",
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_OFFLINE": "0",
        "NO_PROXY": "127.0.0.1",
        **more,
    }


def train(cache, out, **more):
    words = f"sft --model.name {MODEL} --data.name {REPO} --data.seq-len 64 --data.batch-size 2 --max-steps 1"
    done = subprocess.run(
        [PRL, *words.split(), "--output-dir", str(SCRATCH / out)], env=environment(cache, **more), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "40 conversations (train)" in done.stdout, done.stdout


def python(cache, code, **more):
    code = f"from huggingface_hub import hf_hub_download, scan_cache_dir\nget = lambda name, **more: hf_hub_download('{REPO}', name, repo_type='dataset', **more)\n{code}"
    done = subprocess.run([sys.executable, "-c", code], env=environment(cache, **more), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


SCRATCH.mkdir(parents=True)
# Ours, then theirs.
train("ours", "first")
assert len(fetched()) == 3, asked
path = python("ours", f"print(get('{LARGE}', local_files_only=True)); assert not scan_cache_dir().warnings")[-1]
assert pathlib.Path(path).read_bytes() == ROWS
before = len(fetched())
assert python("ours", f"print(get('{LARGE}'))")[-1] == path
assert len(fetched()) == before, "huggingface_hub fetches again what is there"
# Theirs, then ours.
theirs = python("theirs", f"print(get('{LARGE}')); get('README.md'); get('data/test.jsonl')")[-1]
assert os.readlink(theirs) == os.readlink(path), (theirs, path)
before = len(fetched())
train("theirs", "second", HF_HUB_OFFLINE="1")
train("theirs", "third")
assert len(fetched()) == before, "prl fetches again what is there"
for method, path, elsewhere, token in asked:
    assert "/resolve/" not in path or (token is None) == elsewhere, (method, path, token)
print(f"hub cache: {len(fetched())} downloads, the rest was found")
