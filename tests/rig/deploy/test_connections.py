"""A server that closes a connection just as it is used again: the rig uses none twice."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator

import pytest

from rig import counters
from rig.counters import Source
from rig.deploy import ready

CHOICE = {
    "text": " 7",
    "logprobs": {"tokens": [" 7"], "token_logprobs": [-0.1], "top_logprobs": [{" 7": -0.1, " 8": -3.0}]},
}
BODIES = {
    "/v1/models": {"data": [{"id": "tiny"}]},
    "/v1/completions": {"choices": [CHOICE]},
}
METRICS = "vllm:num_requests_running 0.0\n"


@pytest.fixture
async def url() -> AsyncIterator[str]:
    """Each connection gets one answer, which promises more, and is closed at its second request."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        path = head.split()[1].decode()
        body = (json.dumps(BODIES[path]) if path in BODIES else METRICS).encode()
        sent = re.search(rb"(?i)content-length: (\d+)", head)
        await reader.readexactly(int(sent[1]) if sent else 0)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        await reader.read(1)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    server.close()


async def test_a_server_is_checked(url: str) -> None:
    async with ready.client() as http:
        await ready.wait_healthy(http, url)
        await ready.check_server(http, "decode-0", url, "tiny")
        await ready.check_metrics(http, "decode-0", f"{url}/metrics")
        assert await ready.health(http, url) == "well"


async def test_counters_are_read_again(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counters, "SETTLE_READS", 1)
    (reading,) = await counters.read_settled([Source("decode-0", "decode", f"{url}/metrics")])
    assert reading.missing is None
