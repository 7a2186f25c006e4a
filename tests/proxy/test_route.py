"""The hot path between misbehaving engines and clients, on real sockets."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from clocks import Clock

ENDPOINTS = {
    "/v1/completions": {"prompt": "two and two"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "two and two"}]},
}


def marks(answer: aiohttp.ClientResponse) -> tuple[str | None, str | None]:
    return answer.headers.get("x-pdrig-error-leg"), answer.headers.get("x-pdrig-error-class")


def events(text: str) -> list[Any]:
    rows = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
    return [row if row == "[DONE]" else json.loads(row) for row in rows]


@pytest.mark.parametrize("path", ENDPOINTS)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_hand_off(pd: Any, path: str, stream: bool) -> None:
    async with pd.post(path, stream=stream, headers={"X-Request-Id": "mine"}, **ENDPOINTS[path]) as answer:
        text = await answer.text()
    assert answer.status == 200
    assert answer.headers["x-pdrig-request-id"] == "mine"
    assert (answer.headers["x-pdrig-prefill"], answer.headers["x-pdrig-decode"]) == ("prefill-0", "decode-0")
    if stream:
        assert events(text)[-1] == "[DONE]"
        assert " ".join(e["choices"][0]["text"] for e in events(text)[:-1]) == "answer to two and two"
    else:
        assert json.loads(text)["choices"][0]["text"] == "answer to two and two"

    first, second = pd.prefill[0].seen[0], pd.decode[0].seen[0]
    assert first.path == second.path == path
    assert first.body["stream"] is False and first.body["max_tokens"] == 1
    assert first.body["kv_transfer_params"]["do_remote_decode"] is True
    assert second.body["kv_transfer_params"]["remote_engine_id"] == f"engine-of-{pd.prefill[0].url}"
    assert first.headers["X-Request-Id"] == second.headers["X-Request-Id"] != "mine"

    one, two = await pd.legs()
    assert (one["leg"], one["instance"], one["status"], one["error"]) == ("prefill", "prefill-0", 200, None)
    assert (two["leg"], two["instance"], two["status"], two["error"]) == ("decode", "decode-0", 200, None)
    assert one["request_id"] == two["request_id"] == "mine"
    assert one["engine_request_id"] == two["engine_request_id"] == first.headers["X-Request-Id"]
    assert one["engine_id"] == f"engine-of-{pd.prefill[0].url}" and two["engine_id"] is None
    assert one["params_present"] is two["params_present"] is True
    assert one["t_start"] <= one["t_first_byte"] <= one["t_end"] <= two["t_start"] <= two["t_end"]


async def test_round_robin_reaches_every_pair(deploy: Any) -> None:
    async with deploy(prefill=2, decode=2) as pd:
        pairs = []
        for _ in range(8):
            async with pd.post() as answer:
                pairs.append((answer.headers["x-pdrig-prefill"][-1], answer.headers["x-pdrig-decode"][-1]))
        assert sorted(pairs) == sorted([(p, d) for p in "01" for d in "01"] * 2)
        assert [len(e.seen) for e in (*pd.prefill, *pd.decode)] == [4, 4, 4, 4]


NO_PARAMS = [{"absent": 1}, {"kv_transfer_params": None}, {"kv_transfer_params": {}}]


def giving(value: dict[str, Any]) -> Any:
    async def behave(engine: Any, request: web.Request, body: Any) -> web.Response:
        return web.json_response({"choices": [], **value})

    return behave


@pytest.mark.parametrize("value", NO_PARAMS)
async def test_case_11_no_params_is_never_a_pass(pd: Any, value: dict[str, Any]) -> None:
    pd.prefill[0].behave = giving(value)
    async with pd.post() as answer:
        assert answer.status == 502 and marks(answer) == ("prefill", "no_kv_params")
        assert (await answer.json())["error"]["class"] == "no_kv_params"
    assert pd.decode[0].seen == []
    (line,) = await pd.legs()
    assert line["params_present"] is False and line["error"]["class"] == "no_kv_params" and line["status"] == 200


@pytest.mark.parametrize("value", NO_PARAMS)
async def test_case_11_lenient_lets_it_through_and_marks_it(deploy: Any, value: dict[str, Any]) -> None:
    async with deploy(lenient=True) as pd:
        pd.prefill[0].behave = giving(value)
        async with pd.post(kv_transfer_params={"do_remote_prefill": True}) as answer:
            assert answer.status == 200 and answer.headers["x-pdrig-lenient"] == "no_kv_params"
        assert "kv_transfer_params" not in pd.decode[0].seen[0].body
        first, second = await pd.legs()
        assert first["params_present"] is second["params_present"] is False
        assert first["error"] is second["error"] is None
        assert await pd.metric("pdrig_proxy_lenient_total") == 1


async def test_case_12_a_dead_prefill_is_not_hidden(deploy: Any, closed_port: int) -> None:
    async with deploy(prefill=0, urls={"prefill": [f"http://127.0.0.1:{closed_port}"]}) as pd:
        async with pd.post(stream=True) as answer:
            assert answer.status == 502 and marks(answer) == ("prefill", "connect")
        assert pd.decode[0].seen == []
        async with pd.client.get(pd.url + "/health") as answer:
            assert answer.status == 503
            instances = (await answer.json())["instances"]
            assert [(i["name"], i["up"]) for i in instances] == [("prefill-0", False), ("decode-0", True)]


@pytest.mark.parametrize("leg", ["prefill", "decode"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("status", [400, 401, 404, 429, 500, 503])
async def test_case_14_status_and_body_of_the_failing_leg(
    pd: Any, play: Any, leg: str, stream: bool, status: int
) -> None:
    async def refuse(engine: Any, request: web.Request, body: Any) -> web.Response:
        answer = play.refuse(status, "this model's maximum context length is 2048")
        answer.headers["Retry-After"] = "7"
        return answer

    getattr(pd, leg)[0].behave = refuse
    async with pd.post(stream=stream) as answer:
        assert answer.status == status and marks(answer) == (leg, "http_status")
        assert answer.headers["Retry-After"] == "7"
        assert await answer.read() == refuse_body(status)
    line = (await pd.legs())[-1]
    assert line["leg"] == leg and line["status"] == status
    assert line["error"]["class"] == "http_status" and "2048" in line["error"]["message"]


def refuse_body(status: int) -> bytes:
    text = "this model's maximum context length is 2048"
    return json.dumps({"error": {"message": text, "type": "BadRequestError", "code": status}}).encode()


@pytest.mark.parametrize("body", [b"", b"<html>nginx</html>", b'{"choices": ['])
async def test_case_14_an_unusable_200_is_an_error(pd: Any, body: bytes) -> None:
    async def useless(engine: Any, request: web.Request, _: Any) -> web.Response:
        return web.Response(body=body, content_type="application/json")

    pd.decode[0].behave = useless
    async with pd.post() as answer:
        assert answer.status == 502 and marks(answer) == ("decode", "bad_response")
    pd.prefill[0].behave = useless
    async with pd.post() as answer:
        assert answer.status == 502 and marks(answer) == ("prefill", "bad_response")


async def test_case_15_an_error_inside_the_stream(pd: Any, play: Any) -> None:
    async def fails(engine: Any, request: web.Request, body: Any) -> web.StreamResponse:
        response = await play.begin_stream(request)
        for word in ("a", "b", "c"):
            await play.send_token(response, word)
        await response.write(b'data: {"error": {"message": "Internal server err')
        await asyncio.sleep(0.05)
        await response.write(b'or", "type": "InternalServerError", "code": 500}}\n\n')
        return response

    pd.decode[0].behave = fails
    async with pd.post(stream=True) as answer:
        seen = events(await answer.text())
    assert answer.status == 200 and len(seen) == 4
    assert seen[-1]["error"]["message"] == "Internal server error"
    assert (await pd.legs())[-1]["error"] == {
        "leg": "decode",
        "class": "stream_error",
        "message": "Internal server error",
    }


@pytest.mark.parametrize("how", ["close", "abort", "half event", "clean end"])
async def test_case_15_a_stream_that_is_cut(pd: Any, play: Any, how: str) -> None:
    async def cut(engine: Any, request: web.Request, body: Any) -> web.StreamResponse:
        response = await play.begin_stream(request)
        for word in ("a", "b", "c"):
            await play.send_token(response, word)
        if how == "half event":
            await response.write(b'data: {"choices": [{"te')
        if how != "clean end":
            await asyncio.sleep(0.05)
            assert request.transport is not None
            request.transport.abort() if how == "abort" else request.transport.close()
        return response

    pd.decode[0].behave = cut
    async with pd.post(stream=True) as answer:
        seen = events(await answer.text())
    assert [e["choices"][0]["text"] for e in seen[:3]] == ["a", "b", "c"]
    assert len(seen) == 4 and seen[3]["error"]["class"] == "stream_cut" and seen[3]["error"]["leg"] == "decode"
    assert (await pd.legs())[-1]["error"]["class"] == "stream_cut"


@pytest.mark.parametrize("body", [b"<html>\n<p>nginx</p>\n</html>\n", b'{"choices": []}'])
async def test_a_body_that_is_no_stream_of_events_is_a_bad_response(pd: Any, play: Any, body: bytes) -> None:
    async def page(engine: Any, request: web.Request, _: Any) -> web.StreamResponse:
        response = await play.begin_stream(request)
        await response.write(body)
        return response

    pd.decode[0].behave = page
    async with pd.post(stream=True) as answer:
        said = await answer.text()
    assert json.loads(said[said.index('{"error"') :])["error"]["class"] == "bad_response"
    error = (await pd.legs())[-1]["error"]
    assert (error["leg"], error["class"]) == ("decode", "bad_response")
    assert f"answered 200 with {body[:120]!r} in place of a stream" in error["message"]


@pytest.mark.parametrize("stream", [False, True])
async def test_case_15_a_connection_closed_before_any_byte(pd: Any, play: Any, stream: bool) -> None:
    async def slam(engine: Any, request: web.Request, body: Any) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.close()
        return web.Response()

    pd.decode[0].behave = slam
    async with pd.post(stream=stream) as answer:
        assert answer.status == 502 and marks(answer) == ("decode", "reset")

    async def headers_then_close(engine: Any, request: web.Request, body: Any) -> web.StreamResponse:
        response = await play.begin_stream(request)
        assert request.transport is not None
        request.transport.close()
        return response

    pd.decode[0].behave = headers_then_close
    async with pd.post(stream=stream) as answer:
        assert answer.status == 502 and marks(answer) == ("decode", "reset")


async def test_case_16_many_at_once(deploy: Any) -> None:
    async with deploy(prefill=2, decode=2) as pd:
        for engine in (*pd.prefill, *pd.decode):
            engine.hold = 0.05

        async def ask(i: int) -> None:
            async with pd.post(prompt=f"q{i}", stream=bool(i % 2), headers={"X-Request-Id": f"r{i}"}) as answer:
                text = await answer.text()
                assert answer.status == 200, text
                words = [e["choices"][0]["text"] for e in events(text)[:-1]] if i % 2 else []
                assert f"answer to q{i}" == (" ".join(words) or json.loads(text)["choices"][0]["text"])

        await asyncio.gather(*(ask(i) for i in range(400)))
        lines = await pd.legs()
        assert len(lines) == 800 and not [line for line in lines if line["error"]]
        assert len({line["engine_request_id"] for line in lines}) == 400
        assert await pd.metric("pdrig_proxy_in_flight") == 0


@pytest.mark.parametrize("path", ENDPOINTS)
@pytest.mark.parametrize("stream", [False, True])
async def test_case_17_parameters_illegal_on_prefill(pd: Any, path: str, stream: bool) -> None:
    extra: dict[str, Any] = {"min_tokens": 5, "min_completion_tokens": 4, "max_tokens": 9, "max_completion_tokens": 9}
    if stream:
        extra["stream_options"] = {"include_usage": True}
    async with pd.post(path, stream=stream, **extra, **ENDPOINTS[path]) as answer:
        assert answer.status == 200, await answer.text()
    first, second = pd.prefill[0].seen[0].body, pd.decode[0].seen[0].body
    assert not {"min_tokens", "min_completion_tokens", "stream_options"} & first.keys()
    assert first["max_tokens"] == first["max_completion_tokens"] == 1
    second.pop("kv_transfer_params")
    assert second == {"model": "m", "stream": stream, **extra, **ENDPOINTS[path]}


@pytest.mark.parametrize("header", [None, "Bearer s3cr3t-token-value"])
async def test_case_18_authorization_goes_to_both_legs(
    pd: Any, header: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    async def echo(engine: Any, request: web.Request, body: Any) -> web.Response:
        return web.json_response({"error": {"message": f"bad key {request.headers.get('Authorization')}"}}, status=401)

    pd.decode[0].behave = echo
    headers = {"X-Custom": "kept", "Connection": "keep-alive, X-Hop", "X-Hop": "1", "TE": "trailers"}
    async with pd.post(headers=headers | ({"Authorization": header} if header else {})) as answer:
        assert answer.status == 401
    for engine in (pd.prefill[0], pd.decode[0]):
        got = engine.seen[0].headers
        assert got.get("Authorization") == header
        assert got["X-Custom"] == "kept" and "X-Hop" not in got and "TE" not in got
    await pd.legs()
    assert "s3cr3t" not in pd.legs_file.read_text() + caplog.text


async def test_case_19_two_requests_with_one_client_id(pd: Any) -> None:
    pd.decode[0].hold = 0.1

    async def ask() -> int:
        async with pd.post(headers={"X-Request-Id": "same"}) as answer:
            return answer.status

    assert await asyncio.gather(ask(), ask()) == [200, 200]
    ids = [seen.headers["X-Request-Id"] for seen in pd.prefill[0].seen]
    assert len(set(ids)) == 2 and all(i.startswith("same-") for i in ids)
    assert {line["request_id"] for line in await pd.legs()} == {"same"}


@pytest.mark.parametrize("leg", ["prefill", "decode"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("headers_first", [False, True])
async def test_case_20_a_first_byte_deadline(
    deploy: Any, play: Any, leg: str, stream: bool, headers_first: bool
) -> None:
    clock, silent = Clock(), asyncio.Event()

    async def nothing(engine: Any, request: web.Request, body: Any) -> web.StreamResponse:
        if headers_first:
            await play.begin_stream(request)
        silent.set()
        await play.forever()
        raise AssertionError

    async with deploy(first_byte_timeout=30) as pd:
        engine = getattr(pd, leg)[0]
        engine.behave = nothing

        async def ask() -> tuple[int, Any]:
            async with pd.post(stream=stream) as answer:
                return answer.status, marks(answer)

        asked = asyncio.create_task(ask())
        await silent.wait()
        clock.advance(30)
        assert await asked == (504, (leg, "first_byte_timeout"))
        await engine.left.wait()
        assert (await pd.legs())[-1]["error"]["class"] == "first_byte_timeout"


@pytest.mark.parametrize("stream", [False, True])
async def test_case_20_an_idle_deadline(deploy: Any, play: Any, stream: bool) -> None:
    async def stalls(engine: Any, request: web.Request, body: Any) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream" if stream else "application/json"})
        await response.prepare(request)
        await (play.send_token(response, "a") if stream else response.write(b'{"choices"'))
        await play.forever()
        raise AssertionError

    async with deploy(idle_timeout=1) as pd:
        pd.decode[0].behave = stalls
        async with pd.post(stream=stream) as answer:
            text = await answer.text()
        if stream:
            last = events(text)[-1]["error"]
            assert (answer.status, last["class"], last["leg"], last["code"]) == (200, "idle_timeout", "decode", 504)
        else:
            assert answer.status == 504 and marks(answer) == ("decode", "idle_timeout")
        await pd.decode[0].left.wait()


async def test_case_20_a_connect_deadline(deploy: Any) -> None:
    with socket.socket() as deaf, socket.socket() as first, socket.socket() as second:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)
        for filler in (first, second):
            filler.setblocking(False)
            filler.connect_ex(deaf.getsockname())
        side = {"prefill": [f"http://127.0.0.1:{deaf.getsockname()[1]}"]}
        async with deploy(connect_timeout=0.2, prefill=0, urls=side) as pd, pd.post() as answer:
            assert answer.status == 504 and marks(answer) == ("prefill", "connect_timeout")


async def test_no_deadline_runs_while_the_client_is_slow(deploy: Any, play: Any) -> None:
    async def plenty(engine: Any, request: web.Request, body: Any) -> web.StreamResponse:
        response = await play.begin_stream(request)
        for _ in range(300):
            await play.send_token(response, "x" * 60_000)
        await response.write(b"data: [DONE]\n\n")
        return response

    async with deploy(idle_timeout=3) as pd:
        pd.decode[0].behave = plenty
        async with pd.post(stream=True) as answer:
            await answer.content.readany()
            await asyncio.sleep(4)
            rest = await answer.read()
        assert rest.endswith(b"data: [DONE]\n\n") and b'"error"' not in rest


@pytest.mark.parametrize("leg", ["prefill", "decode"])
async def test_case_24_a_client_that_goes_away(pd: Any, play: Any, leg: str) -> None:
    async def slow(engine: Any, request: web.Request, body: Any) -> web.StreamResponse:
        if engine.role == "decode":
            response = await play.begin_stream(request)
            await play.send_token(response, "a")
        await play.forever()
        raise AssertionError

    engine = getattr(pd, leg)[0]
    engine.behave = slow

    async def ask() -> None:
        async with pd.post(stream=True) as answer:
            await answer.read()

    tasks = [asyncio.create_task(ask()) for _ in range(20)]
    while len(engine.seen) < 20:
        engine.arrived.clear()
        await engine.arrived.wait()
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    await engine.left.wait()
    engine.behave = None
    async with pd.post() as answer:
        assert answer.status == 200
    lines = await settled(pd, 20 + 2 if leg == "prefill" else 40 + 2)
    cancelled = [line for line in lines if line["error"]]
    assert len(cancelled) == 20 and {line["leg"] for line in cancelled} == {leg}
    assert {line["error"]["class"] for line in cancelled} == {"cancelled"}


async def settled(pd: Any, count: int) -> list[dict[str, Any]]:
    """The legs, once there are `count`: what ends a leg runs after the test's own tasks."""
    while len(lines := await pd.legs()) < count:
        pass
    return lines


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"prompt": ["a", "b"]}, "one prompt"),
        ({"prompt": [[1, 2], [3]]}, "one prompt"),
        ({"prompt": "a", "prompt_embeds": "abcd"}, "one prompt"),
        ({"n": 2}, "n must be 1"),
        ({"n": "3"}, "n must be 1"),
        ({"best_of": 2}, "best_of must be 1"),
        ({"use_beam_search": True}, "beam search"),
    ],
)
async def test_what_cannot_be_handed_off_is_refused(pd: Any, body: dict[str, Any], says: str) -> None:
    async with pd.post(**body) as answer:
        assert answer.status == 400 and marks(answer) == ("proxy", "refused")
        error = (await answer.json())["error"]
    assert says in error["message"] and error["code"] == 400 and error["param"]
    assert pd.prefill[0].seen == pd.decode[0].seen == []


