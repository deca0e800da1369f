"""Drives `prl inference` with OpenAI's own client: chat, streaming, tools, log-probabilities, completions, errors.

Usage: openai_client.py PRL_BINARY MODEL_FOLDER
"""

import json
import os
import shutil
import sys
import tempfile

import openai
from serving import Serving

KEY = "a key"
CALL = '<tool_call>\n{"name": "get", "arguments": {"a": 1}}\n</tool_call>'
TOOLS = [{"type": "function", "function": {"name": "get", "description": "d", "parameters": {"type": "object", "properties": {}}}}]


def chat(client: openai.OpenAI) -> None:
    messages = [{"role": "user", "content": "Reverse the text: abc"}]
    ask = dict(model="tiny", messages=messages, max_tokens=60, temperature=0, logprobs=True, top_logprobs=2, seed=1)
    whole = client.chat.completions.create(**ask)
    choice = whole.choices[0]
    assert choice.message.role == "assistant" and choice.finish_reason == "stop", choice.message
    tokens = choice.logprobs.content
    assert len(tokens) == whole.usage.completion_tokens and all(len(t.top_logprobs) == 2 for t in tokens)
    assert tokens[0].logprob == tokens[0].top_logprobs[0].logprob <= 0

    text, told, end, usage = "", [], None, None
    for piece in client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}):
        for part in piece.choices:
            text += part.delta.content or ""
            told += part.logprobs.content if part.logprobs else []
            end = part.finish_reason or end
        usage = piece.usage or usage
    assert (text, end) == (choice.message.content, "stop")
    assert [t.logprob for t in told] == [t.logprob for t in tokens]
    assert usage.completion_tokens == whole.usage.completion_tokens

    stopped = client.chat.completions.create(**{**ask, "stop": ["txet"]})
    assert stopped.choices[0].message.content == choice.message.content.split("txet")[0]
    several = client.chat.completions.create(**{**ask, "n": 3, "temperature": 1.5})
    assert [c.index for c in several.choices] == [0, 1, 2]
    assert len({c.message.content for c in several.choices}) > 1
    extra = client.chat.completions.create(**ask, extra_body={"return_token_ids": True, "top_k": 5, "min_p": 0.01})
    assert len(extra.choices[0].token_ids) == len(tokens) and extra.prompt_token_ids


def tools(client: openai.OpenAI) -> None:
    messages = [
        {"role": "user", "content": "call it"},
        {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": {"name": "get", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "c", "content": "42"},
        {"role": "user", "content": "Reverse the text: abc"},
    ]
    ask = dict(model="tiny", messages=messages[-1:], tools=TOOLS, temperature=0, max_tokens=60)
    choice = client.chat.completions.create(**ask).choices[0]
    assert choice.finish_reason == "tool_calls" and "tool_call" not in (choice.message.content or ""), choice
    [call] = choice.message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("get", {"a": 1}), call
    with client.chat.completions.stream(**ask) as stream:
        streamed = stream.get_final_completion().choices[0]
    assert (streamed.finish_reason, streamed.message.content) == ("tool_calls", choice.message.content), streamed
    assert streamed.message.tool_calls[0].function.arguments == call.function.arguments
    assert client.chat.completions.create(**{**ask, "messages": messages}).choices[0].finish_reason
    for choice in ("required", {"type": "function", "function": {"name": "get"}}):
        refused(lambda c=choice: client.chat.completions.create(**ask, tool_choice=c), "tool_choice")


def completions(client: openai.OpenAI) -> None:
    ask = dict(model="tiny", prompt=["abc", "defg"], max_tokens=5, temperature=0, logprobs=1)
    whole = client.completions.create(**ask, echo=True)
    assert [c.text[:3] for c in whole.choices] == ["abc", "def"]
    assert whole.choices[0].logprobs.token_logprobs[0] is None and whole.choices[0].logprobs.tokens[:3] == ["a", "b", "c"]
    texts = {0: "", 1: ""}
    for piece in client.completions.create(**ask, stream=True):
        for part in piece.choices:
            texts[part.index] += part.text
    assert [texts[0], texts[1]] == [c.text for c in client.completions.create(**ask).choices]
    ids = client.post("/../tokenize", cast_to=object, body={"prompt": "abc"})["tokens"]
    again = client.completions.create(**{**ask, "prompt": ids})
    assert again.choices[0].text == whole.choices[0].text[3:]


def refused(call, param: str, kind=openai.BadRequestError) -> None:
    try:
        call()
    except kind as error:
        assert error.param == param, error
        return
    raise SystemExit(f"not refused: {param}")


def calling(model: str, scratch: str) -> str:
    """A model that calls a tool: the token it begins its answers with is written as a whole call."""
    folder = shutil.copytree(model, os.path.join(scratch, "calling"))
    path = os.path.join(folder, "tokenizer.json")
    with open(path) as file:
        tokenizer = json.load(file)
    [token] = [t for t in tokenizer["added_tokens"] if t["content"] == "<reversed_text>"]
    token["content"] = CALL
    with open(path, "w") as file:
        json.dump(tokenizer, file)
    return folder


def served(prl: str, model: str, check) -> None:
    words = ["--served-model-name", "tiny", "--kv-cache-gb", "0.5", "--server.api-key-var", "PRL_TEST_KEY"]
    with Serving(prl, model, *words, env={**os.environ, "PRL_TEST_KEY": KEY}) as server:
        check(server.url)


def client_of(address: str, key: str = KEY) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{address}/v1", api_key=key, max_retries=0, timeout=60)


def plain(address: str) -> None:
    client = client_of(address)
    assert [m.id for m in client.models.list()] == ["tiny"]
    chat(client)
    completions(client)
    hi = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
    create = client.chat.completions.create
    refused(lambda: create(**hi, temperature=-1), "temperature")
    refused(lambda: create(**{**hi, "model": "x"}), "model", openai.NotFoundError)
    unknown = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "unknown"}}}
    refused(lambda: create(**hi, response_format=unknown), "response_format")
    refused(lambda: create(**hi, presence_penalty=2.5), "presence_penalty")
    refused(lambda: client_of(address, "another").models.list(), None, openai.AuthenticationError)


def main(prl: str, model: str) -> None:
    served(prl, model, plain)
    with tempfile.TemporaryDirectory() as scratch:
        served(prl, calling(model, scratch), lambda address: tools(client_of(address)))
    print(f"openai {openai.__version__}: chat, streaming, tools, log-probabilities, completions and errors")


main(*sys.argv[1:])
