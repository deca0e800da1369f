"""Prints some items of every task and their scores under plain CPython, with all that reasoning-gym needs. What the
component is held against; not part of it."""

import json

import reasoning_gym_env
from prl_env.testing import Harness

ASKED = (("train", 0, 5), ("train", 700, 5), ("eval", 3, 5))


def items(task: str) -> list[dict]:
    harness, found = Harness(reasoning_gym_env, {"task": task}), []
    for split, index, seed in ASKED:
        made = harness.task(split, index, seed)
        texts = (f"<answer>{made.answer}</answer>", "<answer>17</answer>", "no")
        scores = [harness.answer(made, text).value("check_answer_reward_func") for text in texts]
        item = {"split": split, "index": index, "seed": seed, "question": made.prompt[-1].text, "answer": made.answer}
        found.append({**item, "scores": scores})
    return found


print(json.dumps({task: items(task) for task in reasoning_gym_env.TASKS}))