@pytest.mark.parametrize("raw", [b"", b"{", b"[1]", b"null", b'"x"', b"\xff\xfe", b"[" * 5000])
async def test_a_body_that_is_no_json_object_is_refused(pd: Any, raw: bytes) -> None:
    async with pd.client.post(pd.url + "/v1/completions", data=raw) as answer:
        assert answer.status == 400 and marks(answer) == ("proxy", "refused")


@pytest.mark.parametrize("prompt", ["text", ["text"], [1, 2, 3], [[1, 2, 3]]])
async def test_every_form_of_one_prompt_is_handed_off(pd: Any, prompt: Any) -> None:
    async with pd.post(prompt=prompt, n=1, best_of=1) as answer:
        assert answer.status == 200
    assert pd.prefill[0].seen[0].body["prompt"] == pd.decode[0].seen[0].body["prompt"] == prompt


@pytest.mark.parametrize("leg", ["prefill", "decode"])
async def test_a_server_that_closes_idle_connections_costs_no_request(pd: Any, play: Any, leg: str) -> None:
    """A reused connection that is closed under the request: begun again, once, with an id of its own."""
    served: set[int] = set()

    async def once_a_connection(engine: Any, request: web.Request, body: Any) -> web.StreamResponse:
        assert request.transport is not None
        port = request.transport.get_extra_info("peername")[1]
        if port in served:
            request.transport.close()
            return web.Response()
        served.add(port)
        return await play.ordinary(engine, request, body)

    getattr(pd, leg)[0].behave = once_a_connection
    async with pd.post(stream=True) as answer:
        assert answer.status == 200 and "x-pdrig-retries" not in answer.headers
        await answer.read()
    async with pd.post(stream=True) as answer:
        assert answer.status == 200 and answer.headers["x-pdrig-retries"] == "1"
        assert (await answer.text()).endswith("[DONE]\n\n")
    assert await pd.metric(f'pdrig_proxy_retries_total{{leg="{leg}"}}') == 1
    ids = [seen.headers["X-Request-Id"] for seen in getattr(pd, leg)[0].seen]
    assert len(ids) == 3 == len(set(ids))
    tickets = [seen.body["kv_transfer_params"]["remote_request_id"] for seen in pd.decode[0].seen]
    assert len(tickets) == len(set(tickets))
    assert not [line for line in await pd.legs() if line["error"]]


