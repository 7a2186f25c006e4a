"""Connections, deadlines, sockets and secrets of one request, against a real server on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from clocks import Clock

from evals.client import Request, Target, Timeouts, send
from evals.errors import BadTarget
from evals.records import RequestRecord
from evals.session import IDLE_CONNECTION_S, Session

TEXT = {"choices": [{"index": 0, "text": "18", "finish_reason": None}]}
STOP = {"choices": [{"index": 0, "text": "", "finish_reason": "stop"}]}


def failure(record: RequestRecord) -> tuple[str, str]:
    assert record.error is not None
    assert "\n" not in record.error.message
    return record.error.leg, record.error.error_class


@pytest.fixture
def nobody(closed_port: int) -> str:
    return f"http://127.0.0.1:{closed_port}"


async def test_nobody_listens(ask: Any, nobody: str) -> None:
    record = await ask(nobody, default_leg="proxy")
    assert failure(record) == ("proxy", "connect")
    assert (record.http_status, record.text, record.attempts) == (None, None, 1)


async def test_a_router_that_takes_no_connection_is_at_fault_itself(ask: Any, server: Any, nobody: str) -> None:
    """What comes back from behind it may be any leg's."""
    record = await ask(nobody, default_leg="unknown")
    assert failure(record) == ("proxy", "connect")
    server.behave = lambda call: call.json({"error": {"message": "no"}}, status=502)
    assert failure(await ask(server.url, default_leg="unknown")) == ("unknown", "http_status")


async def test_retries_are_bounded_and_counted(ask: Any, nobody: str) -> None:
    record = await ask(nobody, retries=2)
    assert failure(record) == ("decode", "connect")
    assert record.attempts == 3


async def test_nothing_that_was_sent_is_sent_again(ask: Any, server: Any) -> None:
    async def behave(call: Any) -> None:
        call.reset()

    server.behave = behave
    record = await ask(server.url, retries=5)
    assert failure(record) == ("decode", "reset")
    assert (record.attempts, len(server.calls)) == (1, 1)


@pytest.fixture
def deaf() -> Iterator[str]:
    """The URL of a full backlog of a socket that nobody accepts from: Linux drops further connection attempts."""
    with contextlib.ExitStack() as stack:
        full = stack.enter_context(socket.socket())
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for _ in range(4):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                filler.connect(full.getsockname())
        yield f"http://127.0.0.1:{full.getsockname()[1]}"


@pytest.fixture(autouse=True)
def no_stalls(monkeypatch: pytest.MonkeyPatch) -> None:
    """No limit here is noticed so late that it is taken for a stall: a busy machine may make any of them late."""
    monkeypatch.setattr("evals.client.STOOD_STILL_S", 3600)


