"""Sweeps of configs/ on the tiny models, changed by a test and written where `pdrig sweep` finds them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]


def shipped(name: str) -> dict[str, Any]:
    """A sweep of configs/, with its paths as seen from anywhere."""
    text = (ROOT / "configs" / name).read_text(encoding="utf-8").replace("../", f"{ROOT}/")
    data: dict[str, Any] = yaml.safe_load(text)
    return data


def written(data: dict[str, Any], folder: Path) -> Path:
    file = folder / "sweep.yaml"
    file.write_text(yaml.safe_dump(data, sort_keys=False), encoding="utf-8")
    return file
