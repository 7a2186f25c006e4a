"""Programs that tests need: without them they are skipped, or fail where PDRIG_REQUIRE names the need."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass

REQUIRE = "PDRIG_REQUIRE"
"""The environment variable with the needs that must be met, apart by spaces: CI skips nothing that it installed."""

PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
"""Debian's daemons are not on a user's PATH."""


@dataclass(frozen=True)
class Need:
    """`programs`: of each entry one of the alternatives must be there. `packages` are Debian's."""

    programs: tuple[tuple[str, ...], ...]
    packages: tuple[str, ...]

    def missing(self, path: str = PATH) -> list[str]:
        return [names[0] for names in self.programs if not any(shutil.which(name, path=path) for name in names)]


NEEDS: Mapping[str, Need] = {
    "browser": Need((("chromium", "chromium-browser", "google-chrome"),), ("chromium",)),
    "slurm": Need(
        tuple((name,) for name in ("munged", "slurmctld", "slurmd", "srun", "salloc", "sbatch")),
        ("slurm-wlm", "munge"),
    ),
    "ssh": Need(tuple((name,) for name in ("sshd", "ssh", "ssh-keygen")), ("openssh-server", "openssh-client")),
}


def required(environ: Mapping[str, str] = os.environ) -> set[str]:
    """The needs that the environment names. Raises ValueError for a name that is none."""
    names = set(environ.get(REQUIRE, "").split())
    if unknown := sorted(names - set(NEEDS)):
        raise ValueError(f"{REQUIRE}: no need {unknown[0]!r}; there are {', '.join(NEEDS)}")
    return names


def unmet(name: str, path: str = PATH) -> str | None:
    """Why tests of a need cannot run, with what to do; None where they can."""
    need = NEEDS[name]
    missing = need.missing(path)
    return f"no {', '.join(missing)}: apt-get install {' '.join(need.packages)}" if missing else None


def program(name: str) -> str | None:
    """The path of the first program of a need, None where there is none."""
    return next(filter(None, (shutil.which(p, path=PATH) for p in NEEDS[name].programs[0])), None)
