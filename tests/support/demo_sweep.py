"""The demo's sweep, cut down to one P/D cell and its baseline, for tests with the real engine."""

from __future__ import annotations

from typing import Any

from tiny_sweeps import shipped

QUESTIONS = 160
"""Enough for a pass at a margin of 0.02 when no answer flips."""

LEASE_S = 240
"""Far beyond what a transfer takes: a machine with other work to do is no failure."""


def demo_sweep(questions: int = QUESTIONS) -> dict[str, Any]:
    """The sweep as its file's content, with paths that hold anywhere."""
    data = shipped("tiny_hybrid.yaml")
    del data["matrix"], data["exclude"]
    data["tasks"]["gsm-tiny"]["limit"] = questions
    data["cell"]["kv_transfer_config"]["kv_connector_extra_config"] = {"kv_lease_duration": LEASE_S}
    return data
