"""Environments for reinforcement learning of language models, in Python, sandboxed as WASM components.

An environment is a module with one `Environment` (or a function `load_environment` that returns one): tasks, a rubric
of weighted functions, perhaps a hook for further turns and tools. `python -m prl_env.new NAME` writes a first one,
`python -m prl_env.check` tries one natively, `python -m prl_env.build` makes the component, and `prl_env.testing`
runs one in tests. Nothing here needs more than the standard library.

    import prl_env as prl

    env = prl.Environment("sums", version="1.0.0", description="Add two numbers.")

    @env.tasks("train")
    def sums(index, rng):
        a, b = rng.randrange(100), rng.randrange(100)
        return {"question": f"{a} + {b} = ? Answer with the number.", "answer": str(a + b)}

    @env.reward
    def right(text, answer):
        return text.strip() == answer
"""

from . import shadowed

shadowed.refuse()

from .datasets import load_csv, load_jsonl, load_lines, procedural, shuffled
from .environment import Environment, MultiTurnEnv, SingleTurnEnv, ToolEnv, metric, reward, stop, tool, turn_reward
from .errors import (
    Denied,
    EnvError,
    InvalidConfig,
    InvalidState,
    InvalidTask,
    Limit,
    NotFound,
    Unsupported,
    Upstream,
)
from .messages import Message, ToolCall, assistant, calling, system, text_of, tool_result, user
from .parsers import (
    MaybeThinkParser,
    Parser,
    ThinkParser,
    XMLParser,
    extract_boxed_answer,
    extract_tag,
    last_number,
    strip_think,
)
from .records import Completion, Context, Finished, Score, Stop, Task, Turn
from .rng import seed_of
from .rubric import JudgeRubric, Rubric, RubricGroup
from .schema import Arg
from .services import Request, assets, http, kv, llm, log
from .state import State
from .tools import Tool, ToolError

__version__ = "0.1.0"

__all__ = [
    "Arg",
    "Completion",
    "Context",
    "Denied",
    "EnvError",
    "Environment",
    "Finished",
    "InvalidConfig",
    "InvalidState",
    "InvalidTask",
    "JudgeRubric",
    "Limit",
    "MaybeThinkParser",
    "Message",
    "MultiTurnEnv",
    "NotFound",
    "Parser",
    "Request",
    "Rubric",
    "RubricGroup",
    "Score",
    "SingleTurnEnv",
    "State",
    "Stop",
    "Task",
    "ThinkParser",
    "Tool",
    "ToolCall",
    "ToolEnv",
    "ToolError",
    "Turn",
    "Unsupported",
    "Upstream",
    "XMLParser",
    "assets",
    "assistant",
    "calling",
    "extract_boxed_answer",
    "extract_tag",
    "http",
    "kv",
    "last_number",
    "llm",
    "load_csv",
    "load_jsonl",
    "load_lines",
    "log",
    "metric",
    "procedural",
    "reward",
    "seed_of",
    "shuffled",
    "stop",
    "strip_think",
    "system",
    "text_of",
    "tool",
    "tool_result",
    "turn_reward",
    "user",
]
