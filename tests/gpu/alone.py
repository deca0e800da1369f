"""Whether requests' tokens depend on what runs beside them: under `prl inference --exact` they do not.

    python3 tests/gpu/alone.py http://127.0.0.1:8000 VOCABULARY COUNT [ADAPTER …]

COUNT requests with seeds one after the other, then again at once among twice as many others; tokens and log-probabilities are
compared to the bit; no prompt finds what the first time left in the server's cache. With names of loaded adapters, requests have these in turns, and none.
"""

import concurrent.futures
import json
import sys
import urllib.request

from mixed import work


def ask(url, seed, ids, new, adapter, salt):
    sampling = {"max_tokens": new, "temperature": 1.0, "ignore_eos": True, "seed": seed, "logprobs": 0}
    body = {"token_ids": ids, "sampling_params": sampling, "cache_salt": salt} | ({"model": adapter} if adapter else {})
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(url + "/inference/v1/generate", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=600) as answer:
        choice = json.load(answer)["choices"][0]
    return choice["token_ids"], [token["logprob"] for token in choice["logprobs"]["content"]]


def main():
    try:
        url, vocab, count, adapters = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), [None, *sys.argv[4:]]
    except (IndexError, ValueError):
        print(__doc__, file=sys.stderr)
        sys.exit(2)
    requests = [
        (url, seed, ids, new, adapters[seed % len(adapters)]) for seed, (ids, new) in enumerate(work(3 * count, vocab))
    ]
    alone = [ask(*request, "alone") for request in requests[:count]]
    with concurrent.futures.ThreadPoolExecutor(len(requests)) as pool:
        together = list(pool.map(lambda request: ask(*request, "together"), reversed(requests)))[::-1]
    tokens = sum(a[0] == b[0] for a, b in zip(alone, together))
    bits = sum(a == b for a, b in zip(alone, together))
    print(f"{count} requests alone and among others: {tokens} have the same tokens, {bits} the same log-probabilities too")
    sys.exit(0 if bits == count else 1)


if __name__ == "__main__":
    main()
