"""The conversations in chat_rows.jsonl as tokens, by transformers alone: what the assistant wrote is found by rendering each turn
with and without the answer."""

import json
import pathlib

PATH = pathlib.Path(__file__).parent / "chat_rows.jsonl"


def documents(tokenizer):
    """Ids and the places of targets of each conversation."""

    def ids_of(messages, generate=False):
        return tokenizer.apply_chat_template(messages, add_generation_prompt=generate, return_dict=True)["input_ids"]

    end = tokenizer.eos_token_id
    for line in PATH.read_text().splitlines():
        messages = json.loads(line)["messages"]
        ids, targets = ids_of(messages), []
        for n, message in enumerate(messages):
            if message["role"] == "assistant":
                before, through = ids_of(messages[:n], True), ids_of(messages[: n + 1])
                assert through[: len(before)] == before and ids[: len(through)] == through, messages
                last = len(through) - 1 - through[::-1].index(end)
                targets += range(len(before), last + 1)
        assert targets
        yield ids, targets
