"""CPU time of a proxy for each request, beside other proxies, before the same mock engines in the same run.

    python -m benchmarks.proxy_cpu --router [--rounds 5] [--write FILE]
    python -m benchmarks.proxy_cpu --router --no-toy --crush

The proxies stand side by side and take turns in each round, so that what else the machine does meets all of them
alike; medians over the rounds are shown. CPU time is that of the proxy's processes with all their threads; wall time
plays no part but in the added latency.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib.metadata
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import uvloop

from benchmarks import raw_client
from benchmarks.processes import ROOT, cpu_seconds, free_port, mock_engine, raise_open_files, running

ROUTER_VENV = ROOT / ".engines" / "vllm-router"
CRUSH = (1024, 4096)
CRUSH_LIMIT_S = 30.0
REMOTE_DECODE = b'"kv_transfer_params":{"do_remote_decode":true},'


@dataclass(frozen=True)
class Case:
    """One kind of load: whether answers are streamed, how many at a time."""

    stream: bool
    concurrency: int

    @property
    def name(self) -> str:
        return f"{'streamed' if self.stream else 'not streamed'}, C={self.concurrency}"


CASES = tuple(Case(stream, concurrency) for stream in (False, True) for concurrency in (1, 64))


@dataclass
class Proxy:
    """A proxy that runs, and what was measured: CPU ms a request by case, p50 latencies in ms by case."""

    name: str
    pid: int
    port: int
    cpu_ms: dict[Case, list[float]] = field(default_factory=lambda: {case: [] for case in CASES})
    p50_ms: dict[Case, list[float]] = field(default_factory=lambda: {case: [] for case in CASES})
    pieces: dict[Case, float] = field(default_factory=dict)


def commands(names: list[str], prefill: str, decode: str, folder: Path) -> dict[str, tuple[list[str | Path], int]]:
    """How each proxy is started, and the port that it gets."""
    ports = {name: free_port() for name in names}
    legs = ["--prefill", prefill, "--decode", decode]
    known: dict[str, list[str | Path]] = {
        "pdrig": [sys.executable, "-m", "proxy", *legs, "--legs", folder / "legs.jsonl"],
        "toy": [sys.executable, "-m", "benchmarks.toy_proxy", *legs],
        "vllm-router": [
            ROUTER_VENV / "bin" / "vllm-router",
            *("--vllm-pd-disaggregation", "--kv-connector", "nixl", *legs),
            *("--policy", "round_robin", "--log-level", "error", "--prometheus-port", str(free_port())),
        ],
    }
    return {name: ([*known[name], "--port", str(ports[name])], ports[name]) for name in names}


def install_router() -> None:
    if not (ROUTER_VENV / "bin" / "vllm-router").exists():
        subprocess.run([sys.executable, "-m", "venv", ROUTER_VENV], check=True)
        subprocess.run([ROUTER_VENV / "bin" / "pip", "install", "--quiet", "vllm-router"], check=True)


@contextlib.contextmanager
def started(names: list[str], prefill: int, decode: int, folder: Path) -> Iterator[list[Proxy]]:
    addresses = (f"http://127.0.0.1:{prefill}", f"http://127.0.0.1:{decode}")
    with contextlib.ExitStack() as stack:
        proxies = []
        for name, (command, port) in commands(names, *addresses, folder).items():
            pid, _ = stack.enter_context(running(command, port, folder / f"{name}.log"))
            proxies.append(Proxy(name, pid, port))
        yield proxies


async def warm_up(proxy: Proxy) -> None:
    """Until the proxy answers; a router may first look for its engines."""
    request = raw_client.ask(2, True, proxy.port)
    deadline = time.monotonic() + 60
    while (load := await raw_client.run(proxy.port, request, 8, 40)).failures:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{proxy.name} does not answer: {load.failures[0]}")
        await asyncio.sleep(0.5)


async def measure(proxy: Proxy, case: Case, count: int, tokens: int) -> None:
    request = raw_client.ask(tokens, case.stream, proxy.port)
    await raw_client.run(proxy.port, request, case.concurrency, case.concurrency)
    before = cpu_seconds(proxy.pid)
    load = await raw_client.run(proxy.port, request, case.concurrency, count)
    spent = cpu_seconds(proxy.pid) - before
    if load.failures:
        raise RuntimeError(f"{proxy.name}, {case.name}: {len(load.failures)} failed, such as {load.failures[0]}")
    proxy.cpu_ms[case].append(spent / count * 1000)
    proxy.p50_ms[case].append(statistics.median(load.seconds) * 1000)
    proxy.pieces[case] = load.pieces / count


async def held(proxy: Proxy, concurrency: int, tokens: int) -> str:
    """Twice as many requests as run at once."""
    request = raw_client.ask(tokens, True, proxy.port)
    before = cpu_seconds(proxy.pid)
    load = await raw_client.run(proxy.port, request, concurrency, 2 * concurrency, CRUSH_LIMIT_S)
    spent = (cpu_seconds(proxy.pid) - before) / (2 * concurrency) * 1000
    total = len(load.seconds) + len(load.failures)
    failed = f"; {load.failures[0]}" if load.failures else ""
    return f"{len(load.seconds)} of {total} ({spent:.2f} ms{failed})"


async def bench(arguments: argparse.Namespace, folder: Path) -> str:
    end_on_sigterm()
    with (
        mock_engine() as (_, prefill),
        mock_engine(arguments.token_delay_ms) as (_, decode),
        started(names_of(arguments), prefill, decode, folder) as proxies,
    ):
        for proxy in proxies:
            await warm_up(proxy)
        direct: dict[bool, list[float]] = {False: [], True: []}
        first = raw_client.ask(1, False, prefill, REMOTE_DECODE)
        for turn in range(arguments.rounds):
            for case in CASES:
                count = arguments.streamed if case.stream else arguments.whole
                for proxy in proxies if turn % 2 else reversed(proxies):
                    # The toy takes several times as long, and so is measured as well with fewer requests.
                    await measure(proxy, case, count // 2 if proxy.name == "toy" else count, arguments.tokens)
            for stream, seconds in direct.items():
                second = raw_client.ask(arguments.tokens, stream, decode)
                count = arguments.streamed if stream else arguments.whole
                pairs = await raw_client.two_legs(prefill, decode, first, second, count)
                seconds.append(statistics.median(pairs) * 1000)
    return report(arguments, proxies, direct)


async def crush(arguments: argparse.Namespace, folder: Path) -> str:
    """Loads of many at once: how many requests were answered whole, and the CPU ms of each."""
    lines = [f"Streamed answers of {arguments.crush_tokens} tokens that came whole (CPU ms a request):", ""]
    lines += ["| | " + " | ".join(f"C={c}" for c in CRUSH) + " |", "|---|" + "---|" * len(CRUSH)]
    end_on_sigterm()
    with (
        mock_engine() as (_, prefill),
        mock_engine() as (_, decode),
        started(names_of(arguments), prefill, decode, folder) as proxies,
    ):
        for proxy in proxies:
            await warm_up(proxy)
            cells = [await held(proxy, c, arguments.crush_tokens) for c in CRUSH]
            lines.append(f"| {proxy.name} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", versions(arguments.router)]) + "\n"


def names_of(arguments: argparse.Namespace) -> list[str]:
    return ["pdrig", *(["toy"] if arguments.toy else []), *(["vllm-router"] if arguments.router else [])]


def end_on_sigterm() -> None:
    """So that the processes that were started are ended on the way out."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)


