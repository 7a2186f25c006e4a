"""Sweeps of configs/ on the tiny models, changed by a test and written where `pdrig sweep` finds them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from sim_sweeps import free_range

ROOT = Path(__file__).resolve().parents[2]


def shipped(name: str) -> dict[str, Any]:
    """A sweep of configs/, with its paths as seen from anywhere."""
    text = (ROOT / "configs" / name).read_text(encoding="utf-8").replace("../", f"{ROOT}/")
    data: dict[str, Any] = yaml.safe_load(text)
    return data


def on_free_ports(data: dict[str, Any]) -> dict[str, Any]:
    """The sweep, of one server a side, on ports that nobody else uses."""
    cell = data["cell"]
    for role in ("prefill", "decode"):
        cell[role] |= {"port": free_range(2), "side_channel_port": free_range(2)}
    cell["proxy"]["port"] = free_range(1)
    return data


def written(data: dict[str, Any], folder: Path) -> Path:
    file = folder / "sweep.yaml"
    file.write_text(yaml.safe_dump(data, sort_keys=False), encoding="utf-8")
    return file
