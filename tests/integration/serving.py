"""A `prl inference` of a test's own."""

import json
import re
import subprocess
import threading
import urllib.request


def post(url, path, body):
    request = urllib.request.Request(url + path, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as answer:
        return json.load(answer)


class Serving:
    """A server on a free port of this machine; ended, and its exit code looked at, at the end of the context."""

    def __init__(self, prl, folder, *words, env=None):
        command = [prl, "inference", "--model.name", folder, "--server.port", "0", "--device", "cpu", *words]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env)
        for line in self.process.stdout:
            found = re.match(r"Serving .* on (http://\S+)$", line)
            if found:
                self.url = found[1]
                # Its words must not fill the pipe.
                threading.Thread(target=self.process.stdout.read, daemon=True).start()
                return
        raise SystemExit(f"the server does not start: {self.process.wait()}")

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        self.process.terminate()
        code = self.process.wait(60)
        # The usual code of SIGTERM.
        assert kind is not None or code == 143, code
