"""Writes rows/chat.parquet and rows/chat.jsonl, the same rows. Needs pyarrow, whose structs fill what is absent with null."""

import json
import pathlib

import pyarrow
from pyarrow import parquet

call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
tool = {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": '{"type": "object"}'}}
rows = [
    {"messages": [{"role": "user", "content": "é?"}, {"role": "assistant", "content": "yes", "reasoning_content": "hm"}]},
    {"messages": [
        {"role": "user", "content": "1+?"},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "content": "2", "tool_call_id": "c1"},
        {"role": "assistant", "content": "2"},
    ], "tools": json.dumps([tool])},
    {"messages": [{"role": "user", "content": "bad"}, {"role": "assistant"}]},
]
out = pathlib.Path(__file__).parent / "rows"
(out / "chat.jsonl").write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
# Every row has every column there.
table = pyarrow.Table.from_pylist([{"messages": row["messages"], "tools": row.get("tools")} for row in rows])
parquet.write_table(table, out / "chat.parquet", compression="zstd", row_group_size=2)
