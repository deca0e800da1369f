"""A component pushed to a real registry server (Debian's docker-registry) on this machine and pulled again.

Usage: real_registry.py PRL_BINARY SCRATCH_FOLDER
"""

import os
import pathlib
import re
import socket
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]


def main() -> None:
    prl, scratch = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
    scratch.mkdir(parents=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    config = scratch / "registry.yml"
    config.write_text(
        f"version: 0.1\nlog: {{level: error, accesslog: {{disabled: true}}}}\n"
        f"storage: {{filesystem: {{rootdirectory: {scratch / 'store'}}}}}\nhttp: {{addr: '127.0.0.1:{port}'}}\n"
    )
    server = subprocess.Popen(["docker-registry", "serve", config], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    environment = dict(os.environ, XDG_CACHE_HOME=str(scratch / "cache"))

    def run(*words: object, code: int = 0) -> str:
        done = subprocess.run([prl, "env", *words], env=environment, capture_output=True, text=True)
        assert done.returncode == code, (words, done.returncode, done.stdout, done.stderr)
        return done.stdout + done.stderr

    try:
        for _ in range(100):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        reference = f"oci://127.0.0.1:{port}/envs/wordle:1.0.0"
        told = run("push", ROOT / "envs/wordle.wasm", reference)
        digest = re.search(r"sha256:[0-9a-f]{64}", told)
        assert digest, told
        run("pull", reference)
        assert "keeps the contract" in run("check", f"{reference}@{digest[0]}", "--tasks", "1")
        # A digest that is not there, and a tag that is not.
        wrong = "sha256:" + "0" * 64
        assert wrong in run("pull", f"{reference}@{wrong}", code=1)
        run("pull", reference.replace("1.0.0", "2.0.0"), code=1)
        # What is in the store is changed: it is refused, by whatever came before.
        blobs = [path for path in (scratch / "store").rglob("data") if path.stat().st_size > 100_000]
        assert len(blobs) == 1, blobs
        blobs[0].write_bytes(blobs[0].read_bytes()[:-1] + b"\0")
        environment["XDG_CACHE_HOME"] = str(scratch / "other")
        told = run("pull", reference, code=1)
        print(f"registry: pushed, pulled and run by digest; a changed file is refused: {told.strip()[:100]}")
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()
