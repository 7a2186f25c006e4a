"""The proxy as a process: its command line, its end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from proxy.command import main

SIDES = ["--prefill", "http://127.0.0.1:1", "--decode", "http://127.0.0.1:2"]


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    for flag in ("--prefill", "--decode", "--legs", "--lenient", "--mode", "--first-byte-timeout", "--idle-timeout"):
        assert flag in text


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--prefill", "http://127.0.0.1:1"],
        [*SIDES, "--bogus"],
        [*SIDES, "--port", "x"],
        [*SIDES, "--port", "70000"],
        [*SIDES, "--mode", "pool"],
        [*SIDES, "--idle-timeout", "soon"],
        [*SIDES, "--idle-timeout", "-1"],
        [*SIDES, "--prefill", "nonsense"],
        [*SIDES, "--host", "203.0.113.1"],
        [*SIDES, "--legs", "/proc/nowhere/legs.jsonl"],
        [*SIDES, "extra"],
    ],
)
def test_bad_flags_give_one_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error: ") and len(err.splitlines()) == 1


async def test_a_port_that_is_taken(pd: Any, capsys: pytest.CaptureFixture[str]) -> None:
    port = pd.url.rpartition(":")[2]
    assert await asyncio.to_thread(main, [*SIDES, "--port", port]) == 3
    assert "choose another --port" in capsys.readouterr().err


@contextlib.asynccontextmanager
async def process(pd: Any, legs: Path, *flags: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """`python -m proxy` before the engines of `pd`, and its URL."""
    arguments = ["--prefill", pd.prefill[0].url, "--decode", pd.decode[0].url, "--port", "0", "--legs", str(legs)]
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "proxy", *arguments, *flags, stderr=asyncio.subprocess.PIPE
    )
    try:
        assert child.stderr is not None
        line = (await child.stderr.readline()).decode()
        assert line.startswith("proxy: http://"), line
        yield child, line.split()[1]
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()


async def test_sigterm_lets_requests_end_and_loses_no_leg(pd: Any, play: Any, tmp_path: Path) -> None:
    go_on = asyncio.Event()

    async def waits(engine: Any, request: Any, body: Any) -> Any:
        response = await play.begin_stream(request)
        await play.send_token(response, "a")
        await go_on.wait()
        await response.write(b"data: [DONE]\n\n")
        return response

    pd.decode[0].behave = waits
    legs = tmp_path / "process.jsonl"
    async with process(pd, legs) as (child, url), aiohttp.ClientSession() as client:
        async with client.post(url + "/v1/completions", json={"prompt": "x", "stream": True}) as answer:
            await answer.content.readany()
            child.send_signal(signal.SIGTERM)
            go_on.set()
            assert (await answer.content.read()).endswith(b"[DONE]\n\n")
        assert await child.wait() == 0
    assert [json.loads(line)["error"] for line in legs.read_text().splitlines()] == [None, None]


@pytest.mark.parametrize("workers", ["1", "2"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_is_heard_from_the_first_line_on(
    pd: Any, tmp_path: Path, workers: str, number: signal.Signals
) -> None:
    async with process(pd, tmp_path / "process.jsonl", "--workers", workers) as (child, _):
        child.send_signal(number)
        assert await child.wait() == 0


async def test_sigterm_ends_what_does_not_end(pd: Any, play: Any, tmp_path: Path) -> None:
    async def hangs(engine: Any, request: Any, body: Any) -> Any:
        response = await play.begin_stream(request)
        await play.send_token(response, "a")
        await play.forever()

    pd.decode[0].behave = hangs
    legs = tmp_path / "process.jsonl"
    async with process(pd, legs, "--drain", "1") as (child, url), aiohttp.ClientSession() as client:
        async with client.post(url + "/v1/completions", json={"prompt": "x", "stream": True}) as answer:
            await answer.content.readany()
            child.send_signal(signal.SIGTERM)
            rest = await answer.content.read()
        assert b'"class":"cancelled"' in rest and b"[DONE]" not in rest
        assert await child.wait() == 0
        await pd.decode[0].left.wait()
    lines = [json.loads(line) for line in legs.read_text().splitlines()]
    assert [line["error"] and line["error"]["class"] for line in lines] == [None, "cancelled"]


async def test_several_workers_share_a_port_and_their_numbers(pd: Any, tmp_path: Path) -> None:
    legs = tmp_path / "process.jsonl"
    async with process(pd, legs, "--workers", "2") as (child, url), aiohttp.ClientSession() as client:

        async def ask() -> int:
            async with client.post(url + "/v1/completions", json={"prompt": "x"}) as answer:
                return answer.status

        assert set(await asyncio.gather(*(ask() for _ in range(40)))) == {200}
        async with client.get(url + "/metrics") as answer:
            text = await answer.text()
        assert 'pdrig_proxy_requests_total{endpoint="/v1/completions",outcome="ok"} 40.0' in text
        await client.close()
        child.send_signal(signal.SIGTERM)
        assert await child.wait() == 0
    assert len(legs.read_text().splitlines()) == 80
