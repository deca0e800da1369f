"""Environments from their parts, run through the harness. Run with `python -m unittest discover -s
sdk/python/tests`."""

import asyncio
import dataclasses
import random
import types
import unittest

import prl_env as prl
from prl_env.testing import Harness, Refused, Services


def module(**parts):
    """A module that holds these."""
    made = types.ModuleType("my_env", "An environment. With more words.")
    vars(made).update(parts)
    return made


def harness(environment, args=None, services=None):
    return Harness(module(env=environment), args, services)


@dataclasses.dataclass
class Args:
    """largest: largest number"""

    largest: int = 9


class Rewards(unittest.TestCase):
    def test_the_shortest_environment(self):
        env = prl.Environment(dataset=[{"question": "2 + 2?", "answer": "4"}, "say 5"])

        @env.reward
        def right(text, answer):
            return text == answer

        made = harness(env)
        self.assertEqual(
            (made.info.name, made.info.version, made.info.description),
            ("my-env", "0.1.0", "An environment. With more words."),
        )
        task = made.task("train", 0)
        self.assertEqual(
            (task.key, task.prompt, task.max_turns), ("train/0", [{"role": "user", "content": "2 + 2?"}], 1)
        )
        self.assertEqual((made.answer(task, "4").reward, made.answer(task, "4").stop), (1.0, "answered"))
        self.assertEqual(made.answer(made.task("train", 1), "4").reward, 0.0)
        for bad in (("train", 2), ("test", 0)):
            with self.assertRaises(prl.InvalidTask):
                made.task(*bad)

    def test_functions_are_handed_what_they_name(self):
        seen = {}
        env = prl.Environment(
            args=Args,
            splits={
                "train": [
                    {
                        "prompt": [prl.user("q")],
                        "answer": 1,
                        "info": {"a": [1]},
                        "column": "c",
                        "key": "k",
                        "tags": ["t"],
                    }
                ]
            },
            system_prompt="s",
            few_shot=[prl.user("e"), prl.assistant("f")],
        )

        @env.reward(weight=2, name="first")
        async def some(
            prompt, completion, answer, info, column, state, task, parser, ctx, rng, args, truncated, messages, text
        ):
            """What it is.

            And more."""
            await asyncio.sleep(5)
            seen.update(locals())
            return await asyncio.wait_for(asyncio.sleep(1, 0.5), 10)

        @env.reward(weight=0)
        def everything(**kwargs):
            return "column" in kwargs and "rng" in kwargs and kwargs["text"] == "hi"

        @env.metric
        def length(text, missing=3):
            return len(text) + missing

        made = harness(env, {"largest": 7})
        task = made.task()
        self.assertEqual([m["role"] for m in task.prompt], ["system", "user", "assistant", "user"])
        self.assertEqual((task.key, task.tags), ("k", ["t"]))
        played = made.answer(task, "hi")
        self.assertEqual((played.reward, played.value("everything"), played.value("length")), (1.0, 1.0, 5.0))
        self.assertEqual((seen["answer"], seen["info"], seen["column"], seen["args"].largest), (1, {"a": [1]}, "c", 7))
        self.assertEqual((seen["text"], len(seen["messages"]), seen["ctx"].seed, seen["truncated"]), ("hi", 5, 1, None))
        lines = [(line.name, line.weight, line.description) for line in made.info.components]
        self.assertEqual(lines, [("first", 2.0, "What it is."), ("everything", 0.0, "")])
        self.assertEqual(made.info.metrics, ["length"])
        made.conforms()

    def test_a_failing_reward_fails_the_rollout(self):
        for func, words in (
            (lambda text: 1 / 0, "division by zero"),
            (lambda text: float("nan"), r"reward `r` is nan; .* \(.*test_environments.py:\d+\)"),
            (lambda text: "0.5", r"reward `r` gave '0.5', which is no number; .* \(.*test_environments.py:\d+\)"),
            (lambda text: None, "gave None, which is no number"),
            (lambda nothing: 1, r"takes `nothing`, which there is not; .* \(.*test_environments.py:\d+\)"),
        ):
            func.__name__ = "r"
            made = harness(prl.Environment(dataset=["q"], rubric=prl.Rubric([func])))
            with self.subTest(words), self.assertRaisesRegex(Exception, words):
                made.answer(made.task(), "")

        async def forever(text):
            await asyncio.get_running_loop().create_future()

        made = harness(prl.Environment(dataset=["q"], rubric=prl.Rubric([forever])))
        for _ in range(2):
            with self.assertRaisesRegex(prl.EnvError, "waits for something that never comes"):
                made.answer(made.task(), "")

    def test_verifiers_shape(self):
        parser = prl.XMLParser(["answer"])

        def right(completion, answer, **kwargs) -> float:
            return 1.0 if kwargs["parser"].parse_answer(completion) == answer else 0.0

        def load_environment(count: int = 2, word: str = "x"):
            """Loads.

            Args:
                count: how many
            """
            rubric = prl.Rubric(funcs=[right, parser.get_format_reward_func()], weights=[1.0, 0.2], parser=parser)
            rows = [{"question": f"{word}{at}", "answer": str(at)} for at in range(count)]
            return prl.SingleTurnEnv(
                dataset=rows, eval_dataset=rows[:1], system_prompt="s", parser=parser, rubric=rubric
            )

        made = Harness(module(load_environment=load_environment), {"count": 3})
        self.assertEqual([(s.name, s.size) for s in made.info.splits], [("train", 3), ("eval", 1)])
        self.assertEqual(
            made.info.args_schema["properties"]["count"], {"type": "integer", "description": "how many", "default": 2}
        )
        self.assertAlmostEqual(made.answer(made.task("train", 2), "<answer>2</answer>").reward, 1.2)
        with self.assertRaisesRegex(prl.InvalidConfig, "`count` is -1|a dataset holds no rows"):
            Harness(module(load_environment=load_environment), {"count": 0})

    def test_groups(self):
        env = prl.Environment(dataset=["q"])

        @env.reward
        def own(text):
            return len(text)

        @env.reward(weight=0.5)
        def rarest(completions, states) -> list[float]:
            texts = [completion[-1].text for completion in completions]
            assert all(state["metrics"]["own"] == len(text) for state, text in zip(states, texts))
            return [float(texts.count(text) == 1) for text in texts]

        made = harness(env)
        self.assertTrue(made.info.group_scoring)
        task = made.task()
        members = [made.answer(task, text) for text in ("a", "bb", "a")]
        self.assertEqual([member.reward for member in members], [1.0, 2.0, 1.0])
        self.assertEqual([reward for _, reward in made.group(task, members)], [1.0, 2.5, 1.0])


