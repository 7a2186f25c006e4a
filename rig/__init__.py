"""The orchestrator: config, plan, deployment, requests, evidence, verdict, report."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rig.report.frames import LoadedRun

__version__ = version("pdrig")


def load_run(path: str | Path) -> LoadedRun:
    """A stored run as pandas frames: `.cells`, `.requests`, `.pairs`; docs/reports.md lists their columns.

    Raises rig.errors.DataError where `path` is no run folder, or a file in it is damaged.
    """
    # Imported here: pandas is slow to load, and most commands do without it.
    from rig.reporting import load

    return load(Path(path))
