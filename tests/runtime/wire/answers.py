"""Answers as servers word them, made up for these tests."""

import json
from collections.abc import Sequence

Event = dict[str, object]


def stream(
    events: Sequence[Event], *, named: bool = False, done: bool = False
) -> bytes:
    """Return *events* as they are sent: with their names, with [DONE] at the end."""
    blocks = [
        (f"event: {event['type']}\n" if named else "")
        + f"data: {json.dumps(event)}\n\n"
        for event in events
    ]
    return "".join([*blocks, "data: [DONE]\n\n" if done else ""]).encode()


def chunk(
    delta: Event, finish: str | None = None, *, index: int = 0, **extra: object
) -> Event:
    """Return one chunk of a chat completion."""
    choice = {"index": index, "delta": delta, "finish_reason": finish}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "model": "m",
        "choices": [choice],
        **extra,
    }


def call_delta(index: int, id: str | None, name: str | None, arguments: str) -> Event:
    """Return a piece of a tool call in a chat: the first has an id and a name."""
    function = {"arguments": arguments} | ({"name": name} if name else {})
    head = {"id": id, "type": "function"} if id else {}
    return {"tool_calls": [{"index": index, **head, "function": function}]}


CHAT_USAGE = {
    "prompt_tokens": 10,
    "completion_tokens": 5,
    "total_tokens": 15,
    "prompt_tokens_details": {"cached_tokens": 8},
}
TIMINGS = {
    "cache_n": 8,
    "prompt_n": 2,
    "prompt_ms": 20.5,
    "predicted_n": 5,
    "predicted_ms": 100,
}
CHAT: list[Event] = [
    chunk({"role": "assistant", "content": None}),
    chunk({"content": "Let me "}),
    chunk({"content": 'see: "finish_reason": "stop"'}),
    chunk(call_delta(0, "c1", "ls", "")),
    chunk(call_delta(0, None, None, '{"path"')),
    chunk(call_delta(0, None, None, ': "."}')),
    chunk(call_delta(1, "c2", "cat", "{}")),
    chunk({}, "tool_calls", timings=TIMINGS),
    {**chunk({}), "choices": [], "usage": CHAT_USAGE},
]
CHAT_WHOLE: Event = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "choices": [
        {
            "index": 0,
            "message": {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {"id": id, "type": "function", "function": {"name": name}}
                    for id, name in (("c1", "ls"), ("c2", "cat"))
                ],
            },
            "finish_reason": "tool_calls",
        }
    ],
    "usage": CHAT_USAGE,
    "timings": TIMINGS,
}

COMPLETION: list[Event] = [
    {
        "id": "cmpl-1",
        "object": "text_completion",
        "choices": [{"index": 0, "text": text, "finish_reason": finish}],
    }
    for text, finish in (("a", None), ("b", None), ("", "length"))
]

RESPONSE_ITEMS: list[Event] = [
    {"type": "reasoning", "id": "rs_1", "summary": []},
    {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "ls"},
    {"type": "custom_tool_call", "id": "ct_1", "call_id": "c2", "name": "patch"},
    {"type": "local_shell_call", "id": "ls_1", "call_id": "c3", "action": {}},
    {"type": "web_search_call", "id": "ws_1", "status": "completed"},
    {"type": "mcp_approval_request", "id": "mcpr_1", "name": "roll", "arguments": "{}"},
]
RESPONSE_WHOLE: Event = {
    "id": "resp_1",
    "object": "response",
    "status": "completed",
    "error": None,
    "incomplete_details": None,
    "instructions": "Be brief." * 100,
    "output": RESPONSE_ITEMS,
    "usage": {
        "input_tokens": 10,
        "input_tokens_details": {"cached_tokens": 8},
        "output_tokens": 5,
    },
}
RESPONSE: list[Event] = [
    {
        "type": "response.created",
        "response": {**RESPONSE_WHOLE, "status": "in_progress", "output": []},
    },
    *(
        {"type": f"response.output_item.{what}", "output_index": index, "item": item}
        for index, item in enumerate(RESPONSE_ITEMS)
        for what in ("added", "done")
    ),
    {"type": "response.function_call_arguments.delta", "item_id": "fc_1", "delta": "{"},
    {"type": "response.function_call_arguments.done", "arguments": "{}"},
    {"type": "response.completed", "response": RESPONSE_WHOLE},
]

MESSAGE_USAGE = {
    "input_tokens": 1,
    "cache_read_input_tokens": 8,
    "cache_creation_input_tokens": 1,
}
USES: list[Event] = [
    {"type": "tool_use", "id": "t1", "name": "Bash", "input": {}},
    {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {}},
    {"type": "tool_use", "id": "t2", "name": "Read", "input": {}},
]


def block(index: int, use: Event) -> list[Event]:
    """Return the events of a block of content in a message: a tool's use."""
    delta = {"type": "input_json_delta", "partial_json": "{}"}
    return [
        {"type": "content_block_start", "index": index, "content_block": use},
        {"type": "content_block_delta", "index": index, "delta": delta},
        {"type": "content_block_stop", "index": index},
    ]


MESSAGE: list[Event] = [
    {
        "type": "message_start",
        "message": {
            "id": "msg_1",
            "content": [],
            "stop_reason": None,
            "usage": {**MESSAGE_USAGE, "output_tokens": 1},
        },
    },
    {"type": "ping"},
    *(event for index, use in enumerate(USES) for event in block(index, use)),
    {
        "type": "message_delta",
        "delta": {"stop_reason": "tool_use", "stop_sequence": None},
        "usage": {"output_tokens": 5},
    },
    {"type": "message_stop"},
]
MESSAGE_WHOLE: Event = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "content": USES,
    "stop_reason": "tool_use",
    "usage": {**MESSAGE_USAGE, "output_tokens": 5},
}
