"""Write words backwards."""

from difflib import SequenceMatcher
from typing import Annotated

import prl_env as prl

__version__ = "0.1.0"

WORDS = """
able about above act add after again air all also animal answer any area back bad ball base be bed been before began best
better big bird black blue boat body book both box boy bring build but call came can car care carry cause center chance
change city clear close cold color come common contain cool could country course cover cross cry cut dark day deep did
differ direct do door down draw drive dry each early earth ease east eat end enough even ever every example eye face
""".split()


def load_environment(
    words: Annotated[int, prl.Arg("words of a task", min=1, max=8)] = 3,
) -> prl.Environment:
    parser = prl.XMLParser(["reversed_text"], answer_field="reversed_text")
    env = prl.SingleTurnEnv(
        "{{name}}",
        system_prompt="Reverse the text character-by-character. Put your answer in <reversed_text> tags.",
        parser=parser,
    )

    @env.tasks("eval", size=64, seed=1)
    @env.tasks("train")
    def task(rng):
        text = " ".join(rng.sample(WORDS, words))
        return {"question": text, "answer": text[::-1]}

    @env.reward
    def similarity(completion, answer):
        """How near the answer comes to the right one."""
        return SequenceMatcher(None, parser.parse_answer(completion) or "", answer).ratio()

    @env.metric
    def right(completion, answer):
        """Whether it is right."""
        return parser.parse_answer(completion) == answer

    return env
