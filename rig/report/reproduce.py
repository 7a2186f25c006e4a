"""The command that runs a cell again; pure."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from rig.records import CellResult, RunResult
from rig.secrets import masked_argv

_DROPPED = ("--cell", "--out", "--resume")
"""Options of a sweep that say which of it runs and where it is written: the command says which by itself."""


def reproduce(run: RunResult, cell: CellResult) -> str:
    """The command that runs this cell again with its baselines, under the options that the sweep had.

    A repetition is made by the cell that it repeats. Secrets are masked.
    """
    name = cell.rerun_of or cell.cell_id
    return shlex.join(["pdrig", "sweep", run.info.config_file, "--cell", name, *kept_options(run)])


def kept_options(run: RunResult) -> list[str]:
    """Options of the sweep that change what a cell does, as they were typed; none of a run that no sweep made."""
    argv = run.info.argv
    if "sweep" not in argv:
        return []
    words = list(argv[argv.index("sweep") + 1 :])
    if run.info.config_file in words:
        words.remove(run.info.config_file)
    return masked_argv(_without(words))


def _without(words: Sequence[str]) -> list[str]:
    kept: list[str] = []
    skip = False
    for word in words:
        option, equals, _ = word.partition("=")
        if skip:
            skip = False
        elif option in _DROPPED:
            skip = not equals
        else:
            kept.append(word)
    return kept
