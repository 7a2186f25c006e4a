"""The machine a sweep is planned for: its GPUs, its name, the rig's interpreter. Reads, changes nothing."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass

MOST_GPUS = 1024
"""More of them, or of the ranks, servers and lanes that share them, are a slip of the hand."""


@dataclass(frozen=True)
class Machine:
    """`gpus` are ids as CUDA_VISIBLE_DEVICES takes them: indexes, or UUIDs where the shell named those."""

    gpus: tuple[str, ...] = ()
    hostname: str = "localhost"
    rig_python: str = sys.executable


def visible_gpus(environ: Mapping[str, str]) -> tuple[str, ...] | None:
    """What CUDA_VISIBLE_DEVICES leaves; None when it is not set.

    As CUDA reads it, the first invalid entry (empty or negative) hides itself and all after it
    (CUDA C++ Programming Guide, "CUDA environment variables"). Repeated ids count once.
    """
    text = environ.get("CUDA_VISIBLE_DEVICES")
    if text is None:
        return None
    ids: list[str] = []
    for raw in text.split(","):
        entry = raw.strip()
        if not entry or entry.startswith("-") or entry.lower() in ("none", "nodevfiles"):
            break
        if entry not in ids:
            ids.append(entry)
    return tuple(ids)


def _listed_gpus() -> tuple[str, ...]:
    command = shutil.which("nvidia-smi")
    if command is None:
        return ()
    try:
        done = subprocess.run(
            [command, "--query-gpu=index", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=30,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ()
    lines = (line.strip() for line in done.stdout.splitlines())
    return tuple(line for line in lines if line.isdigit()) if done.returncode == 0 else ()


def detect_machine(environ: Mapping[str, str] | None = None) -> Machine:
    """This machine: CUDA_VISIBLE_DEVICES decides which GPUs there are, nvidia-smi where it is not set."""
    visible = visible_gpus(os.environ if environ is None else environ)
    return Machine(_listed_gpus() if visible is None else visible, platform.node() or "localhost", sys.executable)
