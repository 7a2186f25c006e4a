"""The program's beginning as processes of their own: Ctrl-C before the command line is there."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

INTERRUPTED_AT = """
import sys

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == {name!r}:
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupt())
"""


def script() -> str:
    """What the installed command runs, in the words of the packaging entry points' specification."""
    module, name = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]["pdrig"].split(":")
    return f"import sys; from {module} import {name}; sys.exit({name}())"


@pytest.mark.parametrize("module", ["rig.cli", "click", "evals.errors", "rig.plan", "rig.config"])
@pytest.mark.parametrize("command", [["-m", "rig"], ["-c", script()]], ids=["module", "script"])
def test_interrupted_while_it_is_imported_it_says_so_in_a_line(tmp_path: Path, command: list[str], module: str) -> None:
    (tmp_path / "sitecustomize.py").write_text(INTERRUPTED_AT.format(name=module))
    done = subprocess.run(
        [sys.executable, *command, "plan", str(ROOT / "configs" / "sim.yaml")],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "\npdrig: interrupted\n")


LOST = """
import sys
from rig import cli
{change}
cli.main({argv!r})
"""


def ended(argv: list[str], change: str, reader: str) -> subprocess.CompletedProcess[str]:
    """The command with its standard output (`out`) or both of its streams (`both`) read by nobody; or read (`none`)."""
    read, write = os.pipe()
    os.close(read)
    try:
        return subprocess.run(
            [sys.executable, "-c", LOST.format(change=change, argv=argv)],
            stdout=write if reader != "none" else subprocess.PIPE,
            stderr=write if reader == "both" else subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            text=True,
            stdin=subprocess.DEVNULL,
        )
    finally:
        os.close(write)


RED = """
from types import SimpleNamespace
from pathlib import Path
import rig.cli_sweep, rig.reporting, rig.verdict
folder = SimpleNamespace(path=Path("x"), read=lambda: SimpleNamespace(cells=()))
rig.cli_sweep.run_sweep = lambda *given: folder
rig.reporting.write_reports = lambda *given: None
rig.verdict.exit_code = lambda cells, strict: CODE
cli._show = lambda folder: print("a table" * 10_000)
"""
SWEEP = ["sweep", str(ROOT / "configs" / "sim.yaml")]


@pytest.mark.parametrize("reader", ["none", "out", "both"])
@pytest.mark.parametrize("code", [0, 1, 3])
def test_a_sweeps_exit_code_is_its_verdicts_whoever_reads_it(code: int, reader: str) -> None:
    """`pdrig sweep ... | head`: neither 1 for a sound run, nor Python's own 120."""
    assert ended(SWEEP, RED.replace("CODE", str(code)), reader).returncode == code


def test_nothing_that_nobody_reads_is_a_regression() -> None:
    done = ended(["plan", str(ROOT / "configs" / "hybrid_ssm.yaml"), "--gpus", "8", "--format", "json"], "", "out")
    assert (done.returncode, done.stderr) == (3, "")


@pytest.mark.parametrize("stream", ["2>/dev/full", "2>&-", ">/dev/full 2>&1"])
def test_what_cannot_be_said_on_standard_error_is_no_regression(stream: str) -> None:
    command = f'exec "$0" -m rig plan no-such-file.yaml {stream}'
    assert subprocess.run(["sh", "-c", command, sys.executable], stdout=subprocess.DEVNULL).returncode == 2


def test_a_fault_of_the_program_is_no_regression_either() -> None:
    change = "def fail(*given): raise KeyError('x')\nimport rig.cli_sweep; rig.cli_sweep.run_sweep = fail"
    done = ended(SWEEP, change, "none")
    assert done.returncode == 3 and done.stderr.strip().endswith("KeyError: 'x'") and "Traceback" in done.stderr
