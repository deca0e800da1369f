"""`prl inference` under load: many streaming clients, random cancels, weight updates meanwhile.

Usage: server_load.py PRL_BINARY MODEL_FOLDER SCRATCH_FOLDER [SECONDS [CLIENTS]]

Nothing leaks (keys and values return to what is kept, nobody runs or waits at the end), every answer is its caller's own (it
begins with what a quiet server says, under the weights that its tokens were drawn with), `/health` stays quick, and after
updates nothing of old weights shows in new answers.
"""

import asyncio
import json
import random
import shutil
import statistics
import subprocess
import sys
import time

import httpx
import numpy as np
from safetensors.numpy import load_file, save_file
from serving import Serving

prl, folder, other = sys.argv[1], sys.argv[2], sys.argv[3] + "/other"
seconds = float(sys.argv[4]) if len(sys.argv) > 4 else 300
clients = int(sys.argv[5]) if len(sys.argv) > 5 else 256
NEW, UPDATE_EVERY = 24, 2.0
random.seed(7)


# In a process of its own: the callers keep this one busy.
DOCTOR = """
import http.client, sys, time
from urllib.parse import urlsplit
place = urlsplit(sys.argv[1])
connection = http.client.HTTPConnection(place.hostname, place.port, timeout=60)
stop = time.monotonic() + float(sys.argv[2])
while time.monotonic() < stop:
    begun = time.perf_counter()
    connection.request("GET", "/health")
    answer = connection.getresponse()
    answer.read()
    assert answer.status == 200, answer.status
    print(time.perf_counter() - begun)
    time.sleep(0.05)
"""


def change():
    """Other weights of the same shape."""
    shutil.copytree(folder, other, dirs_exist_ok=True)
    tensors = load_file(folder + "/model.safetensors")
    rng = np.random.default_rng(1)
    changed = {name: x + rng.normal(0, 0.02, x.shape).astype(x.dtype) for name, x in tensors.items()}
    save_file(changed, other + "/model.safetensors", metadata={"format": "pt"})


def prompt(i):
    # Many share a beginning that spans blocks of the cache.
    return [(7 * j) % 200 + 1 for j in range(40)] + [(i * 31 + j * 17) % 200 + 1 for j in range(i % 23 + 1)]


def params(i, **more):
    return {"max_tokens": NEW, "temperature": 0, "ignore_eos": True, **more}


async def quiet(client, url, i):
    answer = await client.post(url + "/inference/v1/generate", json={"token_ids": prompt(i), "sampling_params": params(i)})
    assert answer.status_code == 200, answer.text
    choice = answer.json()["choices"][0]
    return choice["token_ids"]


def metric(text, name):
    lines = [line for line in text.splitlines() if line.startswith(name) and not line.startswith("#")]
    return sum(float(line.split()[-1]) for line in lines)


async def main():
    change()
    with Serving(prl, folder, "--max-num-seqs", "64") as server:
        await load(server.url)


async def load(url):
    limits = httpx.Limits(max_connections=clients + 16)
    async with httpx.AsyncClient(timeout=600, limits=limits) as client:
        folders, expected = [folder, other], [{}, {}]
        for which in (1, 0):
            (await client.post(url + "/update_weights", json={"weight_dir": folders[which]})).raise_for_status()
            for i in range(64):
                expected[which][i] = await quiet(client, url, i)
        # Even versions from here on are the first folder's.
        version = 10
        assert (await client.post(url + "/update_weights", json={"weight_dir": folder, "version": version})).status_code == 200
        stop, counts = time.monotonic() + seconds, {"whole": 0, "cut": 0, "mixed": 0, "tokens": 0}

        async def caller(number):
            own = random.Random(number)
            while time.monotonic() < stop:
                i, ids, versions = own.randrange(64), [], []
                leave = own.randrange(1, NEW) if own.random() < 0.4 else None
                body = {"token_ids": prompt(i), "sampling_params": params(i), "stream": True}
                async with client.stream("POST", url + "/inference/v1/generate", json=body) as answer:
                    assert answer.status_code == 200, await answer.aread()
                    async for line in answer.aiter_lines():
                        if not line.startswith("data: ") or line == "data: [DONE]":
                            continue
                        for choice in json.loads(line[6:])["choices"]:
                            ids += choice["token_ids"]
                            for run in choice["policy_versions"]:
                                versions += [run["version"]] * run["tokens"]
                        if leave is not None and len(ids) >= leave:
                            break
                counts["tokens"] += len(ids)
                counts["cut" if leave is not None else "whole"] += 1
                same = [v for v in versions if v == versions[0]]
                counts["mixed"] += len(same) < len(versions)
                # Up to the first change of weights it is what a quiet server says.
                assert ids[: len(same)] == expected[versions[0] % 2][i][: len(same)], (number, i, versions)
                assert leave is not None or len(ids) == NEW, len(ids)

        async def updater():
            nonlocal version
            while time.monotonic() < stop:
                await asyncio.sleep(UPDATE_EVERY)
                version += 1
                body = {"weight_dir": folders[version % 2], "version": version}
                (await client.post(url + "/update_weights", json=body)).raise_for_status()

        doctor = subprocess.Popen([sys.executable, "-c", DOCTOR, url, str(seconds)], stdout=subprocess.PIPE, text=True)
        await asyncio.gather(updater(), *(caller(number) for number in range(clients)))
        health = [float(word) for word in doctor.communicate(timeout=120)[0].split()]
        assert doctor.returncode == 0 and len(health) > 100, (doctor.returncode, len(health))
        # One update more drops all that is kept for later requests.
        await client.post(url + "/update_weights", json={"weight_dir": folder, "version": version + 1})
        text = (await client.get(url + "/metrics")).text
        for name in ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"):
            assert metric(text, name) == 0, (name, metric(text, name))
        p99 = statistics.quantiles(health, n=100)[98]
        print(f"server_load: {counts}, {version - 10} updates, /health p99 {p99 * 1e3:.1f} ms of {len(health)}")
        assert counts["whole"] > 0 and counts["cut"] > 0


asyncio.run(main())
