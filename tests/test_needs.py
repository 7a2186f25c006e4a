"""Tests that need programs of the machine: skipped where these are missing, failed where they were promised."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import needs
import pytest

ROOT = Path(__file__).parents[1]

CASE = """\
import pytest
pytestmark = pytest.mark.needs("slurm")
def test_it():
    pass
"""


def run_without_programs(folder: Path, required: str) -> subprocess.CompletedProcess[str]:
    """A test that needs Slurm, collected with this suite's conftest, where no program is on the PATH."""
    (folder / "test_case.py").write_text(CASE)
    shutil.copy(ROOT / "tests" / "conftest.py", folder)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-ra", "-c", str(ROOT / "pyproject.toml"), str(folder)],
        cwd=ROOT,
        env={**os.environ, "PATH": "/nowhere", needs.REQUIRE: required},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )


@pytest.mark.parametrize(
    ("required", "code", "said"),
    [
        ("", 0, "1 skipped"),
        ("ssh browser", 0, "srun, salloc, sbatch: apt-get install slurm-wlm munge"),
        ("browser slurm", 1, "PDRIG_REQUIRE names slurm, but there is no "),
        ("slrm", 4, "PDRIG_REQUIRE: no need 'slrm'; there are browser, slurm, ssh"),
    ],
)
def test_what_was_promised_is_not_skipped(tmp_path: Path, required: str, code: int, said: str) -> None:
    done = run_without_programs(tmp_path, required)
    assert done.returncode == code, done.stdout + done.stderr
    assert said in done.stdout + done.stderr


def test_any_of_several_programs_will_do(tmp_path: Path) -> None:
    browser = tmp_path / "google-chrome"
    assert needs.unmet("browser", str(tmp_path)) == "no chromium: apt-get install chromium"
    browser.write_text("#!/bin/sh\n")
    browser.chmod(0o755)
    assert needs.unmet("browser", str(tmp_path)) is None
