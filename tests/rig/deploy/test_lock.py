"""One sweep at a time on a machine's GPUs, and GPUs that somebody else uses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rig.deploy import gpu, lock
from rig.errors import UsageError
from rig.planned import AttachedServer, DeploymentPlan, ServerPlan, SweepPlan

Smi = Callable[..., Path]


def sweep(*gpus: str, launcher: str = "local", host: str | None = None) -> SweepPlan:
    """A sweep of one server with these GPUs."""
    server = ServerPlan("decode-0", "decode", ("vllm",), {}, 1, "http://x", "m", gpus=gpus, host=host)
    attached = AttachedServer("decode-0", "decode", "http://x", "m")
    parts = {"attached": (attached,)} if launcher == "attach" else {"servers": (server,)}
    deployment = DeploymentPlan("d", "pd", launcher, "m", None, **parts)  # type: ignore[arg-type]
    return SweepPlan("s", "x.yaml", (deployment,), (), {})


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Smi:
    """A stand-in for nvidia-smi: `smi(memory={"0": 10}, processes=["GPU-0, 4711, python, 30000"])`."""
    script = tmp_path / "bin" / "nvidia-smi"
    script.parent.mkdir()
    monkeypatch.setenv("PATH", f"{script.parent}:{os.environ['PATH']}")

    def stand_in(memory: dict[str, int], processes: list[str]) -> Path:
        gpus = "\n".join(f"{name}, GPU-{name}, {mib}" for name, mib in memory.items())
        apps = "\n".join(processes)
        script.write_text(
            f"#!/bin/sh\ncase $1 in\n--query-gpu=*) cat <<'END'\n{gpus}\nEND\n;;\n"
            f"--query-compute-apps=*) cat <<'END'\n{apps}\nEND\n;;\nesac\n"
        )
        script.chmod(0o755)
        return script

    return stand_in


HOLD = """
import sys
from pathlib import Path
from rig.deploy.lock import gpus_locked
from rig.planned import DeploymentPlan, ServerPlan, SweepPlan
server = ServerPlan("d", "decode", ("v",), {}, 1, "u", "m", gpus=("0",))
with gpus_locked(SweepPlan("s", "x", (DeploymentPlan("d", "pd", "local", "m", None, (server,)),), (), {})) as hold:
    hold(Path("results/runs/first"))
    print("held", flush=True)
    sys.stdin.read()
"""


def holder() -> subprocess.Popen[str]:
    """Another process that holds the lock."""
    process = subprocess.Popen([sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    return process


def test_a_second_sweep_is_told_who_holds_the_gpus_until_that_one_is_dead(cache: Path) -> None:
    first = holder()
    try:
        taken = rf"taken by the sweep with pid {first.pid} \(since 20\S+Z, run results/runs/first\); wait for it"
        with pytest.raises(UsageError, match=taken), lock.gpus_locked(sweep("0", "1")):
            pytest.fail("it was let in")
        with lock.gpus_locked(sweep()), lock.gpus_locked(sweep("0", launcher="attach")):
            pass
    finally:
        first.kill()
        first.communicate()
    (path,) = (cache / "pdrig").iterdir()
    assert json.loads(path.read_text())["pid"] == first.pid, "what a dead holder wrote is no lock"
    with lock.gpus_locked(sweep("0")) as hold:
        assert json.loads(path.read_text()) | {"started": None} == {"pid": os.getpid(), "run": None, "started": None}
        hold(Path("r"))
        assert json.loads(path.read_text())["run"] == "r"
    with lock.gpus_locked(sweep("0")):
        pass


def test_a_lock_without_a_word_is_a_lock(cache: Path) -> None:
    first = holder()
    try:
        (path,) = (cache / "pdrig").iterdir()
        path.write_text("{")
        with pytest.raises(UsageError, match="taken by another sweep;"), lock.gpus_locked(sweep("0")):
            pytest.fail("it was let in")
    finally:
        first.kill()
        first.communicate()


def test_sweeps_without_gpus_of_this_machine_need_no_lock(cache: Path) -> None:
    for plan in (sweep(), sweep("0", launcher="attach"), sweep("0", host="elsewhere")):
        assert lock.local_gpus(plan) == ()
        with lock.gpus_locked(plan) as hold:
            hold(Path("r"))
    assert not cache.exists()


@pytest.mark.parametrize("launcher", ["slurm", "ssh"])
def test_gpus_of_this_machine_are_locked_whatever_starts_the_other_servers(launcher: str) -> None:
    assert lock.local_gpus(sweep("0", launcher=launcher)) == ("0",)
    assert lock.local_gpus(sweep("0", launcher=launcher, host="elsewhere")) == ()


USED = [
    ({"0": 10, "1": 30210}, ["GPU-1, 4711, python, 30000"], "GPU 1 is used by pid 4711 (python, 30000 MiB): end that"),
    ({"0": 10, "1": 30210}, [], "GPU 1 is used by a process that is not listed (30210 MiB in use): end that"),
    (
        {"0": 500, "1": 600},
        ["GPU-0, 1, a, 490", "GPU-0, 2, b, 5", "GPU-1, 3, c, 9"],
        "GPU 0 is used by pid 1 (a, 490 MiB); pid 2 (b, 5 MiB) (and 1 more of the sweep's GPUs are used): end that",
    ),
]


@pytest.mark.parametrize(("memory", "processes", "told"), USED)
def test_gpus_that_somebody_uses_are_not_taken(
    smi: Smi, memory: dict[str, int], processes: list[str], told: str
) -> None:
    smi(memory, processes)
    with pytest.raises(UsageError) as refused:
        lock.require_unused(sweep("0", "1"))
    assert str(refused.value).startswith(told)


def test_what_others_use_beside_the_sweeps_gpus_does_not_matter(smi: Smi) -> None:
    smi({"0": 10, "1": 30210}, ["GPU-1, 4711, python, 30000"])
    lock.require_unused(sweep("0"))
    lock.require_unused(sweep("GPU-0"))
    lock.require_unused(sweep())
    with pytest.raises(UsageError, match="GPU GPU-1 is used by pid 4711"):
        lock.require_unused(sweep("GPU-1"))


def test_memory_that_comes_back_is_waited_for(smi: Smi, monkeypatch: pytest.MonkeyPatch) -> None:
    script = smi({"0": 9000}, [])
    monkeypatch.setattr(lock, "POLL_S", 0.0)
    looks = []

    def users(gpus: tuple[str, ...]) -> dict[str, str]:
        looks.append(gpus)
        if len(looks) == 3:
            smi({"0": 10}, [])
        return real(gpus)

    real = gpu.users
    monkeypatch.setattr(gpu, "users", users)
    lock.require_unused(sweep("0"), wait_s=60)
    assert len(looks) == 3 and script.exists()


def test_without_a_working_nvidia_smi_nothing_is_known(smi: Smi, monkeypatch: pytest.MonkeyPatch) -> None:
    smi({"0": 9000}, []).write_text("#!/bin/sh\necho '0, GPU-0, 9000'\nexit 9\n")
    lock.require_unused(sweep("0"))
    monkeypatch.setenv("PATH", "/nowhere")
    lock.require_unused(sweep("0"))
