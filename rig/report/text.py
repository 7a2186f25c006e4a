"""Plain monospace text: columns that line up, colours, wrapped sentences; pure."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from rig.columns import GAP
from rig.report.rows import Column

WIDTH = 160
LONGEST_LABEL = 28
Field = tuple[str, str]
"""What a field shows, padded, and the colour before it (empty for none)."""

_RESET = "\x1b[0m"
_COLORS = {
    "pass": "\x1b[32m",
    "improved": "\x1b[32m",
    "regression": "\x1b[31m",
    "xpass": "\x1b[31m",
    "failed": "\x1b[31m",
    "invalid": "\x1b[33m",
    "inconclusive": "\x1b[33m",
    "no_baseline": "\x1b[33m",
    "not judged": "\x1b[33m",
    "xfail": "\x1b[36m",
}


def grid_lines(columns: Sequence[Column], color: bool) -> list[list[Field]]:
    """Lines of fields, padded; headings and texts may have several lines, and a rule is below the headings."""
    split = [[_folded(text) for text in (column.title, *column.texts)] for column in columns]
    widths = [max(len(line) for field in column for line in field) for column in split]
    lines: list[list[Field]] = []
    for r in range(len(columns[0].texts) + 1):
        for k in range(max(len(column[r]) for column in split)):
            fields = []
            for column, field_width, source in zip(split, widths, columns, strict=True):
                text = column[r][k] if k < len(column[r]) else ""
                paint = _COLORS.get(text, "") if color and r and source.title == "verdict" else ""
                fields.append((text.ljust(field_width), paint))
            lines.append(fields)
        if r == 0:
            lines.append([("-" * field_width, "") for field_width in widths])
    return lines


def _folded(text: str) -> list[str]:
    """Lines of a field; a long label goes over several."""
    return [piece for line in text.split("\n") for piece in (textwrap.wrap(line, LONGEST_LABEL) or [""])]


def fits(lines: Sequence[Sequence[Field]], width: int) -> bool:
    """Whether the lines of a grid are no wider than that."""
    return sum(len(text) for text, _ in lines[0]) + len(GAP) * (len(lines[0]) - 1) <= width


def grid_text(lines: Sequence[Sequence[Field]]) -> str:
    """The lines of a grid as text."""
    return "\n".join(
        GAP.join(f"{paint}{text}{_RESET}" if paint else text for text, paint in fields).rstrip() for fields in lines
    )


def painted(state: str, color: bool) -> str:
    """A verdict's state in its colour, where colours are wanted."""
    return f"{_COLORS[state]}{state}{_RESET}" if color and state in _COLORS else state


def wrap(text: str, width: int, indent: str) -> str:
    """Text over several lines, the second and later ones indented; words are never broken."""
    return textwrap.fill(
        text,
        width,
        subsequent_indent=indent,
        drop_whitespace=True,
        break_long_words=False,
        break_on_hyphens=False,
    )
