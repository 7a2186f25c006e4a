"""One process of the evaluator under a closed loop; prints CPU seconds, memory and what became of the requests.

Records are written as `pdrig sweep` writes them, each in a write of its own before it counts; none is kept in memory.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import uvloop

from benchmarks.processes import rss_mib
from evals.client import Request, Target
from evals.load import ClosedLoop, run_load
from evals.records import RequestRecord
from evals.sink import JsonlWriter


def requests(count: int, tokens: int) -> Iterator[Request]:
    params = {"max_tokens": tokens, "temperature": 0.0}
    for i in range(count):
        yield Request(f"q-{i}", f"Question {i}: what are two and five?\nAnswer:", params)


async def drive(port: int, concurrency: int, count: int, tokens: int) -> dict[str, object]:
    target = Target(f"http://127.0.0.1:{port}", "mock")
    outcomes: Counter[str] = Counter()
    memory: list[float] = []
    with tempfile.TemporaryDirectory() as folder, JsonlWriter(Path(folder) / "requests.jsonl") as sink:

        def keep(record: RequestRecord) -> None:
            sink.append_record(record)
            outcomes[record.error.error_class if record.error else "ok"] += 1
            if outcomes.total() % max(1, count // 10) == 0:
                memory.append(round(rss_mib(os.getpid()), 1))

        before = time.process_time()
        await run_load(target, requests(count, tokens), ClosedLoop(concurrency), keep, stream=True)
        spent = time.process_time() - before
        written = (Path(folder) / "requests.jsonl").read_bytes().count(b"\n")
    return {"cpu_s": spent, "written": written, "outcomes": dict(outcomes), "rss_mib": memory}


def main() -> int:
    parser = argparse.ArgumentParser(description="The evaluator against a mock engine.")
    parser.add_argument("port", type=int)
    parser.add_argument("concurrency", type=int)
    parser.add_argument("count", type=int)
    parser.add_argument("tokens", type=int)
    parser.add_argument("--loop", choices=["asyncio", "uvloop"], default="asyncio")
    arguments = parser.parse_args()
    run = uvloop.run if arguments.loop == "uvloop" else asyncio.run
    print(json.dumps(run(drive(arguments.port, arguments.concurrency, arguments.count, arguments.tokens))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
