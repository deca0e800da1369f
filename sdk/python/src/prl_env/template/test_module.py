"""The environment's own tests. Run with pytest, or `python test_{{module}}.py`."""

from prl_env.testing import Harness

import {{module}}


def test_the_right_answer_gets_everything():
    harness = Harness({{module}})
    task = harness.task("train", 0)
    played = harness.answer(task, f"<reversed_text>{task.answer}</reversed_text>")
    assert (played.reward, played.value("right"), played.stop) == (1.0, 1.0, "answered")
    assert harness.answer(task, task.answer).reward == 0.0


def test_it_conforms():
    assert Harness({{module}}, {"words": 2}).conforms() > 0


if __name__ == "__main__":
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            test()
    print("ok")
