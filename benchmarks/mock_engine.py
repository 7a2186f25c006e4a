"""A mock prefill or decode engine: vLLM's completions over HTTP at the lowest price, so that a benchmark measures
what stands before it.

A request whose `kv_transfer_params` ask for remote decode is a prefill leg and is answered with parameters as
vLLM's NIXL connector gives them; any other is answered with `max_tokens` tokens, streamed as one server-sent event
and one write a token where the request says `stream`. It knows only requests with a Content-Length.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import resource
import sys
from typing import Any, cast

import orjson
import uvloop

TOKEN = " seven"
EVENT_STREAM = (
    b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
LAST = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
NAMES = {"id": "cmpl-mock", "object": "text_completion", "created": 1_750_000_000, "model": "mock"}


def whole(body: bytes, status: bytes = b"200 OK") -> bytes:
    """An answer with its length."""
    head = b"HTTP/1.1 %b\r\nserver: uvicorn\r\ncontent-length: %d\r\ncontent-type: application/json\r\n\r\n"
    return head % (status, len(body)) + body


def chunk(event: dict[str, Any]) -> bytes:
    """An event of a stream, as one HTTP chunk."""
    data = b"data: " + orjson.dumps(event) + b"\n\n"
    return b"%x\r\n%b\r\n" % (len(data), data)


def choice(text: str, finish: str | None = None) -> dict[str, Any]:
    return {"index": 0, "text": text, "logprobs": None, "finish_reason": finish, "stop_reason": None}


TOKEN_CHUNK = chunk({**NAMES, "choices": [choice(TOKEN)], "usage": None})
LAST_TOKEN_CHUNK = chunk({**NAMES, "choices": [choice(TOKEN, "length")], "usage": None})


class Engine:
    """What all connections share: `delay` seconds before each token but the first (0: a turn of the event loop)."""

    def __init__(self, delay: float) -> None:
        self.delay = delay
        self.tickets = itertools.count()
        self.streams: set[asyncio.Task[None]] = set()

    def prefill(self) -> bytes:
        n = next(self.tickets)
        params = {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [[n * 4 + i for i in range(4)]],
            "remote_engine_id": "6b1f3a52-0c7e-4f39-9f4e-2d1d5a3c8e10",
            "remote_request_id": f"cmpl-mock-{n}-0",
            "remote_host": "127.0.0.1",
            "remote_port": 5600,
            "tp_size": 1,
        }
        return self.completion(1, params)

    def completion(self, tokens: int, params: dict[str, Any] | None = None) -> bytes:
        usage = {"prompt_tokens": 8, "total_tokens": 8 + tokens, "completion_tokens": tokens}
        answer = {**NAMES, "choices": [choice(TOKEN * tokens, "length")], "usage": usage, "kv_transfer_params": params}
        return whole(orjson.dumps(answer))

    async def stream(self, transport: asyncio.Transport, tokens: int, usage: bool) -> None:
        transport.write(EVENT_STREAM)
        for i in range(tokens):
            if i:
                await asyncio.sleep(self.delay)
            if transport.is_closing():
                return
            transport.write(TOKEN_CHUNK if i < tokens - 1 else LAST_TOKEN_CHUNK)
        counts = {"prompt_tokens": 8, "total_tokens": 8 + tokens, "completion_tokens": tokens}
        transport.write((chunk({**NAMES, "choices": [], "usage": counts}) if usage else b"") + LAST)


class Connection(asyncio.Protocol):
    """One client connection, kept alive; requests on it come one after the other."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._buffer = b""
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = self._buffer[:end].lower()
            length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0] or 0)
            if len(self._buffer) < end + 4 + length:
                return
            body = self._buffer[end + 4 : end + 4 + length]
            self._buffer = self._buffer[end + 4 + length :]
            self._answer(head, body)

    def _answer(self, head: bytes, body: bytes) -> None:
        if not head.startswith(b"post /v1/completions"):
            models = {"object": "list", "data": [{"id": "mock", "object": "model", "max_model_len": 4096}]}
            self._transport.write(whole(orjson.dumps(models)))
            return
        asked = orjson.loads(body)
        if (asked.get("kv_transfer_params") or {}).get("do_remote_decode"):
            self._transport.write(self._engine.prefill())
            return
        tokens = asked.get("max_tokens", 16)
        if not asked.get("stream"):
            self._transport.write(self._engine.completion(tokens))
            return
        usage = bool((asked.get("stream_options") or {}).get("include_usage"))
        task = asyncio.ensure_future(self._engine.stream(self._transport, tokens, usage))
        self._engine.streams.add(task)
        task.add_done_callback(self._engine.streams.discard)


async def serve(port: int, delay: float) -> None:
    engine = Engine(delay)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(engine), "127.0.0.1", port, backlog=8192)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def main() -> int:
    """Prints its port when it is up."""
    parser = argparse.ArgumentParser(description="A mock engine on 127.0.0.1.")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--token-delay-ms", type=float, default=0.0)
    arguments = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    uvloop.run(serve(arguments.port, arguments.token_delay_ms / 1000))
    return 0


if __name__ == "__main__":
    sys.exit(main())