class Turns(unittest.TestCase):
    def test_many_turns(self):
        class Guess(prl.MultiTurnEnv):
            def setup_state(self, state):
                state["secret"] = state["ctx"].rng.randrange(3)
                return [prl.user("begin")] if state["info"].get("hello") else None

            async def env_response(self, messages, state, **kwargs):
                assert messages[-1]["role"] == "assistant"
                if messages[-1].text == "give up":
                    return prl.Turn("pity", reward=-1, stop=prl.Stop("gave_up"), metrics={"pity": 1})
                return "no"

            @prl.stop
            def solved(self, text, state):
                return text == str(state["secret"])

            @prl.stop(truncated=True, name="too_long")
            def long(self, text):
                return len(text) > 100

            @prl.turn_reward
            def shortness(self, text):
                return 0.1 if len(text) < 3 else 0.0

            @prl.reward
            def won(self, state):
                return state["stop_condition"] == "solved"

        made = harness(Guess(dataset=[{"question": "q", "info": {"hello": True}}], max_turns=4, metrics=["pity"]))
        self.assertTrue(made.info.multi_turn)
        task = made.task()
        self.assertEqual(task.max_turns, 4)
        context = prl.Context(seed=5)
        secret = str(prl.Context(seed=5).rng.randrange(3))
        played = made.script(task, ["no!", secret], context)
        self.assertEqual((played.stop, played.truncated, len(played.turns)), ("solved", None, 3))
        self.assertAlmostEqual(played.reward, 1.1)
        self.assertEqual([m.text for m in played.messages], ["q", "begin", "no!", "no", secret])
        given_up = made.answer(task, "give up")
        self.assertEqual((given_up.stop, given_up.reward, given_up.turns[-1].metrics), ("gave_up", -1.0, {"pity": 1.0}))
        self.assertEqual(
            (made.answer(task, "x" * 101).stop, made.answer(task, "x" * 101).truncated), ("too_long", "too_long")
        )
        self.assertEqual(made.answer(task, "none").truncated, "max_turns")
        made.conforms()

    def test_decorated_turns_and_state(self):
        env = prl.Environment(dataset=["q"], max_turns=5)

        @env.setup
        def begin(state):
            state["count"] = 0

        @env.reply
        def reply(state):
            state["count"] += 1
            if state["count"] == 3:
                state["final_env_response"] = [prl.user("enough")]
            return [prl.user(str(state["count"]))] if state["count"] < 3 else []

        @env.reward
        def turns(state):
            state["trace"] = {"turns": len(state["trajectory"])}
            return state["turn"]

        made = harness(env)
        played = made.answer(made.task(), "x")
        self.assertEqual((played.stop, played.reward, played.messages[-1].text), ("final_env_response", 3.0, "enough"))
        self.assertEqual(played.score.info, {"turns": 3})
        rollout = made.open(made.task())
        rollout.start()
        rollout.score("timeout")
        with self.assertRaises(prl.InvalidState):
            rollout.step(prl.Completion(prl.assistant("x")))

    def test_what_a_host_refuses(self):
        def env(reply, **options):
            made = prl.Environment(dataset=["q"], rubric=prl.Rubric([lambda: 0]), **options)
            made.rubrics[1].lines[0].function.name = "r"
            made.reply(reply)
            return harness(made)

        for reply, kind, words in (
            (lambda: [], prl.EnvError, "gave no message"),
            (lambda: prl.Turn("x", metrics={"m": 1}), prl.EnvError, 'declare it with `metrics=\\["m"\\]`'),
            (lambda: prl.Turn("x", stop=prl.Stop("not a reason")), Refused, "the stop reason"),
            (lambda: prl.Turn("x", reward=float("inf")), prl.EnvError, "is inf"),
            (lambda: prl.Turn("x", sampling={"top_p": 1}), Refused, "hints for sampling"),
            (lambda: {"role": "tool", "content": "", "tool_call_id": "c"}, Refused, "which the turn did not call"),
            (lambda: {"role": "me", "content": ""}, prl.EnvError, "the role 'me'"),
            (lambda: 5, prl.EnvError, r"`<lambda>` gave 5: .* not int \(.*test_environments.py:\d+\)"),
            (lambda: [5], prl.EnvError, "a list of messages holds 5"),
            (lambda: prl.Turn("x", stop="done"), prl.EnvError, r"`stop` is 'done', not `prl_env.Stop"),
            (lambda: prl.Turn("x", reward="1"), prl.EnvError, r"of `<lambda>` gave '1', which is no number.*\.py:\d+"),
        ):
            with self.subTest(words), self.assertRaisesRegex(kind, words):
                made = env(reply)
                made.answer(made.task(), "x")

    def test_tools(self):
        env = prl.ToolEnv("t", dataset=["q"])

        @env.tool
        def add(a: int, b: int) -> int:
            """Adds."""
            return a + b

        @env.reward
        def right(text):
            return text == "5"

        made = harness(env)
        self.assertTrue(made.info.tools and made.info.multi_turn)
        task = made.task()
        self.assertEqual((task.tools[0].name, task.max_turns), ("add", 10))
        played = made.script(task, [prl.calling("add", '{"a": 2, "b": 3}'), "5"])
        self.assertEqual((played.reward, played.messages[2].text, played.stop), (1.0, "5", "answered"))
        self.assertIn("error: no tool `x`", made.script(task, [prl.calling("x", "{"), "5"]).messages[2].text)
        made.conforms()
        for kind in (prl.MultiTurnEnv, prl.ToolEnv):
            with self.assertRaisesRegex(prl.EnvError, "needs an `env_response`, or tools"):
                harness(kind("t", dataset=["q"], rubric=prl.Rubric([len])))


