"""Packs the folder of a run for tests: `python tests/support/pack_run.py RUN FILE.tar.xz`.

What reports read is kept as it is. Left out are token ids, log probabilities and gaps of requests, legs, and all
but the last lines of logs; the interpreter's path and the machine's name and kernel become `python`, `host` and
`kernel`.
"""

from __future__ import annotations

import io
import json
import sys
import tarfile
from pathlib import Path

NOT_READ = ("token_ids", "logprobs", "itl_ms")
LOG_LINES = 40
KEPT = ("run.json", "cells/*/cell.json", "cells/*/*.jsonl", "deployments/*/logs/*.log")


def pack(run: Path, out: Path) -> None:
    """Write the archive; the same run gives the same bytes."""
    told = json.loads((run / "run.json").read_text(encoding="utf-8"))
    names = {told["host"]["hostname"]: "host", told["host"]["kernel"]: "kernel"}
    names |= {facts["program"]: "python" for facts in told["engines"].values()}
    with tarfile.open(out, "w:xz", preset=9) as archive:
        for path in sorted(p for pattern in KEPT for p in run.glob(pattern)):
            text = path.read_text(encoding="utf-8")
            if path.name.startswith("requests."):
                text = "".join(f"{trimmed(line)}\n" for line in text.splitlines())
            if path.suffix == ".log":
                text = "".join(text.splitlines(keepends=True)[-LOG_LINES:])
            for name, instead in names.items():
                text = text.replace(f'"{name}"', f'"{instead}"')
            data = text.encode()
            entry = tarfile.TarInfo(f"{run.name}/{path.relative_to(run)}")
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))


def trimmed(line: str) -> str:
    return json.dumps({key: value for key, value in json.loads(line).items() if key not in NOT_READ})


if __name__ == "__main__":
    pack(Path(sys.argv[1]), Path(sys.argv[2]))
