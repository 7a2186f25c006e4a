"""Random requests, faults and disconnects at once: every one ends, and in a class."""

from __future__ import annotations

import asyncio
import json
from typing import Any, get_args

import aiohttp
from aiohttp import web
from clocks import Clock
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from proxy.errors import ErrorClass

LIMIT_S = 30
FAULTS = ["none", "refuse", "slam", "garbage", "empty", "hang", "headers", "cut", "error"]
REQUEST = st.fixed_dictionaries(
    {
        "prefill": st.sampled_from([*FAULTS, *["none"] * 8]),
        "decode": st.sampled_from([*FAULTS, *["none"] * 4]),
        "stream": st.booleans(),
        "leave": st.sampled_from([False, False, False, True]),
        "n": st.sampled_from([1, 1, 1, 2]),
    }
)


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.lists(REQUEST, min_size=1, max_size=12))
def test_every_request_ends_in_a_class(deploy: Any, play: Any, requests: list[dict[str, Any]]) -> None:
    outcomes = asyncio.run(drive(deploy, play, requests))
    for request, (status, error) in zip(requests, outcomes, strict=True):
        if request["leave"]:
            continue
        assert error is None or error in get_args(ErrorClass)
        clean = request["prefill"] == request["decode"] == "none" and request["n"] == 1
        assert (status == 200 and error is None) == clean, (request, status, error)


async def drive(deploy: Any, play: Any, requests: list[dict[str, Any]]) -> list[tuple[int, str | None]]:
    """What became of each; the limit passes when nothing is left but what waits for it."""
    clock = Clock()
    silent: set[str] = set()
    async with deploy(first_byte_timeout=LIMIT_S) as pd:
        for engine in (*pd.prefill, *pd.decode):
            engine.behave = faulty(play, silent)
        asked = [asyncio.create_task(ask(pd, i, request)) for i, request in enumerate(requests)]
        while not all(task.done() or str(i) in silent for i, task in enumerate(asked)):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await asyncio.gather(*(task for task, request in zip(asked, requests, strict=True) if request["leave"]))
        clock.advance(LIMIT_S)
        outcomes = await asyncio.gather(*asked)
        # A client that left sees nothing of the end of its request.
        while await pd.metric("pdrig_proxy_in_flight"):
            pass
        return outcomes


async def ask(pd: Any, number: int, request: dict[str, Any]) -> tuple[int, str | None]:
    headers = {"X-Number": str(number), "X-Prefill": request["prefill"], "X-Decode": request["decode"]}
    asked = pd.post(stream=request["stream"], n=request["n"], headers=headers)
    if request["leave"]:
        try:
            async with asyncio.timeout(0.05), asked as answer:
                await answer.read()
        except TimeoutError:
            pass
        return 0, None
    async with asked as answer:
        text = await answer.text()
        return answer.status, answer.headers.get("x-pdrig-error-class") or class_in(answer, text)


def class_in(answer: aiohttp.ClientResponse, text: str) -> str | None:
    """The class of an error within a stream."""
    if not answer.content_type.startswith("text/event-stream"):
        return None
    last = text.strip().rpartition("data: ")[2]
    if last == "[DONE]":
        return None
    error = json.loads(last)["error"]
    return str(error.get("class", "stream_error"))


def faulty(play: Any, silent: set[str]) -> Any:
    """An engine with the fault that a request names; `silent` gets the numbers of those that it leaves waiting."""

    async def behave(engine: Any, request: web.Request, body: Any) -> web.StreamResponse:
        fault = request.headers[f"X-{engine.role.title()}"]
        if fault == "none":
            return await play.ordinary(engine, request, body)
        if fault == "refuse":
            return play.refuse(503, "overloaded")
        if fault == "garbage":
            return web.Response(body=b"\x00\xff<p>", content_type="application/json")
        if fault == "empty":
            return web.Response()
        if fault == "hang":
            silent.add(request.headers["X-Number"])
            await play.forever()
        if fault == "slam":
            request.transport.close()
            return web.Response()
        response = await play.begin_stream(request)
        if fault == "headers":
            silent.add(request.headers["X-Number"])
            await play.forever()
        await play.send_token(response, "a")
        if fault == "error":
            await response.write(b'data: {"error": {"message": "no"}}\n\n')
        else:
            request.transport.close()
        return response

    return behave
