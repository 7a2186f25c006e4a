"""Every way a request can end, against a real server on loopback that misbehaves on command."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from evals.client import Timeouts
from evals.records import RequestRecord

TEXT = {"choices": [{"index": 0, "text": "18", "finish_reason": None}]}
STOP = {"choices": [{"index": 0, "text": "", "finish_reason": "stop"}]}


def failure(record: RequestRecord) -> tuple[str, str]:
    assert record.error is not None
    assert "\n" not in record.error.message
    return record.error.leg, record.error.error_class


async def test_a_streamed_answer(ask: Any, server: Any) -> None:
    usage = {"prompt_tokens": 9, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}}
    server.behave = lambda call: call.stream("", " #### ", "1", "8", usage=usage)
    record = await ask(server.url)
    assert record.error is None
    assert (record.text, record.finish_reason, record.http_status) == (" #### 18", "stop", 200)
    assert (record.prompt_tokens, record.completion_tokens, record.cached_tokens) == (9, 3, 4)
    assert record.t_first_token is not None
    assert 0 <= record.t_submit <= record.t_first_token <= record.t_end
    assert record.itl_ms is not None and len(record.itl_ms) == 2
    assert (record.attempts, record.reasoning, record.token_ids, record.logprobs) == (1, None, None, None)
    sent = server.calls[0]
    assert sent.path == "/v1/completions"
    assert sent.body == {
        "model": "m",
        "prompt": "Question: 1+1?\nAnswer:",
        "max_tokens": 8,
        "temperature": 0.0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    assert sent.headers["x-request-id"] == record.request_id


async def test_a_whole_answer(ask: Any, server: Any) -> None:
    choice = {
        "text": "18",
        "finish_reason": "length",
        "token_ids": [5, 6],
        "logprobs": {"token_logprobs": [-0.25, -0.5]},
    }
    server.behave = lambda call: call.json({"choices": [choice], "usage": {"prompt_tokens": 9, "completion_tokens": 2}})
    record = await ask(server.url + "/v1/", stream=False)
    assert record.error is None
    assert (record.text, record.finish_reason, record.completion_tokens) == ("18", "length", 2)
    assert (record.t_first_token, record.itl_ms, record.cached_tokens) == (None, None, None)
    assert (record.token_ids, record.logprobs) == ((5, 6), (-0.25, -0.5))
    assert server.calls[0].path == "/v1/completions"
    assert "stream" not in server.calls[0].body and "stream_options" not in server.calls[0].body


async def test_usage_that_is_not_given_is_none(ask: Any, server: Any) -> None:
    server.behave = lambda call: call.stream("18")
    record = await ask(server.url)
    assert (record.prompt_tokens, record.completion_tokens, record.cached_tokens) == (None, None, None)


@pytest.mark.parametrize("key", ["reasoning", "reasoning_content"])
@pytest.mark.parametrize("stream", [True, False])
async def test_chat_keeps_reasoning_apart(ask: Any, server: Any, key: str, stream: bool) -> None:
    async def behave(call: Any) -> None:
        if not stream:
            message = {"content": "18", key: "think 7"}
            return await call.json({"choices": [{"message": message, "finish_reason": "stop"}]})
        await call.head()
        for delta in ({"role": "assistant", "content": ""}, {key: "think"}, {key: " 7"}, {"content": "18"}):
            await call.event({"choices": [{"delta": delta, "finish_reason": None}]})
        await call.event({"choices": [{"delta": {}, "finish_reason": "stop"}]})
        await call.event(b"[DONE]")
        await call.end()

    server.behave = behave
    record = await ask(server.url, stream=stream, endpoint="chat")
    assert record.error is None
    assert (record.text, record.reasoning, record.endpoint) == ("18", "think 7", "chat")
    assert server.calls[0].path == "/v1/chat/completions"
    assert server.calls[0].body["messages"] == [{"role": "user", "content": "Question: 1+1?\nAnswer:"}]
    if stream:
        assert record.itl_ms is not None and len(record.itl_ms) == 2


@pytest.mark.parametrize("stream", [True, False])
async def test_case_10_text_in_reasoning_only_is_empty(ask: Any, server: Any, stream: bool) -> None:
    async def behave(call: Any) -> None:
        if not stream:
            message = {"content": None, "reasoning": "it is 18"}
            return await call.json({"choices": [{"message": message, "finish_reason": "stop"}]})
        await call.head()
        await call.event({"choices": [{"delta": {"content": None, "reasoning": "it is 18"}}]})
        await call.event({"choices": [{"delta": {}, "finish_reason": "stop"}]})
        await call.end()

    server.behave = behave
    record = await ask(server.url, stream=stream, endpoint="chat")
    assert failure(record) == ("decode", "empty")
    assert (record.text, record.reasoning, record.finish_reason) == (None, "it is 18", "stop")


@pytest.mark.parametrize("stream", [True, False])
async def test_case_14_an_answer_without_text_is_empty(ask: Any, server: Any, stream: bool) -> None:
    server.behave = lambda call: (
        call.stream("", finish="stop") if stream else call.json({"choices": [{"text": "", "finish_reason": "stop"}]})
    )
    assert failure(await ask(server.url, stream=stream)) == ("decode", "empty")


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"error": {"message": "max_tokens\nis too big", "code": 400}}, "400: max_tokens is too big"),
        ({"object": "error", "message": "too long"}, "400: too long"),
        ({"detail": [{"loc": ["body"]}]}, '400: [{"loc":["body"]}]'),
        ({"error": "no"}, "400: no"),
        ([], "400: Bad Request"),
    ],
)
async def test_a_status_of_400_or_more_tells_its_body(
    ask: Any, server: Any, stream: bool, body: Any, said: str
) -> None:
    server.behave = lambda call: call.json(body, "400 Bad Request")
    record = await ask(server.url, stream=stream)
    assert failure(record) == ("decode", "http_status")
    assert record.error is not None and record.error.message == said
    assert record.http_status == 400


async def test_a_body_that_is_not_json_is_told_too(ask: Any, server: Any) -> None:
    server.behave = lambda call: call.whole(b"<h1>Bad\nGateway</h1>" + b"x" * 9999, "502 Bad Gateway", "text/html")
    record = await ask(server.url, default_leg="proxy")
    assert failure(record) == ("proxy", "http_status")
    assert record.error is not None
    assert record.error.message.startswith("502: <h1>Bad Gateway</h1>") and len(record.error.message) < 600


async def test_the_proxy_names_leg_and_class(ask: Any, server: Any) -> None:
    headers = {"x_pdrig_error_leg": "prefill", "x_pdrig_error_class": "no_kv_params"}
    server.behave = lambda call: call.json({"error": {"message": "none"}}, "502 Bad Gateway", **headers)
    assert failure(await ask(server.url, default_leg="proxy")) == ("prefill", "no_kv_params")
    headers = {"x_pdrig_error_leg": "moon", "x_pdrig_error_class": "x"}
    assert failure(await ask(server.url, default_leg="proxy")) == ("proxy", "http_status")


@pytest.mark.parametrize("status", ["204 No Content", "302 Found"])
async def test_an_answer_that_is_neither_200_nor_an_error(ask: Any, server: Any, status: str) -> None:
    server.behave = lambda call: call.whole(b"", status, location="http://127.0.0.1:1/")
    assert failure(await ask(server.url)) == ("decode", "bad_response")


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        ({"error": {"message": "boom", "leg": "prefill", "class": "reset"}}, ("prefill", "reset")),
        ({"error": {"message": "boom", "code": 500}}, ("decode", "stream_error")),
        ({"error": {"message": "boom", "leg": "moon", "class": 3}}, ("decode", "stream_error")),
        ({"object": "error", "message": "boom"}, ("decode", "stream_error")),
        ({"choices": [], "error": "boom"}, ("decode", "stream_error")),
    ],
)
async def test_case_15_an_error_within_the_stream(ask: Any, server: Any, event: Any, expected: tuple[str, str]) -> None:
    async def behave(call: Any) -> None:
        await call.head()
        for _ in range(3):
            await call.event(TEXT)
        await call.event(event)
        await call.event(b"[DONE]")
        await call.end()

    server.behave = behave
    record = await ask(server.url)
    assert failure(record) == expected
    assert record.error is not None and record.error.message == "boom"
    assert record.text == "181818"


async def test_what_an_answer_through_the_proxy_holds_is_decodes(ask: Any, server: Any) -> None:
    async def behave(call: Any) -> None:
        await call.head(x_pdrig_decode="decode-0")
        await call.event({"error": {"message": "boom"}})
        await call.end()

    server.behave = behave
    assert failure(await ask(server.url, default_leg="proxy")) == ("decode", "stream_error")


async def test_case_15_headers_then_a_closed_connection(ask: Any, server: Any) -> None:
    async def behave(call: Any) -> None:
        await call.head()
        call.hang_up()

    server.behave = behave
    assert failure(await ask(server.url)) == ("decode", "stream_cut")


async def test_a_stream_that_ends_in_order_without_an_end_mark_is_cut(ask: Any, server: Any) -> None:
    async def behave(call: Any) -> None:
        await call.head()
        await call.event(TEXT)
        await call.end()

    server.behave = behave
    record = await ask(server.url)
    assert failure(record) == ("decode", "stream_cut")
    assert record.text == "18"


async def test_a_body_that_ends_with_the_connection_is_cut_too(ask: Any, server: Any) -> None:
    async def behave(call: Any) -> None:
        await call.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
        await call.send(b'data: {"choices":[{"text":"18"}]}\n\ndata: {"cho')
        call.hang_up()

    server.behave = behave
    assert failure(await ask(server.url)) == ("decode", "stream_cut")


@pytest.mark.parametrize("mark", [STOP, b"[DONE]"])
async def test_either_end_mark_is_enough(ask: Any, server: Any, mark: Any) -> None:
    async def behave(call: Any) -> None:
        await call.head()
        await call.event(TEXT)
        await call.event(mark)
        await call.end()

    server.behave = behave
    record = await ask(server.url)
    assert (record.error, record.text) == (None, "18")


@pytest.mark.parametrize("ending", ["hang_up", "reset", "nothing"])
async def test_what_follows_done_does_not_matter(ask: Any, server: Any, ending: str) -> None:
    async def behave(call: Any) -> None:
        await call.head()
        await call.event(TEXT)
        await call.event(b"[DONE]")
        await call.event(b"{not json")
        if ending == "nothing":
            await asyncio.Event().wait()
        getattr(call, ending)()

    server.behave = behave
    record = await ask(server.url, timeouts=Timeouts(idle=60))
    assert (record.error, record.text) == (None, "18")


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("stream", [True, False])
async def test_a_broken_connection_is_a_reset(ask: Any, server: Any, begun: bool, stream: bool) -> None:
    async def behave(call: Any) -> None:
        if begun:
            await call.head(kind="text/event-stream" if stream else "application/json")
            await call.chunk(b'data: {"choices":[{"text":"1"}]}\n\n')
        call.reset()

    server.behave = behave
    assert failure(await ask(server.url, stream=stream)) == ("decode", "reset")


async def test_a_connection_closed_before_any_answer_is_a_reset(ask: Any, server: Any) -> None:
    async def behave(call: Any) -> None:
        call.hang_up()

    server.behave = behave
    assert failure(await ask(server.url, default_leg="proxy")) == ("proxy", "reset")


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"hello", "text/plain"),
        (b"[]", "application/json"),
        (b"{}", "application/json"),
        (b'{"choices": []}', "application/json"),
        (b'{"choices": [{"text": 5}]}', "application/json"),
        (b'{"choices": {"a": 1}}', "application/json"),
        (b'{"choices": [{"text": "18"}], "usage": 3}', "application/json"),
        (b"", "application/json"),
    ],
)
async def test_what_is_not_the_api_is_a_bad_response(ask: Any, server: Any, data: bytes, kind: str) -> None:
    server.behave = lambda call: call.whole(data, kind=kind)
    assert failure(await ask(server.url, stream=False)) == ("decode", "bad_response")


@pytest.mark.parametrize(
    "event", [b"{oops", b"[1]", b'{"choices": [3]}', b'{"id": "x"}', b'{"choices":[{"text":[1]}]}']
)
async def test_an_event_that_is_not_the_api_is_a_bad_response(ask: Any, server: Any, event: bytes) -> None:
    async def behave(call: Any) -> None:
        await call.head()
        await call.event(event)
        await call.end()

    server.behave = behave
    assert failure(await ask(server.url)) == ("decode", "bad_response")


async def test_one_object_instead_of_a_stream_is_a_bad_response(ask: Any, server: Any) -> None:
    server.behave = lambda call: call.json({"choices": [{"text": "18", "finish_reason": "stop"}]})
    assert failure(await ask(server.url)) == ("decode", "bad_response")


PAGE = b"<!DOCTYPE html>\n<html>\n\n<body>503 upstream: none</body></html>\n"
OBJECT = b'{"choices": [{"text": "18", "finish_reason": "stop"}]}'


@pytest.mark.parametrize("kind", ["text/html", "text/event-stream", "text/plain; charset=utf-8"])
@pytest.mark.parametrize("body", [PAGE, OBJECT, OBJECT.replace(b", ", b",\n\n"), b"idle"])
@pytest.mark.parametrize("bytewise", [False, True])
async def test_a_body_without_events_where_a_stream_was_asked_for_is_a_bad_response(
    ask: Any, server: Any, body: bytes, kind: str, bytewise: bool
) -> None:
    async def behave(call: Any) -> None:
        await call.head(kind=kind)
        for part in [body[i : i + 1] for i in range(len(body))] if bytewise else [body]:
            await call.chunk(part)
        await call.end()

    server.behave = behave
    record = await ask(server.url)
    assert failure(record) == ("decode", "bad_response")
    shown = " ".join(body.decode().split())
    assert record.error.message == f"asked for a stream of events, got {kind.partition(';')[0]}: {shown}"


@pytest.mark.parametrize(
    "body", [b"", b"da", b"\xef\xbb\xbfdata: {", b": ping\n\n", b"event: x\r\nid:", b"\n\nretry: 5\n"]
)
async def test_a_stream_that_ends_before_its_first_event_is_cut(ask: Any, server: Any, body: bytes) -> None:
    server.behave = lambda call: call.whole(body, kind="text/event-stream")
    assert failure(await ask(server.url)) == ("decode", "stream_cut")


async def test_what_is_not_http_is_a_bad_response(ask: Any, server: Any) -> None:
    async def behave(call: Any) -> None:
        await call.send(b"220 smtp ready\r\n\r\n")
        call.hang_up()

    server.behave = behave
    assert failure(await ask(server.url)) == ("decode", "bad_response")