async def test_a_server_that_always_closes_is_tried_twice_at_most(pd: Any, play: Any) -> None:
    async with pd.post() as answer:
        assert answer.status == 200

    async def slam(engine: Any, request: web.Request, body: Any) -> web.Response:
        assert request.transport is not None
        request.transport.close()
        return web.Response()

    pd.decode[0].behave = slam
    async with pd.post() as answer:
        assert answer.status == 502 and marks(answer) == ("decode", "reset")
    assert len(pd.decode[0].seen) == 3


async def test_push_mode(deploy: Any) -> None:
    async with deploy(mode="push") as pd:
        async with pd.post(headers={"X-Request-Id": "mine"}) as answer:
            assert answer.status == 200
        given = pd.decode[0].seen[0].body["kv_transfer_params"]
        assert "remote_block_ids" not in given and given["tp_size"] == 1
        assert pd.prefill[0].seen[0].headers["X-Request-Id"] == pd.decode[0].seen[0].headers["X-Request-Id"]


async def test_connectors_of_the_other_mode_are_named(deploy: Any, play: Any) -> None:
    async def pull(engine: Any, request: web.Request, body: Any) -> web.Response:
        return web.json_response({"kv_transfer_params": {**play.params(engine, request), "transfer_mode": "pull"}})

    async with deploy(mode="push") as pd:
        pd.prefill[0].behave = pull
        async with pd.post() as answer:
            assert marks(answer) == ("prefill", "bad_response")
            assert "--mode" in (await answer.json())["error"]["message"]


async def test_decode_names_its_engine(pd: Any, play: Any) -> None:
    async def names(engine: Any, request: web.Request, body: Any) -> web.StreamResponse:
        given = {"kv_transfer_params": {"remote_engine_id": "decode-engine"}, "choices": []}
        if not body.get("stream"):
            return web.json_response(given)
        response = await play.begin_stream(request)
        await response.write(b"data: " + json.dumps(given).encode() + b"\n\ndata: [DONE]\n\n")
        return response

    pd.decode[0].behave = names
    for stream in (False, True):
        async with pd.post(stream=stream) as answer:
            await answer.read()
        assert (await pd.legs())[-1]["engine_id"] == "decode-engine"


async def test_redirects_are_not_followed(pd: Any) -> None:
    async def elsewhere(engine: Any, request: web.Request, body: Any) -> web.Response:
        return web.Response(status=307, headers={"Location": "http://127.0.0.1:1/"})

    pd.prefill[0].behave = elsewhere
    async with pd.client.post(pd.url + "/v1/completions", json={"prompt": "x"}, allow_redirects=False) as answer:
        assert answer.status == 307 and marks(answer) == ("prefill", "bad_response")