@pytest.fixture
def stalled(no_stalls: None, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Plants a stall of this process of 0.8 s, where a limit that is noticed 0.3 s late is taken for one."""
    monkeypatch.setattr("evals.client.STOOD_STILL_S", 0.3)

    def plant() -> None:
        asyncio.get_running_loop().call_later(0.1, time.sleep, 0.8)

    return plant


async def test_no_connection_in_time(ask: Any, deaf: str) -> None:
    record = await ask(deaf, timeouts=Timeouts(connect=0.2, first_byte=30))
    assert failure(record) == ("decode", "connect_timeout")


async def test_a_connection_that_was_late_because_the_rig_got_no_turn(
    ask: Any, deaf: str, stalled: Callable[[], None]
) -> None:
    stalled()
    record = await ask(deaf, timeouts=Timeouts(connect=0.2, first_byte=30))
    assert failure(record) == ("client", "internal")


async def test_an_answer_that_was_late_because_the_rig_got_no_turn(
    ask: Any, server: Any, stalled: Callable[[], None]
) -> None:
    async def behave(call: Any) -> None:
        await asyncio.Event().wait()

    server.behave = behave
    stalled()
    record = await ask(server.url, timeouts=Timeouts(first_byte=0.2))
    assert failure(record) == ("client", "internal")
    assert "got no turn" in record.error.message


@pytest.mark.parametrize("headers", [False, True])
async def test_case_20_no_first_byte(ask: Any, server: Any, headers: bool) -> None:
    silent = asyncio.Event()

    async def behave(call: Any) -> None:
        if headers:
            await call.head()
        silent.set()
        await asyncio.Event().wait()

    server.behave = behave
    clock, asked = Clock(), asyncio.create_task(ask(server.url, timeouts=Timeouts(first_byte=30)))
    await silent.wait()
    clock.advance(30)
    record = await asked
    assert failure(record) == ("decode", "first_byte_timeout")
    assert record.http_status == (200 if headers else None)


async def test_a_stream_that_falls_silent(ask: Any, server: Any) -> None:
    async def behave(call: Any) -> None:
        await call.head()
        await call.event(TEXT)
        await asyncio.Event().wait()

    server.behave = behave
    record = await ask(server.url, timeouts=Timeouts(first_byte=60, idle=1))
    assert failure(record) == ("decode", "idle_timeout")
    assert record.text == "18"


async def test_a_stream_that_does_not_end(ask: Any, server: Any) -> None:
    async def behave(call: Any) -> None:
        await call.head()
        while True:
            await call.event(TEXT)
            await asyncio.sleep(0.02)

    server.behave = behave
    record = await ask(server.url, timeouts=Timeouts(first_byte=60, idle=60, total=0.3))
    assert failure(record) == ("decode", "total_timeout")


async def test_a_slow_stream_within_the_limits_is_fine(ask: Any, server: Any) -> None:
    async def behave(call: Any) -> None:
        await call.head()
        for _ in range(5):
            await call.event(TEXT)
            await asyncio.sleep(0.3)
        await call.event(STOP)
        await call.end()

    server.behave = behave
    record = await ask(server.url, timeouts=Timeouts(first_byte=30, idle=30, total=60))
    assert record.error is None


@pytest.fixture
def no_more_files() -> Iterator[None]:
    """No file can be opened once the soft limit is what is open now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_case_16_no_socket_left_is_the_rigs_own_fault(server: Any, no_more_files: None) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with Session() as session:
        free = os.open("/dev/null", os.O_RDONLY)
        os.close(free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
        request = Request("s", "p", {})
        record = await send(
            session, Target(server.url, "m", default_leg="proxy"), request, t0=0, stream=True, timeouts=Timeouts()
        )
    assert failure(record) == ("client", "internal")


async def test_a_header_value_is_never_in_a_message(ask: Any, server: Any) -> None:
    async def behave(call: Any) -> None:
        token = call.headers["authorization"]
        await call.json({"error": {"message": f"bad key {token}, {token.split()[1]}"}}, "401 Unauthorized")

    server.behave = behave
    record = await ask(server.url, headers={"Authorization": "Bearer sk-very-secret"})
    assert record.error is not None
    assert record.error.message == "401: bad key ***, ***"
    assert "secret" not in repr(Target(server.url, "m", headers={"Authorization": "Bearer sk-very-secret"}))
    assert server.calls[0].headers["authorization"] == "Bearer sk-very-secret"


async def test_a_header_that_cannot_be_sent_is_the_rigs_own_fault(ask: Any, server: Any) -> None:
    record = await ask(server.url, headers={"Authorization": "Bearer sk-very\r\nsecret"})
    assert failure(record) == ("client", "internal")
    assert record.error is not None and "secret" not in record.error.message


def test_connections_are_given_up_before_the_server_closes_them() -> None:
    # uvicorn's timeout_keep_alive is 5 s, and vLLM's too.
    assert IDLE_CONNECTION_S < 5


@pytest.mark.parametrize(
    "url",
    ["", "localhost:8000", "ftp://h", "http://", "http://h:99999", "http://h:0", "http://h?x=1", "http://u:pw@h", "http://[::1"],
)  # fmt: skip
def test_an_address_that_cannot_be_used_is_refused(url: str) -> None:
    with pytest.raises(BadTarget) as caught:
        Target(url, "m")
    assert "\n" not in str(caught.value) and "pw" not in str(caught.value)


async def test_multibyte_text_cut_anywhere(ask: Any, server: Any) -> None:
    stream = (
        b': ping\r\n\r\ndata: {"choices":[{"text":"\xe2\x88\x92\xc3\xa9"}]}\r\n\r\n'
        b'event: x\r\ndata: {"choices":\r\ndata: [{"text":"8","finish_reason":"stop"}]}\r\n\r\ndata: [DONE]\r\n\r\n'
    )

    async def behave(call: Any) -> None:
        await call.head()
        for byte in stream:
            await call.chunk(bytes([byte]))
        await call.end()

    server.behave = behave
    record = await ask(server.url)
    assert (record.error, record.text, record.finish_reason) == (None, "\u2212\u00e98", "stop")
