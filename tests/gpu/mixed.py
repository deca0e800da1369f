"""Requests of mixed lengths at once against a server of `prl inference`: new tokens a second.

    python3 tests/gpu/mixed.py http://127.0.0.1:8000 VOCABULARY COUNT

64 to 2,048 random prompt tokens and 32 to 1,024 new ones each, no end before that; always the same ones.
"""

import concurrent.futures
import json
import random
import sys
import time
import urllib.request


def work(count, vocab):
    """Prompts and how many new tokens each is to get."""
    rng = random.Random(7)
    some = lambda least, most: rng.randint(least, most)
    return [([rng.randrange(5, vocab - 5) for _ in range(some(64, 2048))], some(32, 1024)) for _ in range(count)]


def ask(url, ids, new):
    params = {"max_tokens": new, "temperature": 1.0, "ignore_eos": True, "seed": new}
    body = json.dumps({"token_ids": ids, "sampling_params": params}).encode()
    request = urllib.request.Request(url + "/inference/v1/generate", body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as answer:
        return len(json.load(answer)["choices"][0]["token_ids"])


def main():
    try:
        url, vocab, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    except (IndexError, ValueError):
        print(__doc__, file=sys.stderr)
        sys.exit(2)
    requests = work(count, vocab)
    start = time.time()
    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        got = list(pool.map(lambda r: ask(url, *r), requests))
    took = time.time() - start
    if got != [new for _, new in requests]:
        print("error: answers of other lengths than asked for", file=sys.stderr)
        sys.exit(1)
    prompt = sum(len(ids) for ids, _ in requests)
    print(f"{count} requests, {prompt} prompt and {sum(got)} new tokens in {took:.1f} s: {sum(got) / took:.0f} new tokens/s")


if __name__ == "__main__":
    main()
