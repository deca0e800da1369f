"""wordle: its own tests. Run with pytest, or `python test_wordle.py`."""

import wordle
from prl_env.testing import Harness


def guess(word: str) -> str:
    return f"hm <guess>{word}</guess>"


def test_the_lists_are_large_and_apart():
    assert len(wordle.ANSWERS) > 2000 and len(wordle.GUESSES) > 12000
    assert set(wordle.ANSWERS) <= wordle.GUESSES and not set(wordle.TRAIN) & set(wordle.EVAL)
    assert all(len(word) == 5 and word.isalpha() and word.islower() for word in wordle.GUESSES)
    harness = Harness(wordle)
    answers = {harness.task("train", index, 1).answer for index in range(300)}
    assert len(answers) > 200 and not answers & set(wordle.EVAL)
    assert harness.info.splits[1].size == len(wordle.EVAL)


def test_feedback_counts_letters():
    for said, answer, marks in (
        ("crane", "crane", "GGGGG"),
        ("geese", "crepe", "XXGXG"),
        ("eerie", "crepe", "YXYXG"),
        ("speed", "erase", "YXYYX"),
        ("allay", "alloy", "GGGXG"),
        ("level", "hotel", "XXXGG"),
    ):
        assert wordle.feedback(said, answer) == marks, (said, answer)


def test_a_game_is_won_or_lost():
    harness = Harness(wordle)
    task = harness.task("eval", 0)
    wrong = [word for word in wordle.ANSWERS if not set(word) & set(task.answer)][:6]
    won = harness.script(task, [*map(guess, wrong[:2]), guess(task.answer.upper())])
    assert (won.stop, won.value("solved"), won.value("guesses")) == ("solved", 1.0, 3.0)
    assert abs(won.reward - (1 + 0.2 + 0.2 * (1 - 2 / 6))) < 1e-12
    assert "X X X X X\nYou have 5 guesses left." in won.messages[2].text
    lost = harness.script(task, map(guess, wrong))
    assert (lost.stop, lost.reward, lost.value("guesses")) == ("lost", 0.0, 6.0)


def test_what_is_no_guess_is_forgiven_a_few_times():
    harness = Harness(wordle)
    task = harness.task("train", 0)
    played = harness.script(task, ["I think", guess("abc"), guess("zzzzz"), guess(task.answer)])
    assert (played.stop, played.value("misses"), played.value("guesses")) == ("solved", 3.0, 1.0)
    assert played.messages[2].text == "I found no <guess>...</guess>. You have 6 guesses left."
    assert played.messages[6].text.startswith("zzzzz is not in the list of words.")
    assert harness.answer(task, "no").stop == "too_many_misses"
    first = next(word for word in wordle.ANSWERS if word != task.answer)
    again = harness.script(task, [guess(first), guess(first), guess(task.answer)])
    assert again.value("misses") == 1.0


def test_it_conforms():
    assert Harness(wordle, {"guesses": 2, "misses": 0}).conforms() > 0


if __name__ == "__main__":
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            test()
    print("ok")
