"""Keep a growing list of names sorted, turn after turn.

The first turn shows names to sort by first or by last name; each further turn brings more, and wants the whole list
again with the new ones marked. The reward is how near each turn's list comes to the right one."""

import re
from difflib import SequenceMatcher
from pathlib import Path
from typing import Annotated

import prl_env as prl

__version__ = "1.0.0"

HERE = Path(__file__).parent
FIRST = prl.load_lines(HERE / "names" / "first.txt")
LAST = prl.load_lines(HERE / "names" / "last.txt")
NEW = " // new name!"
EVAL_TASKS, EVAL_SEED = 256, 1337420


def tag_of(turn: int) -> str:
    """The tag that a turn's answer stands in."""
    return "alphabetical_sorted" if turn == 0 else "combined_alphabetical_sorted"


def similarity(said: str, turn: int, truth: list[str]) -> list[float]:
    """How near each list in a turn's message comes to the right one, lower case and blank lines aside."""
    expected = "\n".join(line.strip().lower() for line in truth)
    near = []
    for inside in re.findall(f"<{tag_of(turn)}>(.*?)</{tag_of(turn)}>", said, re.DOTALL):
        lines = "\n".join(line.strip().lower() for line in inside.split("\n") if line.strip())
        near.append(SequenceMatcher(None, lines, expected).ratio() if lines and expected else 0.0)
    return near


def turn_score(attempts: list[float]) -> float:
    """The last of a turn's attempts; several count only if each is better than the one before."""
    if not attempts or any(later <= earlier for earlier, later in zip(attempts, attempts[1:])):
        return 0.0
    return attempts[-1]


def shape(tag: str, names: list[str]) -> str:
    """What an answer looks like."""
    return "\n\nUse exactly this format:\n<{0}>\n{1}\n</{0}>".format(tag, "\n".join(names))


def episode(rng, min_turns: int, max_turns: int, least: int, most: int) -> dict:
    """The user's turns and the right list after each of them."""
    counts = [rng.randint(least, most) for _ in range(rng.randint(min_turns, max_turns))]
    # Each first and each last name is there once, so that there is one right order.
    people = list(zip(rng.sample(FIRST, sum(counts)), rng.sample(LAST, sum(counts))))
    by_first = rng.random() < 0.5
    label = "FIRST" if by_first else "LAST"
    known, turns, truths = [], [], []
    for turn, count in enumerate(counts):
        fresh, people = people[:count], people[count:]
        known = sorted(known + fresh, key=lambda name: name[0 if by_first else 1])
        shown = ", ".join("".join(name) for name in fresh)
        if turn == 0:
            text = f"Sort these names in alphabetical order by {label} name: {shown}"
            text += shape(tag_of(0), [f"Name{at}" for at in range(1, rng.randint(least, most) + 1)])
        else:
            text = f"Now sort all of these names by {label} name, together with the list so far: {shown}\n\n"
            text += f"Write `{NEW.strip()}` behind each name that was not in the list before."
            if turn == 1:
                example = [f"Name{at}" + (NEW if rng.random() < 0.5 else "") for at in range(1, rng.randint(2, 6) + 1)]
                text += shape(tag_of(1), example)
            else:
                text += " Keep to the format of before."
        turns.append(text)
        truths.append(["".join(name) + (NEW if turn and name in fresh else "") for name in known])
    return {"user_turns": turns, "ground_truths": truths}


class AlphabetSort(prl.MultiTurnEnv):
    """Replays the user's turns and scores all of the model's."""

    def __init__(self, similarity_power: int, power_per_turn: bool, **options) -> None:
        self.power, self.per_turn = similarity_power, power_per_turn
        super().__init__(**options)

    def env_response(self, state):
        said, turns = state["turn"], state["info"]["user_turns"]
        return turns[said] if said < len(turns) else prl.Turn(stop=prl.Stop("all_sorted"))

    def scores(self, completion, info) -> list[float]:
        """One per turn of the task; those that the model did not come to are 0."""
        said = [message.text for message in completion if message["role"] == "assistant"]
        scores = []
        for turn, truth in enumerate(info["ground_truths"]):
            near = similarity(said[turn], turn, truth) if turn < len(said) else []
            scores.append(turn_score([value**self.power for value in near] if self.per_turn else near))
        return scores

    @prl.reward
    def alphabet_sort(self, completion, info):
        """The mean nearness of the turns' lists, to the power `similarity_power`."""
        scores = self.scores(completion, info)
        mean = sum(scores) / len(scores)
        return mean if self.per_turn else mean**self.power

    @prl.metric
    def format(self, completion, info):
        """The share of turns with the right tag."""
        said = [message.text for message in completion if message["role"] == "assistant"]
        turns = len(info["user_turns"])
        there = [f"<{tag_of(turn)}>" in text and f"</{tag_of(turn)}>" in text for turn, text in enumerate(said[:turns])]
        return sum(there) / turns


def load_environment(
    min_turns: Annotated[int, prl.Arg("least turns of a task", min=1, max=20)] = 1,
    max_turns: Annotated[int, prl.Arg("most turns of a task", min=1, max=20)] = 3,
    min_names_per_turn: Annotated[int, prl.Arg("least names that a turn brings", min=1, max=30)] = 1,
    max_names_per_turn: Annotated[int, prl.Arg("most names that a turn brings", min=1, max=30)] = 5,
    similarity_power: Annotated[int, prl.Arg("power that a nearness is raised to", min=1, max=100)] = 4,
    power_per_turn: Annotated[bool, "whether each turn is raised before the mean, or the mean after it"] = True,
) -> prl.Environment:
    if min_turns > max_turns:
        raise prl.InvalidConfig(f"min_turns = {min_turns} must not be more than max_turns = {max_turns}")
    if min_names_per_turn > max_names_per_turn:
        raise prl.InvalidConfig(
            f"min_names_per_turn = {min_names_per_turn} must not be more than max_names_per_turn = {max_names_per_turn}"
        )

    def task(rng):
        info = episode(rng, min_turns, max_turns, min_names_per_turn, max_names_per_turn)
        return {"question": info["user_turns"][0], "info": info, "max_turns": len(info["user_turns"])}

    return AlphabetSort(
        similarity_power,
        power_per_turn,
        dataset=prl.procedural(task),
        eval_dataset=prl.procedural(task, size=EVAL_TASKS, seed=EVAL_SEED),
        tags=["text", "multi-turn"],
    )
