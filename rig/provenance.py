"""Where a run was made: host, GPUs, versions, git, environment. Reads the machine, changes nothing."""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import metadata
from pathlib import Path
from types import MappingProxyType
from typing import Any

import psutil

from rig import provenance_probe
from rig.provenance_engine import learn, output
from rig.routers import VLLM_ROUTER
from rig.secrets import masked

RECORDED_PREFIXES = ("VLLM_", "UCX_", "NCCL_", "NIXL_", "CUDA_", "HF_", "OMP_", "PYTORCH_", "LMCACHE_")
"""Variables of the rig's own environment that reach the servers and can change what they do."""


def host() -> dict[str, Any]:
    """Name, kernel, processor, memory, GPUs with their driver and the newest CUDA that it serves; the variables of the
    rig's own environment that reach servers, secrets masked.
    """
    query = output("nvidia-smi", "--query-gpu=index,name,driver_version,memory.total", "--format=csv,noheader")
    cuda = re.search(r"CUDA Version: *([\d.]+)", output("nvidia-smi") or "")
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


def words(engine: Mapping[str, Any]) -> tuple[str, ...]:
    """The command that an engine's servers begin with, up to what vLLM is told, from its entry in the sweep."""
    venv = engine.get("venv")
    command = [str(Path(venv) / "bin" / "vllm")] if venv else engine.get("command") or ()
    return tuple(word.replace("{rig_python}", sys.executable) for word in command)


@cache
def engine(command: tuple[str, ...]) -> dict[str, Any]:
    """What an engine of this machine is: its `program`, and versions as UNKNOWN names them.

    The versions are read by the Python of the environment that holds the program; where there is none, the command is
    asked for its `--version`. What cannot be learnt is None.
    """
    found: dict[str, Any] = {"program": command[0], **UNKNOWN}
    if command[0] == sys.executable:
        return {**found, "python": platform.python_version(), "vllm": f"simulated, pdrig {metadata.version('pdrig')}"}
    return {**found, **learn(command, provenance_probe.__file__, PROBE_TIMEOUT_S)}


def of_machines(command: Sequence[str], told: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """What an engine is that runs on several machines, from what each of them `told`: as `engine` has it.

    Where they differ each is named: `0.32.0 on n1, 0.33.0 on n2`.
    """
    found: dict[str, Any] = {"program": command[0]}
    for key in UNKNOWN:
        seen = {machine: known.get(key) for machine, known in told.items()}
        alike = len(set(seen.values())) == 1
        named = ", ".join(f"{'unknown' if value is None else value} on {machine}" for machine, value in seen.items())
        found[key] = next(iter(seen.values())) if alike else named
    return found


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
            told = output(str(Path(program).with_name("python")), "-I", "-c", ask, timeout_s=PROBE_TIMEOUT_S)
            found |= {f"{VLLM_ROUTER} ({name})": told} if told else {}
    return found


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
    commit = output("git", "rev-parse", "HEAD", cwd=folder)
    if commit is None:
        return None
    status = output("git", "status", "--porcelain", "--untracked-files=no", cwd=folder)
    branch = output("git", "rev-parse", "--abbrev-ref", "HEAD", cwd=folder)
    return {"commit": commit, "branch": branch, "changed": bool(status)}


def argv() -> list[str]:
    """The command line as it was typed."""
    return [Path(sys.argv[0]).name, *sys.argv[1:]]
