"""Schemas, tools, parsers and seeds. Run with `python -m unittest discover -s sdk/python/tests`."""

import dataclasses
import enum
import unittest
from typing import Annotated, Any, Literal, TypedDict

import prl_env as prl
from prl_env import rng, schema, tools


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclasses.dataclass
class Inner:
    """x: a number"""

    x: int = 1


class Typed(TypedDict, total=False):
    name: str


@dataclasses.dataclass
class Sample:
    """What a run may set.

    count (int): how many,
        in all
    word: a word
    """

    word: Literal["a", "b"]
    count: Annotated[int, prl.Arg(min=1, max=9)] = 3
    share: float = 0.5
    maybe: int | None = None
    either: int | str = 1
    many: list[str] = dataclasses.field(default_factory=list)
    table: dict[str, float] = dataclasses.field(default_factory=dict)
    colour: Colour = Colour.RED
    inner: Inner = dataclasses.field(default_factory=Inner)
    typed: Typed = dataclasses.field(default_factory=dict)
    anything: Any = None


class Schemas(unittest.TestCase):
    fields = schema.fields_of(Sample)

    def test_schema_and_checks_come_from_one_place(self):
        made = schema.object_schema(self.fields)
        self.assertEqual(made["required"], ["word"])
        properties = made["properties"]
        count = {"type": "integer", "minimum": 1, "maximum": 9, "description": "how many, in all", "default": 3}
        self.assertEqual(properties["count"], count)
        self.assertEqual(properties["word"], {"enum": ["a", "b"], "description": "a word"})
        self.assertEqual(properties["maybe"], {"type": ["integer", "null"], "default": None})
        self.assertEqual(properties["either"]["type"], ["integer", "string"])
        self.assertEqual(properties["table"]["additionalProperties"], {"type": "number"})
        self.assertEqual(properties["colour"], {"enum": ["red", "blue"], "default": "red"})
        self.assertEqual(properties["inner"]["properties"]["x"]["description"], "a number")
        given = {"word": "b", "count": 4.0, "colour": "blue", "inner": {"x": 2}, "either": "z", "typed": {"name": "n"}}
        sample = Sample(**schema.check_object(given, self.fields))
        self.assertEqual((sample.word, sample.count, sample.colour, sample.inner.x), ("b", 4, Colour.BLUE, 2))
        self.assertIsInstance(sample.count, int)

    def test_what_does_not_fit_is_named(self):
        for given, words in (
            ({}, "`word` is missing"),
            ({"word": "c"}, '`word` is "c"; it must be one of "a", "b"'),
            ({"word": "a", "count": 0}, "`count` is 0; it must be at least 1"),
            ({"word": "a", "count": 10}, "`count` is 10; it must be at most 9"),
            ({"word": "a", "count": True}, "`count` is true; it must be an integer"),
            ({"word": "a", "count": 1.5}, "`count` is 1.5; it must be an integer"),
            ({"word": "a", "share": "x"}, '`share` is "x"; it must be a number'),
            ({"word": "a", "maybe": "x"}, '`maybe` is "x"; it must be an integer'),
            ({"word": "a", "many": ["x", 1]}, "`many`[1] is 1; it must be a text"),
            ({"word": "a", "table": {"k": "x"}}, '`table`.k is "x"; it must be a number'),
            ({"word": "a", "inner": {"y": 1}}, "`inner`: unknown argument `y`; there are `x`"),
            ({"word": "a", "colour": "pink"}, '`colour` is "pink"; it must be one of "red", "blue"'),
            ({"word": "a", "counts": 1}, "unknown argument `counts`; there are `word`, `count`, `share`"),
        ):
            with self.subTest(given), self.assertRaises(schema.Mismatch) as caught:
                schema.check_object(given, self.fields)
            self.assertIn(words, str(caught.exception))

    def test_what_json_cannot_hold_is_refused(self):
        with self.assertRaises(TypeError):
            schema.json_schema(complex)


def double(x: int, times: int = 1, *, state: prl.State) -> dict:
    """Doubles a number.

    Args:
        x: the number
        times (int): how often
    """
    if x == 13:
        raise ValueError("not that one")
    if x == 14:
        raise prl.Upstream("later")
    state["seen"] = x
    return {"result": x * 2**times}


