"""Guess a five-letter word in six guesses.

The model writes each guess in <guess> tags and is told for each letter whether it is right (G), elsewhere in the word
(Y), or not in it (X). What is no guess costs a turn, not a guess; there are only so many of them."""

from pathlib import Path
from typing import Annotated

import prl_env as prl

__version__ = "1.0.0"

HERE = Path(__file__).parent
ANSWERS = prl.load_lines(HERE / "words" / "answers.txt")
GUESSES = frozenset(prl.load_lines(HERE / "words" / "guesses.txt"))
# Every eighth answer is kept for the eval split, so that training never sees it.
EVAL = ANSWERS[7::8]
TRAIN = [word for at, word in enumerate(ANSWERS) if at % 8 != 7]
LENGTH = 5

RULES = """You are playing Wordle. Find the secret word of five letters in at most {guesses} guesses. Each guess must be \
an English word of five letters, written as <guess>crane</guess>. I answer with one letter for each of yours: G if it is \
right, Y if it stands elsewhere in the word, X if it is not in the word (or not that often)."""


def feedback(guess: str, answer: str) -> str:
    """G, Y and X for a guess. A letter is Y only as often as the answer has it beside its Gs."""
    left = [letter for letter, said in zip(answer, guess) if letter != said]
    marks = []
    for letter, said in zip(answer, guess):
        if letter == said:
            marks.append("G")
        elif said in left:
            left.remove(said)
            marks.append("Y")
        else:
            marks.append("X")
    return "".join(marks)


class Wordle(prl.MultiTurnEnv):
    """The game: `state["guesses"]` holds guesses and their feedback, `state["misses"]` counts what was no guess."""

    def __init__(self, guesses: int, misses: int, **options) -> None:
        self.most, self.most_misses = guesses, misses
        super().__init__(parser=prl.XMLParser(["guess"], answer_field="guess"), max_turns=guesses + misses, **options)

    def setup_state(self, state):
        state.update(guesses=[], misses=0)

    def refusal(self, guess, state) -> str | None:
        """Why it is no guess, if it is none."""
        if guess is None:
            return "I found no <guess>...</guess>."
        if len(guess) != LENGTH or not guess.isascii() or not guess.isalpha():
            return f"A guess has {LENGTH} letters."
        if guess in (known for known, _ in state["guesses"]):
            return f"You guessed {guess} before."
        return None if guess in GUESSES else f"{guess} is not in the list of words."

    def env_response(self, messages, state):
        guess = self.parser.parse(messages[-1].text, last=True).guess
        guess = None if guess is None else guess.lower()
        refused = self.refusal(guess, state)
        if refused:
            state["misses"] += 1
            if state["misses"] > self.most_misses:
                return prl.Turn(stop=prl.Stop("too_many_misses"))
            return f"{refused} You have {self.most - len(state['guesses'])} guesses left."
        marks = feedback(guess, state["answer"])
        state["guesses"].append((guess, marks))
        if guess == state["answer"]:
            return prl.Turn(stop=prl.Stop("solved"))
        left = self.most - len(state["guesses"])
        if not left:
            return prl.Turn(
                f"{' '.join(guess.upper())}\n{' '.join(marks)}\nIt was {state['answer']}.", stop=prl.Stop("lost")
            )
        return f"{' '.join(guess.upper())}\n{' '.join(marks)}\nYou have {left} guess{'es' * (left > 1)} left."

    @prl.reward(weight=1.0)
    def solved(self, state):
        """Whether the word was found."""
        return any(guess == state["answer"] for guess, _ in state["guesses"])

    @prl.reward(weight=0.2)
    def letters(self, state):
        """The best guess's letters: 1 for each that is right and ½ for each that is elsewhere, over five."""
        return max(((marks.count("G") + marks.count("Y") / 2) / LENGTH for _, marks in state["guesses"]), default=0.0)

    @prl.reward(weight=0.2)
    def quick(self, state):
        """1 for the first guess, down to 0 where it was not found."""
        found = next((at for at, (guess, _) in enumerate(state["guesses"]) if guess == state["answer"]), self.most)
        return 1 - found / self.most

    @prl.metric
    def guesses(self, state):
        """Guesses taken."""
        return len(state["guesses"])

    @prl.metric
    def misses(self, state):
        """Turns that were no guess."""
        return state["misses"]


def load_environment(
    guesses: Annotated[int, prl.Arg("guesses that a game has", min=1, max=20)] = 6,
    misses: Annotated[int, prl.Arg("turns without a guess that are forgiven", min=0, max=20)] = 3,
) -> prl.Environment:
    rules = RULES.format(guesses=guesses)
    return Wordle(
        guesses,
        misses,
        dataset=prl.procedural(lambda rng: {"question": rules, "answer": rng.choice(TRAIN)}),
        eval_dataset=[{"question": rules, "answer": word, "key": f"eval/{word}"} for word in prl.shuffled(EVAL, 0)],
        tags=["game", "multi-turn"],
    )
