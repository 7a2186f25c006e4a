"""Sweeps whose servers run on other machines, which are this one by other names."""

from __future__ import annotations

from pathlib import Path

import pytest
from host_sweeps import PATIENCE_S, sweeps, until
from slurm_cluster import cluster
from ssh_host import host

__all__ = ["cluster", "host", "sweeps", "until"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.timeout(2 * PATIENCE_S))
