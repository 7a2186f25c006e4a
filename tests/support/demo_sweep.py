"""The demo's sweep, cut down to one P/D cell and its baseline, for tests with the real engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
CONFIG = ROOT / "configs" / "tiny_hybrid.yaml"

QUESTIONS = 160
"""Enough for a pass at a margin of 0.02 when no answer flips."""

LEASE_S = 240
"""Far beyond what a transfer takes: a machine with other work to do is no failure."""


def demo_sweep(questions: int = QUESTIONS) -> dict[str, Any]:
    """The sweep as its file's content, with paths that hold anywhere."""
    data: dict[str, Any] = yaml.safe_load(CONFIG.read_text(encoding="utf-8").replace("../", f"{ROOT}/"))
    del data["matrix"], data["exclude"]
    data["tasks"]["gsm-tiny"]["limit"] = questions
    data["cell"]["kv_transfer_config"]["kv_connector_extra_config"] = {"kv_lease_duration": LEASE_S}
    return data
