"""A label of a cell as people write it; pure."""

from __future__ import annotations

import json
from typing import Any

MISSING = "-"


def label_text(value: Any) -> str:
    """A label as people write it: on, off, JSON for what is nested."""
    if value is None:
        return MISSING
    if isinstance(value, bool):
        return "on" if value else "off"
    text = json.dumps(value, sort_keys=True) if isinstance(value, dict | list) else str(value)
    return " ".join(text.split())
