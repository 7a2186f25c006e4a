"""Where a run was made: host, GPUs, versions, git, environment. Reads the machine, changes nothing."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from types import MappingProxyType
from typing import Any

import psutil

from rig import provenance_probe
from rig.routers import VLLM_ROUTER
from rig.secrets import masked

RECORDED_PREFIXES = ("VLLM_", "UCX_", "NCCL_", "NIXL_", "CUDA_", "HF_", "OMP_", "PYTORCH_", "LMCACHE_")
"""Variables of the rig's own environment that reach the servers and can change what they do."""


def _output(*command: str, cwd: Path | None = None, timeout_s: float = 20) -> str | None:
    if shutil.which(command[0]) is None:
        return None
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout_s, cwd=cwd, stdin=subprocess.DEVNULL
        )
    except (OSError, UnicodeError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def host() -> dict[str, Any]:
    """Name, kernel, processor, memory, GPUs with their driver and the newest CUDA that it serves; the variables of the
    rig's own environment that reach servers, secrets masked.
    """
    query = _output("nvidia-smi", "--query-gpu=index,name,driver_version,memory.total", "--format=csv,noheader")
    cuda = re.search(r"CUDA Version: *([\d.]+)", _output("nvidia-smi") or "")
    return {
        "hostname": platform.node(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "gpus": query.splitlines() if query else [],
        "cuda": cuda[1] if cuda else None,
        "environment": masked({k: v for k, v in sorted(os.environ.items()) if k.startswith(RECORDED_PREFIXES)}),
    }


def versions() -> dict[str, str]:
    """The rig's own versions."""
    return {"pdrig": metadata.version("pdrig"), "python": platform.python_version()}


PROBE_TIMEOUT_S = 60
UNKNOWN: Mapping[str, str | None] = MappingProxyType(
    dict.fromkeys(("vllm", "vllm_commit", "nixl", "torch", "cuda", "ucx", "python"))
)


def engines(configured: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """What each engine of a sweep is, by its name: its `program`, and versions as UNKNOWN names them.

    `configured` are the sweep's `engines`. The versions are read by the Python of the environment that holds the
    program; where there is none, its command is asked for its `--version`. What cannot be learnt is None.
    """
    return {
        name: _engine(engine.get("venv"), tuple(engine.get("command") or ())) for name, engine in configured.items()
    }


@cache
def _engine(venv: str | None, command: tuple[str, ...]) -> dict[str, Any]:
    words = [str(Path(venv) / "bin" / "vllm")] if venv else [w.replace("{rig_python}", sys.executable) for w in command]
    found: dict[str, Any] = {"program": words[0], **UNKNOWN}
    if words[0] == sys.executable:
        return {**found, "python": platform.python_version(), "vllm": f"simulated, pdrig {metadata.version('pdrig')}"}
    program = shutil.which(words[0])
    if program is None:
        return found
    # As the shell would find it first: a link to a venv's script has no Python beside it, the script itself does.
    for folder in (Path(program).parent, Path(program).resolve().parent):
        if venv or Path(program).name == "vllm":
            told = _output(str(folder / "python"), "-I", provenance_probe.__file__, timeout_s=PROBE_TIMEOUT_S)
            if told is not None:
                return {**found, **_object(told)}
    told = _output(*words, "--version", timeout_s=PROBE_TIMEOUT_S)
    return {**found, "vllm": told.splitlines()[-1].strip()[:200] if told else None}


def routers(configured: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Versions of the routers of a sweep that are vllm-router, as `vllm-router (NAME)`; left out if not to be learnt.

    `configured` are those of the sweep's `routers` that its cells use. The Python beside the program is asked.
    """
    found: dict[str, str] = {}
    for name, router in configured.items():
        venv = router.get("venv")
        program = shutil.which(str(Path(venv) / "bin" / VLLM_ROUTER) if venv else VLLM_ROUTER)
        if router.get("kind") == VLLM_ROUTER and program is not None:
            ask = f"from importlib.metadata import version; print(version({VLLM_ROUTER!r}))"
            told = _output(str(Path(program).with_name("python")), "-I", "-c", ask, timeout_s=PROBE_TIMEOUT_S)
            found |= {f"{VLLM_ROUTER} ({name})": told} if told else {}
    return found


def _object(text: str) -> dict[str, Any]:
    try:
        data = json.loads(text.splitlines()[-1])
    except (ValueError, IndexError):
        return {}
    return data if isinstance(data, dict) else {}


def flat(known: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Versions of engines for a list of versions: `vllm`, or `vllm (NAME)` where there are several engines."""
    return {
        key if len(known) == 1 else f"{key} ({name})": str(value)
        for name, engine in known.items()
        for key, value in engine.items()
        if value is not None and key not in ("program", "python")
    }


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