class Tools(unittest.TestCase):
    known = {"double": prl.Tool(double)}

    def reply(self, arguments: str, name: str = "double") -> str:
        self.state = prl.State(ctx=prl.Context())
        call = prl.calling(name, arguments)["tool_calls"][0]
        message = tools.answer(call, self.known, self.state)
        self.assertEqual((message["role"], message["tool_call_id"], message["name"]), ("tool", "call_0", name))
        return message.text

    def test_the_schema_is_the_signature(self):
        definition = self.known["double"].definition
        self.assertEqual((definition.name, definition.description), ("double", "Doubles a number."))
        properties = definition.parameters["properties"]
        self.assertEqual(properties["x"], {"type": "integer", "description": "the number"})
        self.assertEqual(properties["times"], {"type": "integer", "description": "how often", "default": 1})
        self.assertEqual(definition.parameters["required"], ["x"])

    def test_calls_run(self):
        self.assertEqual(self.reply('{"x": 2}'), '{"result": 4}')
        self.assertEqual(self.state["seen"], 2)
        self.assertEqual(self.reply('{"x": 2.0, "times": 3}'), '{"result": 16}')

    def test_whatever_the_model_writes_is_answered(self):
        for arguments, words in (
            ('{"x": 2', "the arguments of `double` are not valid JSON at line 1, column 8 of 7 characters"),
            ('{"cut": "of', "the arguments of `double` are not valid JSON at line 1, column 9 of 11 characters"),
            ("", "`x` is missing"),
            ("  ", "`x` is missing"),
            ("[1]", "the arguments of `double` are not a JSON object"),
            ("null", "the arguments of `double` are not a JSON object"),
            ('{"x": 1, "x": 2}', 'the arguments of `double` are not valid: the key "x" is there twice'),
            ('{"x": NaN}', "the arguments of `double` are not valid: NaN is no JSON"),
            ('{"x": ' + "9" * 5000 + "}", "the arguments of `double` hold a number that is too long"),
            ("[" * 100_000, "the arguments of `double` are nested more than 64 deep"),
            ('{"x": "[[[' + "[" * 100 + '"}', '`x` is "[[['),
            ('{"x": "2"}', '`x` is "2"; it must be an integer'),
            ('{"y": 1}', "unknown argument `y`; there are `x`, `times`"),
            ('{"x": 13}', "not that one"),
        ):
            with self.subTest(arguments[:40]):
                text = self.reply(arguments)
                self.assertTrue(text.startswith(f"error: {words}"), text)
        self.assertEqual(self.reply("{}", "triple"), "error: no tool `triple`; there are `double`")
        with self.assertRaises(prl.Upstream):
            self.reply('{"x": 14}')

    def test_a_result_that_is_no_text_is_named(self):
        def odd():
            return {1}

        call = prl.ToolCall(id="c", name="odd", arguments="{}")
        with self.assertRaisesRegex(prl.EnvError, r"tool `odd` gave a set, .* \(.*test_parts.py:\d+\)"):
            tools.answer(call, {"odd": prl.Tool(odd)}, prl.State())

    def test_results_are_texts(self):
        self.assertEqual(
            [tools.as_text(value) for value in ("a", 1, True, None, [1, "ä"])], ["a", "1", "true", "null", '[1, "ä"]']
        )


class Parsers(unittest.TestCase):
    def test_tags(self):
        parser = prl.XMLParser(["think", ("code", "answer")], answer_field="answer")
        parsed = parser.parse("<think> a </think> <answer>\n4\n</answer><answer>5</answer>")
        self.assertEqual((parsed.think, parsed.code, parsed.answer), ("a", None, "4"))
        self.assertEqual(parser.parse_answer("<answer>4</answer><answer>5</answer>"), "5")
        said = [prl.assistant("<answer>1</answer>"), prl.user("and?"), prl.assistant("none")]
        self.assertEqual(parser.parse_answer(said), "1")
        self.assertIsNone(parser.parse_answer([prl.user("x")]))
        self.assertEqual(parser.format(think="a", answer="b"), "<think>\na\n</think>\n<code>\nb\n</code>")
        self.assertEqual(
            parser.get_format_str(), "<think>\n...\n</think>\n<[ code | answer ]>\n...\n</[ code | answer ]>"
        )
        score = parser.get_format_reward_func()
        self.assertAlmostEqual(score([prl.assistant("<think>a</think><answer>b</answer>")]), 1.0)
        self.assertAlmostEqual(score([prl.assistant("b")]), 0.2)
        self.assertEqual(score([]), 0.0)

    def test_thoughts_and_boxes(self):
        self.assertEqual(prl.ThinkParser().parse("<think>a</think> b "), "b")
        self.assertEqual(prl.ThinkParser().parse("b"), "")
        self.assertEqual(prl.MaybeThinkParser(str.upper).parse("b"), "B")
        self.assertEqual(prl.strip_think("<think>cut off"), "")
        self.assertEqual(prl.extract_boxed_answer(r"so \boxed{\frac{1}{2}}."), r"\frac{1}{2}")
        self.assertEqual(prl.extract_boxed_answer(r"\boxed{1} \boxed{2"), r"\boxed{1} \boxed{2")
        self.assertEqual(prl.extract_boxed_answer("none", strict=True), "")
        self.assertEqual(prl.extract_tag("<a> x </a><a>y</a>", "a"), "x")
        self.assertIsNone(prl.extract_tag("</a><a>", "a"))
        self.assertEqual(prl.last_number("1 then -2,345.5"), "-2345.5")


class Seeds(unittest.TestCase):
    def test_streams_differ_and_repeat(self):
        seeds = [rng.seed_of(*parts) for parts in ((), (0,), (1,), (0, 0), (0, 1), (1, 0), ("a",), ("b",), ("a", 0))]
        self.assertEqual(len(set(seeds)), len(seeds))
        # Fixed for good: runs are repeated by their seeds.
        self.assertEqual(rng.seed_of("train", 3, 7), 7429078403019152897)
        self.assertEqual(rng.stream(1).random(), rng.stream(1).random())


if __name__ == "__main__":
    unittest.main()
