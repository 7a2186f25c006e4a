"""`pdrig sweep` in a process of its own, which no test leaves behind."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import yaml

ROOT = Path(__file__).resolve().parents[2]
Json = dict[str, Any]

HEARS = ("env", "--default-signal=HUP,INT")
"""What `nohup` and a shell's `&` had these tests ignore, a sweep of theirs would ignore as well."""


def clean_env() -> dict[str, str]:
    """This process's environment without what would steer engines, evaluations, launchers or reports."""
    foreign = ("PDRIG_", "VLLM_", "OPENAI_", "SLURM_", "UCX_", "GITHUB_")
    return {name: value for name, value in os.environ.items() if not name.startswith(foreign)}


@dataclass
class SweepProcess:
    """`pdrig sweep` in a process of its own; exit code, stdout and stderr are known once it has ended."""

    folder: Path
    process: subprocess.Popen[str]
    code: int = -1
    out: str = ""
    err: str = ""

    @classmethod
    def start(
        cls,
        folder: Path,
        sweep: Json | Path | None,
        *options: str,
        before: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        **fields: Any,
    ) -> Self:
        """Its runs are in `folder`, and its file unless it is given as a path; without a sweep the file that is there
        is run once more.

        `before` wraps the command; `fields` are those of this class's own kind.
        """
        config = sweep if isinstance(sweep, Path) else folder / "sweep.yaml"
        if isinstance(sweep, dict):
            config.write_text(yaml.safe_dump(sweep, sort_keys=False))
        command = [sys.executable, "-m", "rig", "sweep", str(config), "--out", str(folder / "runs"), *options]
        process = subprocess.Popen(
            [*HEARS, *before, *command],
            cwd=ROOT,
            env={**clean_env(), **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        return cls(folder, process, **fields)

    def finish(self, patience_s: float | None = None) -> Self:
        """Wait for its end."""
        self.out, self.err = self.process.communicate(timeout=patience_s)
        self.code = self.process.returncode
        return self

    @property
    def told(self) -> tuple[int, str, str]:
        """Exit code, stdout and stderr."""
        return self.code, self.out, self.err

    @property
    def run(self) -> Path:
        """The folder of its one run."""
        (folder,) = (self.folder / "runs").iterdir()
        return folder


def end(started: Iterable[SweepProcess]) -> None:
    """End those that still run, which end their servers themselves."""
    for sweep in started:
        if sweep.process.poll() is None:
            sweep.process.terminate()
            sweep.process.communicate()
