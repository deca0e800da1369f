"""What a component does not have is noticed natively, with its place. Run with `python -m unittest discover -s
sdk/python/tests`."""

import contextlib
import io
import os
import sys
import tempfile
import unittest
from pathlib import Path

import prl_env as prl
from prl_env import check, contents
from prl_env.testing import Harness, Refused
from prl_env.watch import Hung

HEAD = """import prl_env as prl
from pathlib import Path
env = prl.SingleTurnEnv(dataset=[{"question": "q", "answer": "a"}])
"""


class Watched(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.root = Path(temporary.name).resolve() / "watched"
        (self.root / "data").mkdir(parents=True)
        (self.root / "data/words.txt").write_text("a\n\nb\n")
        self.addCleanup(sys.modules.pop, "watched", None)

    def write(self, text, name="watched.py"):
        (self.root / name).write_text(text)
        sys.modules.pop("watched", None)
        return self.root

    def reward(self, body):
        lines = "".join(f"    {line}\n" for line in body.splitlines())
        return self.write(f"{HEAD}@env.reward\ndef right(text):\n{lines}    return 0.0\n")

    def test_relative_files_are_beside_the_module(self):
        self.write(
            'import prl_env as prl\nWORDS = prl.load_lines("data/words.txt")\n'
            "env = prl.SingleTurnEnv(dataset=WORDS)\n@env.reward\n"
            'def right(text):\n    return len(prl.load_lines(prl_path()))\ndef prl_path():\n    return "data/words.txt"\n'
        )
        harness = Harness(self.root)
        self.assertEqual((harness.info.splits[0].size, harness.answer(harness.task(), "").reward), (2, 2.0))
        harness.conforms(1)

    def test_a_relative_open_says_what_to_write(self):
        self.write('import prl_env\nopen("data/words.txt")\n')
        before = os.getcwd()
        os.chdir(self.root)
        self.addCleanup(os.chdir, before)
        with self.assertRaisesRegex(FileNotFoundError, r'write `Path\(__file__\).parent / "data/words.txt"`'):
            Harness(self.root)

    def test_files_of_elsewhere_and_writing(self):
        for body, words in (
            ("(Path(__file__).parent / 'data/words.txt').read_text()", None),
            (f"open({__file__!r})", "is not in the environment's folder"),
            ("open(Path(__file__).parent / 'data/new.txt', 'w')", "is opened for writing"),
            ("open(Path(__file__).parent / 'rl.toml')", "does not go into a component"),
        ):
            with self.subTest(body):
                harness = Harness(self.reward(body))
                if words is None:
                    self.assertEqual(harness.conforms(1), 11)
                else:
                    with self.assertRaisesRegex(FileNotFoundError, words):
                        harness.answer(harness.task(), "")

    def test_what_is_late_is_refused_even_where_it_is_caught(self):
        for body, words in (
            ("import this_is_nowhere", r"`this_is_nowhere` is imported late, .*watched.py:7, in `right`\)"),
            ("import socket\nsocket.create_connection(('127.0.0.1', 1))", "a component has no network; use `prl_env.http"),
            ("import subprocess\nsubprocess.run(['true'])", "a component has no processes"),
            ("import threading\nthreading.Thread(target=print).start()", "a component has no threads; .*watched.py:8"),
            ("import _thread\n_thread.start_new_thread(print, ())", "a component has no threads"),
            ("import importlib\nimportlib.import_module('mailbox')", "`mailbox` is imported late"),
        ):
            inner = "".join(f"    {line}\n" for line in body.splitlines())
            harness = Harness(self.reward(f"try:\n{inner}except Exception:\n    pass"))
            with self.subTest(body), self.assertRaisesRegex(Refused, words):
                harness.conforms(1)
        self.reward("import datetime\ndatetime.datetime.strptime('2020', '%Y')")
        self.assertEqual(Harness(self.root).conforms(1), 11)
        self.reward("import wave")
        (self.root / "pyproject.toml").write_text('[tool.prl-env]\nmodules = ["wave"]\n')
        self.assertEqual(Harness(self.root).conforms(1), 11)

    def test_what_the_sandbox_lacks_is_not_there(self):
        for line, words in (
            ("import ssl", "No module named 'ssl'; the sandbox has no module `ssl`: .* use `prl_env.http.fetch` instead"),
            ("from ctypes import c_long", "calls no other machine code"),
            ("import distutils.util", "is 3.14, which no longer has it"),
            ("import lzma", "or use `zlib`"),
        ):
            self.write(f"{line}\n{HEAD}env.reward(lambda text: 0.0)\n")
            code, err = self.check()
            self.assertEqual((code, err.count("\n")), (2, 1), err)
            self.assertRegex(err, f"^error: .*{words}.*watched.py:1\\)$")
        self.write(f"try:\n    import ssl\nexcept ImportError:\n    ssl = None\n{HEAD}env.reward(lambda text: ssl is not None)\n")
        self.assertEqual(self.check(), (0, ""))
        self.write(f"import fcntl\n{HEAD}env.reward(lambda text: 0.0)\n")
        (self.root / "pyproject.toml").write_text('[tool.prl-env]\nstand_ins = ["fcntl"]\n')
        self.assertEqual(self.check(), (0, ""))

    def test_modules_of_python_that_are_named_may_come_late(self):
        self.reward("import colorsys\nfrom xml.dom import pulldom\ncolorsys.rgb_to_hsv(0, 0, 0)")
        self.assertEqual(Harness(self.root).conforms(1), 11)
        named = contents.standard_modules([self.root / "watched.py"])
        self.assertEqual(named, ["colorsys", "pathlib", "pathlib.Path", "xml.dom", "xml.dom.pulldom"])

    def test_sleeping_takes_no_time(self):
        self.write(f"from time import sleep\nimport time\n{HEAD}@env.reward\ndef right(text):\n    time.sleep(50)\n    sleep(50)\n    return 0.0\n")
        self.assertEqual(Harness(self.root, call_timeout=1).conforms(1), 11)

    def test_what_hangs_is_named(self):
        for text, line in (
            (f"{HEAD}@env.reward\ndef right(text):\n    while True: pass\n", "`right` .*watched.py:6"),
            (f"{HEAD}@env.reward\nasync def right(text):\n    while True: pass\n", "`right` .*watched.py:6"),
            (
                f"{HEAD}@env.tasks()\ndef task(index):\n    while True: pass\nenv.reward(lambda text: 0.0)\n",
                "`task` .*watched.py:6",
            ),
        ):
            harness = Harness(self.write(text), call_timeout=0.05)
            with self.subTest(text), self.assertRaisesRegex(Hung, f"{line}"):
                harness.answer(harness.task(), "")

    def check(self, *words):
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = check.main([str(self.root), *words])
        return code, err.getvalue()

    def test_the_check_says_it_in_one_line(self):
        self.reward("while True: pass")
        code, err = self.check("--call-timeout", "0.05")
        self.assertEqual((code, err.count("\n")), (2, 1))
        self.assertRegex(err, r"^error: `right` does not end: .* after 0.05 s \(.*watched.py:6\)$")

    def test_services_need_a_stand_in_and_a_role(self):
        asks = 'import prl_env\nenv = prl_env.SingleTurnEnv(dataset=["q"]{})\n@env.reward\ndef right(text):\n'
        asks += '    return prl_env.llm.generate("judge", text).text == "yes"\n'
        self.write(asks.format(""))
        self.assertRegex(self.check()[1], r'names no role: give the environment `roles=\["judge"\]`')
        self.write(asks.format(', roles=["judge"], deterministic=True'))
        self.assertRegex(self.check()[1], "it says `deterministic=True` and uses `prl_env.llm`")
        self.write(asks.format(', roles=["judge"]'))
        self.assertRegex(self.check()[1], r"the service `llm`, and nothing stands in .*--services FILE.py:NAME.*py:5\)")
        given = self.root / "test_watched.py"
        self.write("from prl_env.testing import Services\nJUDGE = Services(llm=lambda request: 'yes')\n", given.name)
        self.assertEqual(self.check("--services", f"{given}:JUDGE"), (0, ""))
        self.assertRegex(self.check("--services", f"{given}:NONE")[1], "holds no prl_env.testing.Services `NONE`")
        self.write(asks.format(', roles=["grader"]'))
        said = r"no model has the role `judge`; there are `grader`: name it in the environment's `roles` \(.*watched.py:5\)"
        self.assertRegex(self.check("--services", f"{given}:JUDGE")[1], said)
        self.assertFalse(Harness(self.root).info.deterministic)
        self.write("import prl_env as prl\nenv = prl.SingleTurnEnv(dataset=['q'])\nenv.reward(lambda text: prl.http and 0)\n")
        self.assertFalse(Harness(self.root).info.deterministic)
        self.assertIs(prl.Environment().deterministic, None)


if __name__ == "__main__":
    unittest.main()
