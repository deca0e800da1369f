"""Folders, templates and what is said about them; a component is built where componentize-py can be had. Run with
`python -m unittest discover -s sdk/python/tests`."""

import contextlib
import io
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from prl_env import build, check, contents, new, project


class Folders(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.root = Path(temporary.name)

    def write(self, name, text=""):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def refused(self, given):
        with self.assertRaises(project.BadProject) as caught:
            project.find(given)
        return str(caught.exception)

    def test_environments_are_found(self):
        self.write("a/only.py")
        self.write("a/test_only.py")
        self.write("my-env/my_env.py")
        self.write("my-env/other.py")
        self.write("pack/pack/__init__.py")
        self.write("named/x.py")
        self.write("named/y.py")
        self.write("named/pyproject.toml", '[tool.prl-env]\nmodule = "y"\npackages = ["six==1.17.0"]\n')
        found = {name: project.find(self.root / name).module for name in ("a", "my-env", "pack", "named")}
        self.assertEqual(found, {"a": "only", "my-env": "my_env", "pack": "pack", "named": "y"})
        self.assertTrue(project.find(self.root / "a/only.py").single)

    def test_what_is_wrong_is_named(self):
        self.assertIn("there is no such file or folder", self.refused(self.root / "none"))
        self.write("two/x.py")
        self.write("two/y.py")
        self.assertIn("there are x, y; name it `two.py`, or set `module`", self.refused(self.root / "two"))
        self.write("empty/a.txt")
        self.assertIn("there is no .py file", self.refused(self.root / "empty"))
        self.assertIn("not a Python module", self.refused(self.write("bad-name.py")))
        for text, words in (
            ("[tool.prl-env]\nmodul = 1", "unknown key `modul`; there are `module`"),
            ('[tool.prl-env]\npackages = ["six"]', 'write it as "name==version"'),
            ('[tool.prl-env]\nimports = ["disk"]', "there are llm, assets, kv, http"),
            ("[tool", "pyproject.toml"),
            ('[tool.prl-env]\nmodule = "gone"', "there is no `gone.py`"),
        ):
            self.write("set/set.py")
            self.write("set/pyproject.toml", text)
            self.assertIn(words, self.refused(self.root / "set"))

    def test_names_of_other_modules_are_refused(self):
        for file in ("random/random.py", "environment/environment.py", "queue.py", "My.py", "prl_env_x.py", "test.py", "x_test.py"):
            self.assertIn(f"{Path(file).name}: `{Path(file).stem}` cannot be", self.refused(self.write(file)))
        self.assertIn("`random` cannot be the name of an environment", self.refused(self.root / "random"))
        for name in ("test", "test-x"):
            self.write(f"{name}/{name.replace('-', '_')}.py")
            self.assertIn("nor like a test's", self.refused(self.root / name))
        for file in ("json.py", "json/__init__.py"):
            with self.subTest(file):
                self.write("mine/mine.py")
                beside = self.write(f"mine/{file}")
                self.assertIn(f"{beside}: there is a module `json` in Python", self.refused(self.root / "mine"))
                self.write("mine/pyproject.toml", '[tool.prl-env]\nexclude = ["json*"]\n')
                self.assertEqual(project.find(self.root / "mine").module, "mine")
                beside.unlink()
                (self.root / "mine/pyproject.toml").unlink()

    def test_services_are_seen_in_the_code(self):
        code = "import prl_env as prl\nfrom prl_env import kv\nprl.JudgeRubric()\nprl.assets.read('x')\nprl.log('x')"
        self.assertEqual(contents.services_used(code), {"kv", "llm", "assets"})
        self.assertEqual(contents.services_used("import http\nhttp.client"), set())

    def test_what_is_staged(self):
        for name in (
            "e.py",
            "data/words.txt",
            "test_e.py",
            "README.md",
            ".hidden",
            "__pycache__/x.pyc",
            "e.wasm",
            "rl.toml",
            "gen.sh",
        ):
            self.write(f"e/{name}")
        self.write("e/pyproject.toml", '[tool.prl-env]\nexclude = ["*.sh"]\n')
        stage = self.root / "stage"
        imports = build._stage(project.find(self.root / "e"), stage)
        staged = sorted(
            path.relative_to(stage / "app").as_posix() for path in (stage / "app").rglob("*") if path.is_file()
        )
        self.assertEqual((staged, imports), (["data/words.txt", "e.py"], []))
        self.assertIn("'data/words.txt'", (stage / "glue/prl_env_build.py").read_text())
        self.assertIn("include pure-env;", (stage / "wit/world.wit").read_text())

    def run_quietly(self, main, *words):
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                code = main([str(word) for word in words])
            except SystemExit as end:
                code = end.code
        return code, out.getvalue(), err.getvalue()

    def test_the_template_checks_out(self):
        folder = self.root / "my-env"
        code, out, _ = self.run_quietly(new.main, "my-env", folder)
        files = [".gitignore", "README.md", "my_env.py", "pyproject.toml", "rl.toml", "test_my_env.py"]
        self.assertEqual((code, sorted(path.name for path in folder.iterdir())), (0, files))
        self.assertFalse(any("{{" in path.read_text() for path in folder.iterdir()))
        code, out, err = self.run_quietly(check.main, folder, "--args", '{"words": 2}', "--tasks", 2)
        self.assertEqual((code, err), (0, ""))
        self.assertTrue(out.splitlines()[-1].startswith("ok: "))

    def test_a_file_like_one_of_pythons_is_named_at_once(self):
        folder = self.root / "my-env"
        new.new("my-env", folder)
        env = {**os.environ, "PYTHONPATH": str(Path(project.__file__).parent.parent)}
        for name, told in (("json.py", True), ("csv/__init__.py", True), ("notes.py", False)):
            beside = self.write(f"my-env/{name}")
            done = subprocess.run([sys.executable, str(folder / "test_my_env.py")], capture_output=True, text=True, env=env)
            line = f"error: {beside}: Python would import it in place of its own module of this name; rename the file\n"
            self.assertEqual((done.returncode, done.stderr), (2, line) if told else (0, ""))
            beside.unlink()

    def fake(self, script):
        """A componentize-py that does this; `$glue` is the folder with the modules around the environment's."""
        lines = ["#!/bin/sh", 'for word; do case "$word" in */glue) glue="$word";; *out.wasm) out="$word";; esac; done', script]
        path = self.write("fake.sh", "\n".join(lines) + "\n")
        path.chmod(0o755)
        return path

    def test_what_a_build_says(self):
        good = self.write("ok/ok.py", "import prl_env\n")
        trace = 'echo "Traceback (most recent call last):"; echo "  File \\"/0/ok.py\\", line 1, in <module>"; '
        for script, said in (
            ("printf 'importing it' > $glue/prl_env_stage; exec sleep 60", "importing it took more than 0.3 s; `python"),
            ("exec sleep 60", "preparing it took more than 0.3 s"),
            (f"{trace} echo \"ModuleNotFoundError: No module named 'attrs'\"; exit 1", "name its package in `packages`"),
            (f"{trace} echo \"ModuleNotFoundError: No module named 'numpy'\"; exit 1", "holds or needs machine code"),
            (f"{trace} echo \"ModuleNotFoundError: No module named '_ssl'\"; exit 1", "use `prl_env.http.fetch` instead"),
            (
                f"{trace} echo \"FileNotFoundError: [Errno 44] No such file or directory: 'x.txt'\"; exit 1",
                'write `Path(__file__).parent / "x.txt"`',
            ),
            (f"{trace} echo 'prl_env.errors.EnvError: there is no reward'; exit 1", "sandbox: there is no reward ("),
        ):
            tool = self.fake(script)
            with self.subTest(script):
                code, out, err = self.run_quietly(build.main, good, "--componentize-py", tool, "--timeout", 0.3)
                self.assertEqual((code, out, err.count("\n")), (2, "", 1), err)
                self.assertIn(said, err)
                self.assertEqual([path.name for path in good.parent.iterdir()], ["ok.py"])
        tool = self.fake("echo made > $out")
        code, out, _ = self.run_quietly(build.main, good, "--componentize-py", tool)
        self.assertEqual((code, sorted(path.name for path in good.parent.iterdir())), (0, ["ok.py", "ok.wasm"]))

    def test_errors_are_one_line_and_code_2(self):
        good = self.write(
            "ok/ok.py", "import prl_env as prl\nenv = prl.Environment(dataset=['q'], rubric=prl.Rubric([len]))\n"
        )
        lacks = self.write("lacks/lacks.py", "import not_here\n")
        astray = self.write("astray/astray.py", good.read_text()).parent
        self.write("astray/pyproject.toml", '[tool.prl-env]\nmodules = ["no_such"]\n')
        bad = self.write("bad/bad.py", "import prl_env\n1 / 0\n")
        for main, words, said in (
            (new.main, ["import"], "cannot be the name"),
            (new.main, ["os"], "cannot be the name"),
            (new.main, ["My"], "cannot be the name"),
            (new.main, ["a-"], "cannot be the name"),
            (new.main, ["test"], "nor like a test's (`test`, `test_x`, `x_test`, `conftest`)"),
            (new.main, ["test-x"], "nor like a test's"),
            (new.main, ["a" * 300], "…` cannot be the name of an environment: it must be of"),
            (check.main, ["a" * 300], "there is no such file"),
            (build.main, [self.write(f"{'a' * 65}.py")], "at most 64 characters"),
            (new.main, [], "the following arguments are required: name; see python -m prl_env.new --help"),
            (check.main, [good, "--tasks", "x"], "invalid int value: 'x'; see python -m prl_env.check --help"),
            (new.main, ["x", self.root], "is there already"),
            (check.main, [self.root / "none"], "no such file"),
            (check.main, [good, "--args", "{"], "--args: "),
            (check.main, [good, "--args", "[]"], "--args: [] is no JSON object"),
            (check.main, [good, "--services", "test_ok.py"], "test_ok.py: write it as FILE.py:NAME"),
            (check.main, [good, "--args", '{"x": 1}'], "unknown argument `x`; there are none"),
            (check.main, [bad], f"ZeroDivisionError: division by zero ({bad}:2)"),
            (check.main, [lacks], "No module named 'not_here'; pip install it here"),
            (check.main, [astray], f'{astray}/pyproject.toml: [tool.prl-env]: `modules` has "no_such"'),
            (check.main, [good, "--tasks", "0"], "--tasks: 0 is not above 0"),
            (build.main, [good, "--timeout", "0"], "--timeout: 0.0 is not above 0"),
            (build.main, [self.root / "none"], "no such file"),
            (build.main, [good, "-o", self.root / "no/folder/x.wasm"], "there is no folder"),
            (build.main, [good, "--componentize-py", self.root / "none"], "not a program"),
        ):
            code, out, err = self.run_quietly(main, *words)
            self.assertEqual((code, out, err.count("\n")), (2, "", 1), err)
            self.assertTrue(err.startswith("error: ") and said in err, err)


if __name__ == "__main__":
    unittest.main()