def report(arguments: argparse.Namespace, proxies: list[Proxy], direct: dict[bool, list[float]]) -> str:
    ours = {case: statistics.median(proxies[0].cpu_ms[case]) for case in CASES}
    head = "| | " + " | ".join(case.name for case in CASES) + " |\n|---|" + "---|" * len(CASES)
    lines = [f"CPU ms a request, {arguments.tokens} tokens an answer, median of {arguments.rounds} rounds:", "", head]
    for proxy in proxies:
        lines.append(f"| {proxy.name} | " + " | ".join(_spread(proxy.cpu_ms[case]) for case in CASES) + " |")
    for proxy in proxies[1:]:
        ratios = (f"**{ours[case] / statistics.median(proxy.cpu_ms[case]):.2f}**" for case in CASES)
        lines.append(f"| pdrig / {proxy.name} | " + " | ".join(ratios) + " |")
    lines.append("")
    lines.append(
        "Pieces of body that a streamed answer came in, mean (fewer than tokens: some were passed on together):"
    )
    streamed = [case for case in CASES if case.stream]
    lines.append(
        "; ".join(f"{p.name} " + ", ".join(f"{p.pieces[c]:.1f} (C={c.concurrency})" for c in streamed) for p in proxies)
    )
    lines += ["", "Added latency at C=1, p50 through the proxy less p50 of the two legs without it, ms:", ""]
    lines += ["| | not streamed | streamed |", "|---|---|---|"]
    single = [case for case in CASES if case.concurrency == 1]
    for proxy in proxies:
        added = (
            statistics.median(a - b for a, b in zip(proxy.p50_ms[case], direct[case.stream], strict=True))
            for case in single
        )
        lines.append(f"| {proxy.name} | " + " | ".join(f"{value:.2f}" for value in added) + " |")
    lines += ["", versions(arguments.router)]
    return "\n".join(lines) + "\n"


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def versions(router: bool) -> str:
    named = ["uvicorn", "uvloop", "httptools", "aiohttp", "httpx", "fastapi", "orjson"]
    parts = [f"{name} {importlib.metadata.version(name)}" for name in named]
    if router:
        listed = subprocess.run(
            [ROUTER_VENV / "bin" / "pip", "show", "vllm-router"], capture_output=True, text=True, check=True
        )
        parts.append("vllm-router " + listed.stdout.partition("Version: ")[2].split("\n")[0])
    return f"Python {platform.python_version()}, {os.cpu_count()} cores, {', '.join(parts)}."


def main() -> int:
    parser = argparse.ArgumentParser(description="CPU time of the proxy for each request, beside others.")
    parser.add_argument("--router", action="store_true", help="with vllm-router, installed into .engines/vllm-router")
    parser.add_argument("--no-toy", dest="toy", action="store_false", help="without the toy proxy")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--whole", type=int, default=300, help="requests a measurement, not streamed")
    parser.add_argument("--streamed", type=int, default=200, help="requests a measurement, streamed")
    parser.add_argument("--token-delay-ms", type=float, default=0.0, help="pause of the mock before each token")
    parser.add_argument("--crush-tokens", type=int, default=8)
    parser.add_argument("--crush", action="store_true", help=f"loads of C={CRUSH} instead: does every request succeed")
    parser.add_argument("--write", type=Path, help="file for the table")
    arguments = parser.parse_args()
    raise_open_files()
    if arguments.router:
        install_router()
    with tempfile.TemporaryDirectory() as folder:
        text = uvloop.run((crush if arguments.crush else bench)(arguments, Path(folder)))
    print(text)
    if arguments.write:
        arguments.write.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
