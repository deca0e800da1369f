"""alphabet-sort: its own tests. Run with pytest, or `python test_alphabet_sort.py`."""

import alphabet_sort
from prl_env import InvalidConfig
from prl_env.testing import Harness


def right(task):
    """The right messages, turn by turn."""
    truths = task.info["ground_truths"]
    return ["<{0}>\n{1}\n</{0}>".format(alphabet_sort.tag_of(at), "\n".join(truth)) for at, truth in enumerate(truths)]


def wrong(message):
    """The same with another letter in its names."""
    head, names, tail = message.partition("\n")[0], message.split("\n")[1:-1], message.rpartition("\n")[2]
    return "\n".join([head, *(name.replace("e", "b").replace("a", "e") for name in names), tail])


def test_right_answers_get_everything():
    harness = Harness(alphabet_sort)
    turns = set()
    for index in range(50):
        task = harness.task("train", index, 3)
        played = harness.script(task, right(task))
        assert (played.reward, played.value("format"), played.stop) == (1.0, 1.0, "all_sorted")
        names = [line.removesuffix(alphabet_sort.NEW) for line in task.info["ground_truths"][-1]]
        assert len(set(names)) == len(names)
        turns.add(len(task.info["ground_truths"]))
    assert turns == {1, 2, 3}


def test_the_reward_is_the_mean_of_powers():
    harness = Harness(alphabet_sort, {"min_turns": 2, "max_turns": 2})
    task = harness.task("eval", 0)
    first, second = right(task)
    near = alphabet_sort.similarity(wrong(first), 0, task.info["ground_truths"][0])[0]
    assert 0 < near < 1
    assert harness.script(task, [wrong(first), second]).reward == (near**4 + 1) / 2
    assert harness.script(task, [first, "no list"]).reward == 0.5
    # Attempts count only where each is better than the one before.
    assert harness.script(task, [wrong(first) + first, second]).reward == 1.0
    assert harness.script(task, [first + first, second]).reward == 0.5
    other = Harness(alphabet_sort, {"min_turns": 2, "max_turns": 2, "power_per_turn": False})
    assert other.script(task, [first, "no list"]).reward == 0.5**4
    # Cut off after one turn, the rest counts as 0.
    assert harness.play(task, lambda _: first, max_turns=1).reward == 0.5


def test_arguments_are_checked_and_obeyed():
    task = Harness(alphabet_sort, {"min_names_per_turn": 7, "max_names_per_turn": 7, "max_turns": 1}).task()
    assert len(task.info["ground_truths"][0]) == 7
    for args, words in (
        ({"min_turns": 4}, "min_turns = 4 must not be more than max_turns = 3"),
        ({"max_turns": 0}, "`max_turns` is 0; it must be at least 1"),
        ({"turns": 1}, "unknown argument `turns`"),
    ):
        try:
            Harness(alphabet_sort, args)
        except InvalidConfig as error:
            assert words in str(error)
        else:
            raise AssertionError(args)


def test_it_conforms():
    assert Harness(alphabet_sort).conforms() > 0


if __name__ == "__main__":
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            test()
    print("ok")
