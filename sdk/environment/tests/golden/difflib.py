"""Writes difflib.json: [a, b, SequenceMatcher(None, a, b).ratio()] for the test of `prl_env::ratio`.

usage: python3 difflib.py > difflib.json
"""

import sys

# The script's own folder comes first on the path and this file is named like the module it needs.
sys.path.pop(0)
import json
import random
from difflib import SequenceMatcher

rng = random.Random(20)
cases = [("", ""), ("", "a"), ("a", ""), ("abc", "abc"), ("olleh dlrow", "hello world"), ("ééß∂😀", "😀∂ßé")]


def text(alphabet, n):
    return "".join(rng.choice(alphabet) for _ in range(n))


def edited(s, edits, alphabet):
    s = list(s)
    for _ in range(edits):
        i = rng.randrange(len(s) + 1)
        s[i : i + rng.randrange(3)] = text(alphabet, rng.randrange(3))
    return "".join(s)


for alphabet in ("ab", "abc ", "abcdefghijklmnopqrstuvwxyz "):
    for _ in range(25):
        a = text(alphabet, rng.randrange(0, 40))
        cases.append((a, text(alphabet, rng.randrange(0, 40))))
        cases.append((a, edited(a, rng.randrange(1, 8), alphabet)))
# Around and above the length from which popular characters are set aside.
wide = "".join(chr(c) for c in range(0x4E00, 0x4E00 + 300)) + "abcdefgh "
for n in (198, 199, 200, 201, 230, 400):
    for alphabet in ("abcd ", "abcdefghijklmnopqrstuvwxyz ", wide):
        b = text(alphabet, n)
        cases.append((edited(b, 12, alphabet), b))
        cases.append((b, edited(b, 12, alphabet)))
cases.append((text("ab", 60), text("ab", 300)))

rows = ",\n".join(json.dumps([a, b, SequenceMatcher(None, a, b).ratio()], ensure_ascii=False) for a, b in cases)
print(f"[\n{rows}\n]")
