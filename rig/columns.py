"""Rows of short texts as lines whose columns line up; pure."""

from __future__ import annotations

from collections.abc import Sequence

GAP = "  "
"""Between two columns."""


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """The rows as lines, each field as wide as the widest of its column."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [GAP.join(field.ljust(w) for field, w in zip(row, widths, strict=True)).rstrip() for row in rows]
