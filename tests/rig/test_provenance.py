"""What is learnt of engines' environments, and what is done where nothing can be."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from rig import provenance

WORDS = ("vllm", "vllm_commit", "nixl", "torch", "cuda", "ucx")


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def installed(folder: Path, name: str, version: str, **files: str) -> None:
    """A distribution as pip leaves it."""
    about = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    for file, text in files.items():
        (about / file.replace("__", ".")).write_text(text)


def environment(folder: Path, packages: Path) -> Path:
    """An environment whose Python finds `packages`, and whose vllm is there."""
    script(folder / "bin" / "vllm", "#!/bin/sh\nexit 1\n")
    # `-I` hides PYTHONPATH, as it should: the packages are put on the path by hand.
    run = f"import sys, runpy; sys.path.insert(0, {str(packages)!r}); runpy.run_path(sys.argv[1], run_name='__main__')"
    script(folder / "bin" / "python", f'#!/bin/sh\nshift\nexec {sys.executable} -c "{run}" "$1"\n')
    return folder


def asked(**engine: Any) -> dict[str, Any]:
    """What is learnt of an engine of the sweep file."""
    return provenance.engine(provenance.words(engine))


def test_an_environment_is_read_by_its_own_python(tmp_path: Path) -> None:
    packages = tmp_path / "packages"
    installed(packages, "vllm", "0.11.1.dev5+g1234abcd")
    installed(packages, "nixl-cu12", "1.5.1")
    installed(packages, "torch", "2.9.0")
    (packages / "torch").mkdir()
    (packages / "torch" / "version.py").write_text("from typing import Optional\ncuda: Optional[str] = '12.8'\n")
    venv = environment(tmp_path / "venv", packages)
    known = asked(venv=str(venv))
    assert [known[name] for name in WORDS] == ["0.11.1.dev5+g1234abcd", "1234abcd", "1.5.1", "2.9.0", "12.8", None]
    assert known["program"] == str(venv / "bin" / "vllm")


COMMITS = [
    ({"direct_url__json": json.dumps({"vcs_info": {"commit_id": "c" * 40}})}, None, "c" * 40),
    ({}, "__commit_id__ = commit_id = 'gabc1234'\n", "abc1234"),
    ({}, "__commit_id__ = commit_id = None\n", None),
    ({"direct_url__json": "no JSON"}, None, None),
]


@pytest.mark.parametrize(("files", "written", "commit"), COMMITS)
def test_the_commit_of_a_build(tmp_path: Path, files: dict[str, str], written: str | None, commit: str | None) -> None:
    packages = tmp_path / "packages"
    installed(packages, "vllm", "0.32.0", **files)
    if written:
        (packages / "vllm").mkdir()
        (packages / "vllm" / "_version.py").write_text(written)
    venv = environment(tmp_path / "venv", packages)
    assert asked(venv=str(venv))["vllm_commit"] == commit


@pytest.mark.parametrize("text", ["exit 3", "echo nonsense", "echo '[1]'", "printf '\\377'", ":"])
def test_an_environment_that_tells_nothing_is_no_error(tmp_path: Path, text: str) -> None:
    for name in ("python", "vllm"):
        script(tmp_path / "bin" / name, f"#!/bin/sh\n{text}\n")
    known = asked(venv=str(tmp_path))
    assert [known[name] for name in WORDS[1:]] == [None] * 5


def test_a_command_is_asked_for_its_version(tmp_path: Path) -> None:
    command = script(tmp_path / "serve.sh", '#!/bin/sh\necho hello\necho "vLLM 9.9 $*"\n')
    silent = script(tmp_path / "silent.sh", "#!/bin/sh\nexit 1\n")
    assert asked(command=[str(command), "x"])["vllm"] == "vLLM 9.9 x --version"
    assert asked(command=[str(silent)])["vllm"] is None
    assert asked(command=["/no/such/vllm"])["vllm"] is None


def test_one_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provenance, "PROBE_TIMEOUT_S", 0.1)
    command = script(tmp_path / "hang.sh", "#!/bin/sh\nexec sleep 1000\n")
    assert asked(command=[str(command)])["vllm"] is None


def test_the_simulated_engine_is_the_rig_itself() -> None:
    known = asked(command=["{rig_python}", "-m", "rig.sim"])
    assert known["program"] == sys.executable and known["vllm"].startswith("simulated, pdrig ")


OF_MACHINES = [
    ({"n1": {"vllm": "0.32"}, "n2": {"vllm": "0.32"}}, "0.32"),
    ({"n1": {"vllm": "0.32"}, "n2": {"vllm": "0.33"}}, "0.32 on n1, 0.33 on n2"),
    ({"n1": {"vllm": "0.32"}, "n2": {}}, "0.32 on n1, unknown on n2"),
    ({"n1": {}, "n2": {}}, None),
]


@pytest.mark.parametrize(("told", "vllm"), OF_MACHINES)
def test_an_engine_of_several_machines_is_that_of_each(told: dict[str, Any], vllm: str | None) -> None:
    known = provenance.of_machines(("/v/bin/vllm", "serve"), told)
    assert known == {"program": "/v/bin/vllm", **provenance.UNKNOWN, "vllm": vllm}


def test_versions_in_a_list_say_whose_they_are_where_there_are_several() -> None:
    one = {"program": "/v/bin/vllm", "vllm": "0.32", "nixl": None, "python": "3.12"}
    assert provenance.flat({"main": one}) == {"vllm": "0.32"}
    assert provenance.flat({"main": one, "pr": {**one, "vllm": "0.33"}}) == {"vllm (main)": "0.32", "vllm (pr)": "0.33"}
    assert provenance.flat({}) == {}


def test_the_driver_and_its_cuda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "| NVIDIA-SMI 570.1   Driver Version: 570.1   CUDA Version: 12.8 |"
    script(
        tmp_path / "nvidia-smi", f"#!/bin/sh\n[ $# = 0 ] && echo '{text}' || echo '0, NVIDIA H200, 570.1, 143771 MiB'\n"
    )
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.setenv("HF_TOKEN", "hush")
    here = provenance.host()
    assert (here["cuda"], here["gpus"]) == ("12.8", ["0, NVIDIA H200, 570.1, 143771 MiB"])
    assert here["environment"]["NCCL_DEBUG"] == "INFO" and here["environment"]["HF_TOKEN"] == "***"
