"""Where a run was made: host, GPUs, versions, git, environment. Reads the machine, changes nothing."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from rig.secrets import masked

RECORDED_PREFIXES = ("VLLM_", "UCX_", "NCCL_", "NIXL_", "CUDA_", "HF_", "OMP_", "PYTORCH_", "LMCACHE_")
"""Variables of the rig's own environment that reach the servers and can change what they do."""


def _output(*command: str, cwd: Path | None = None) -> str | None:
    if shutil.which(command[0]) is None:
        return None
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, cwd=cwd, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def host() -> dict[str, Any]:
    """Name, kernel, processor, memory, GPUs and driver, and the variables that reach servers (secrets masked)."""
    query = _output("nvidia-smi", "--query-gpu=index,name,driver_version,memory.total", "--format=csv,noheader")
    return {
        "hostname": platform.node(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "gpus": query.splitlines() if query else [],
        "environment": masked({k: v for k, v in sorted(os.environ.items()) if k.startswith(RECORDED_PREFIXES)}),
    }


def versions() -> dict[str, str]:
    """The rig's own versions; the engines' are read from the running servers."""
    return {"pdrig": metadata.version("pdrig"), "python": platform.python_version()}


def git(folder: Path) -> dict[str, Any] | None:
    """Commit, branch and whether the tree was changed, of the checkout that holds the sweep file."""
    commit = _output("git", "rev-parse", "HEAD", cwd=folder)
    if commit is None:
        return None
    status = _output("git", "status", "--porcelain", "--untracked-files=no", cwd=folder)
    branch = _output("git", "rev-parse", "--abbrev-ref", "HEAD", cwd=folder)
    return {"commit": commit, "branch": branch, "changed": bool(status)}


def argv() -> list[str]:
    """The command line as it was typed."""
    return [Path(sys.argv[0]).name, *sys.argv[1:]]
