"""The shape of a planner's rule and of what breaks one, and where in vLLM rules are read. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from rig.plan_pairs import Pair
from rig.yaml_source import KeyPath

VERSIONS = ("0.32",)
"""The versions whose files the rules were read from; a build that says nothing is taken for one of these."""

V1 = "distributed/kv_transfer/kv_connector/v1/"
WORKER = f"{V1}nixl/base_worker.py"


@dataclass(frozen=True)
class Finding:
    """What breaks a rule: where it was written, what is wrong and what to change. Not `certain`: only likely."""

    key: KeyPath
    problem: str
    certain: bool = True


@dataclass(frozen=True)
class Rule:
    """`source` is the file of vLLM (below its package) that enforces it, and what there does."""

    name: str
    source: str
    check: Callable[[Pair], Iterable[Finding]]
    versions: tuple[str, ...] = VERSIONS

    def holds_for(self, version: str | None) -> bool:
        return version is None or any(version == v or version.startswith(f"{v}.") for v in self.versions)
