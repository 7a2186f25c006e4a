"""Connections against a server that sends exact bytes, cut in every way, and the pool that keeps them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.wire import UNREAD_LIMIT, Connection, Lost, NotHttp, Pool

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
SIZED = HEAD + b"Content-Length: 5\r\n\r\n"


class Server:
    """Answers each request with the next of `answers`; None closes the connection without one."""

    def __init__(self, answers: list[bytes | None]) -> None:
        self.answers = answers
        self.connections = 0
        self.closed = asyncio.Event()
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while self.answers:
                await reader.readuntil(b"\r\n\r\n")
                answer = self.answers.pop(0)
                if answer is None:
                    break
                writer.write(answer)
                await writer.drain()
                if b"close" in answer:
                    break
            else:
                await reader.read()
        writer.close()
        self.closed.set()


@contextlib.asynccontextmanager
async def serving(*answers: bytes | None, keep_alive: float = 60) -> AsyncIterator[tuple[Server, Pool]]:
    server = Server(list(answers))
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    pool = Pool(server.url, keep_alive)
    try:
        yield server, pool
    finally:
        pool.close()
        listening.close()


async def ask(pool: Pool) -> tuple[Connection, bytes]:
    """A request, and its answer read to the end."""
    connection = pool.idle() or await pool.connect(5)
    connection.send(b"GET / HTTP/1.1\r\n\r\n")
    parts = []
    while part := await connection.read():
        parts.append(part)
    return connection, b"".join(parts)


async def test_a_connection_is_used_again() -> None:
    async with serving(SIZED + b"hello", CHUNKED + b"3\r\nfoo\r\n3\r\nbar\r\n0\r\n\r\n") as (server, pool):
        first, body = await ask(pool)
        assert (first.status, body) == (200, b"hello") and (b"Content-Type", b"text/plain") in first.headers
        pool.give_back(first)
        second, body = await ask(pool)
        assert second is first and body == b"foobar" and server.connections == 1


async def test_a_connection_that_the_server_will_close_is_not() -> None:
    async with serving(HEAD + b"Connection: close\r\nContent-Length: 2\r\n\r\nok", SIZED + b"hello") as (server, pool):
        first, _ = await ask(pool)
        pool.give_back(first)
        second, body = await ask(pool)
        assert second is not first and body == b"hello" and server.connections == 2


async def test_an_answer_that_was_not_read_to_its_end_ends_the_connection() -> None:
    async with serving(SIZED + b"hell") as (server, pool):
        connection = await pool.connect(5)
        connection.send(b"GET / HTTP/1.1\r\n\r\n")
        assert await connection.read() == b"hell"
        pool.give_back(connection)
        await server.closed.wait()
        assert pool.idle() is None


async def test_an_idle_connection_is_closed_in_time() -> None:
    async with serving(SIZED + b"hello", keep_alive=0.05) as (server, pool):
        connection, _ = await ask(pool)
        server.answers.append(None)
        pool.give_back(connection)
        await server.closed.wait()
        assert pool.idle() is None


async def test_a_body_without_a_length_ends_with_the_connection() -> None:
    async with serving(HEAD + b"Connection: close\r\n\r\nall of it") as (_, pool):
        connection, body = await ask(pool)
        assert body == b"all of it" and not connection.usable


async def test_an_interim_answer_and_trailers_are_passed_over() -> None:
    interim = b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
    async with serving(interim + CHUNKED + b"2\r\nok\r\n0\r\nChecksum: 1\r\n\r\n") as (_, pool):
        connection, body = await ask(pool)
        assert (connection.status, body) == (200, b"ok")
        assert [name for name, _ in connection.headers] == [b"Content-Type", b"Transfer-Encoding"]


@pytest.mark.parametrize("answer", [None, CHUNKED + b"5\r\nclose\r\n", SIZED + b"clos"])
async def test_a_lost_connection_says_what_had_come(answer: bytes | None) -> None:
    async with serving(answer, None) as (_, pool):
        connection = await pool.connect(5)
        connection.send(b"GET / HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\n\r\n")
        with pytest.raises(Lost) as caught:
            while await connection.read():
                pass
        lost = caught.value
        assert (lost.begun, lost.reused, lost.broken) == (answer is not None, False, False)


async def test_a_reused_connection_that_is_lost_says_so() -> None:
    async with serving(SIZED + b"hello", None) as (_, pool):
        connection, _ = await ask(pool)
        pool.give_back(connection)
        with pytest.raises(Lost) as caught:
            await ask(pool)
        assert caught.value.reused and not caught.value.begun


@pytest.mark.parametrize(
    "answer", [b"220 smtp ready\r\n\r\n", b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n"]
)
async def test_what_is_not_an_answer(answer: bytes) -> None:
    async with serving(answer) as (_, pool):
        with pytest.raises((NotHttp, Lost)):
            await ask(pool)


async def test_bytes_after_an_answer_are_no_part_of_it_and_end_the_connection() -> None:
    async with serving(SIZED + b"hello" + SIZED + b"again") as (server, pool):
        connection, body = await ask(pool)
        assert body == b"hello" and not connection.usable
        await server.closed.wait()


async def test_a_server_waits_for_a_slow_reader() -> None:
    size = 40 * UNREAD_LIMIT
    async with serving(HEAD + b"Content-Length: %d\r\n\r\n" % size + b"x" * size) as (_, pool):
        connection = await pool.connect(5)
        connection.send(b"GET / HTTP/1.1\r\n\r\n")
        largest = total = 0
        while part := await connection.read():
            largest, total = max(largest, len(part)), total + len(part)
            await asyncio.sleep(0)
        assert total == size and largest < 4 * UNREAD_LIMIT


class Wire:
    """A transport that keeps what is written to it."""

    def __init__(self) -> None:
        self.aborted = False

    def write(self, data: bytes) -> None:
        pass

    def abort(self) -> None:
        self.aborted = True


@given(
    st.lists(st.binary(min_size=1, max_size=9), max_size=6),
    st.lists(st.integers(0, 10_000), max_size=10),
    st.booleans(),
)
@settings(max_examples=60)
def test_cuts_change_nothing(pieces: list[bytes], cuts: list[int], chunked: bool) -> None:
    body = b"".join(pieces)
    if chunked:
        answer = CHUNKED + b"".join(b"%x\r\n%b\r\n" % (len(p), p) for p in pieces) + b"0\r\n\r\n"
    else:
        answer = HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body
    places = sorted({0, len(answer), *(c % (len(answer) + 1) for c in cuts)})
    assert asyncio.run(fed([answer[a:b] for a, b in pairwise(places)])) == (200, body, True)


async def fed(parts: list[bytes]) -> tuple[int, bytes, bool]:
    connection: Any = Connection()
    connection.connection_made(Wire())
    connection.send(b"")
    for part in parts:
        connection.data_received(part)
    read: Callable[[], Any] = connection.read
    got = []
    while part := await read():
        got.append(part)
    return connection.status, b"".join(got), connection.usable