class Tasks(unittest.TestCase):
    def test_procedural_and_generated(self):
        env = prl.Environment(rubric=prl.Rubric([lambda **_: 0.0]))
        env.rubrics[1].lines[0].function.name = "r"

        @env.tasks("train")
        def train(index, rng, seed):
            return {"question": f"{index} {rng.random()} {random.random()}"}

        @env.tasks("eval", size=3, seed=1)
        def fixed(rng):
            return str(rng.random())

        @env.tasks("stream")
        def stream(rng):
            while True:
                yield f"{rng.random()} {random.random()}"

        made, other = harness(env), harness(env)
        self.assertEqual([(s.name, s.size) for s in made.info.splits], [("train", None), ("eval", 3), ("stream", None)])
        later = made.task("stream", 5, 1)
        for split, index, seed in (("train", 4, 1), ("eval", 2, 1), ("stream", 5, 1), ("stream", 0, 1)):
            random.seed()
            self.assertEqual(made.task(split, index, seed), other.task(split, index, seed))
        self.assertEqual(later, made.task("stream", 5, 1))
        text = lambda *asked: made.task(*asked).prompt[0].text
        self.assertNotEqual(text("train", 0, 1), text("train", 0, 2))
        self.assertEqual(text("eval", 0, 1), text("eval", 0, 2))
        keys = [made.task(*asked).key for asked in (("train", 4, 7), ("eval", 2, 7), ("stream", 5, 7))]
        self.assertEqual(keys, ["train/7/4", "eval/2", "stream/7/5"])

    def test_bad_rows_and_environments_are_named(self):
        reward = prl.Rubric([len], [1])
        for row, words in (
            (5, "row 0 of `train` is an int"),
            ({"answer": 1}, r"row 0 of `train` has no `prompt` \(messages\) and no `question` .*: it has `answer`"),
            ({"question": None}, "row 0 of `train` has no `prompt`"),
            ({"prompt": [None]}, "the prompt of row 0 of `train`: a list of messages holds None"),
            ({"prompt": [{"role": "user", "content": 5}]}, "the content of a message is 5"),
            ({"question": "q", "info": {"x": {1}}}, "is no JSON"),
            ({"question": "q", "answer": float("nan")}, "is no JSON"),
            ({"prompt": [{"role": "x"}]}, "the role 'x'"),
        ):
            with self.subTest(words), self.assertRaisesRegex(prl.EnvError, words):
                harness(prl.Environment(dataset=[row], rubric=reward, system_prompt="s")).task()
        with self.assertRaisesRegex(prl.EnvError, r"the weight of `len` is '2'; it must be a number"):
            prl.Rubric([len], ["2"])
        with self.assertRaisesRegex(prl.InvalidTask, r"no split `trian`; there are `train` \(.*test_environments.py:\d+\)"):
            harness(prl.Environment(dataset=["q"], rubric=reward)).task("trian")
        late = prl.Environment(dataset=[*["q"] * 20, {"answer": 1}], rubric=prl.Rubric([lambda text: 0]))
        with self.assertRaisesRegex(prl.EnvError, "row 20 of `train` has no `prompt`"):
            harness(late).conforms(1)
        for parts, words in (
            ({}, "holds no Environment"),
            ({"a": prl.Environment(dataset=["q"]), "b": prl.Environment(dataset=["q"])}, "holds 2 Environment"),
            ({"a": prl.Environment(dataset=["q"])}, r"there is no reward.*test_environments.py:\d+\)"),
            ({"a": prl.Environment(rubric=reward)}, r"there are no tasks.*test_environments.py:\d+\)"),
            (
                {"a": prl.Environment(dataset=["q"], rubric=prl.Rubric([lambda text: 0], [float("nan")]))},
                r"the weight of `<lambda>` is nan.*test_environments.py:\d+\)",
            ),
            (
                {"a": prl.Environment("Caps Env", dataset=["q"], rubric=reward)},
                r"`Caps Env` cannot be the name of an environment: .*test_environments.py:\d+\)",
            ),
            ({"a": prl.Environment(dataset=["q"], rubric=[reward, prl.Rubric([len])])}, "`len` is there twice"),
            ({"load_environment": lambda x: None}, r"`x` has no default.*test_environments.py:\d+\)"),
            ({"load_environment": lambda: None}, r"gave None, no Environment \(.*test_environments.py:\d+\)"),
            ({"load_environment": lambda: 1}, "gave an int, no Environment"),
        ):
            with self.subTest(words), self.assertRaisesRegex(prl.EnvError, words):
                Harness(module(**parts))

    def test_instances_must_agree(self):
        count = iter(range(1000))
        env = prl.Environment(dataset=[{"question": "q", "answer": "a"}])

        @env.reward
        def unsteady(text):
            return next(count)

        with self.assertRaisesRegex(Refused, "two instances play it differently"):
            harness(env).conforms()


