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