class Lent(unittest.TestCase):
    def test_services(self):
        rubric = prl.JudgeRubric(judge_prompt="{question}|{answer}|{response}", sampling={"temperature": 0.0})

        async def graded(judge, prompt, completion, answer, state):
            prl.kv.set("k", b"v")
            prl.log("judged", level="debug", by="me")
            said = await judge(prompt, completion, answer, state)
            return said == "yes" and prl.kv.get("k") == b"v" and prl.assets.read_text("test_parts.py").startswith('"""')

        rubric.add_reward_func(graded)
        asked = []

        def model(request):
            asked.append(request)
            return "yes"

        services = Services(llm=model, assets=__file__.rpartition("/")[0])
        made = harness(prl.Environment(dataset=[{"question": "q", "answer": "a"}], rubric=rubric), services=services)
        self.assertEqual((made.info.roles, made.info.deterministic), (["judge"], False))
        self.assertEqual(made.answer(made.task(), "r").reward, 1.0)
        self.assertEqual((asked[0].role, asked[0].messages[0].text, asked[0].temperature), ("judge", "q|a|r", 0.0))
        self.assertIn(("debug", "judged"), made.log)
        made = harness(prl.Environment(dataset=["q"], rubric=rubric))
        with self.assertRaises(prl.Unsupported):
            made.answer(made.task(), "r")


if __name__ == "__main__":
    unittest.main()
