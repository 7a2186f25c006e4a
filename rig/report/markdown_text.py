"""Texts as GitHub's Markdown shows them, whatever is in them; pure.

Sources: CommonMark 0.31, GFM 0.29 (tables, autolinks), and GitHub's own mentions (`@user`, `#123`, `GH-123`), which it
finds after the Markdown is rendered: only a character between the sign and the name keeps them from being links.
"""

from __future__ import annotations

import html
import re
from collections.abc import Sequence

from rig.report.rows import Column

MARKS = {
    "pass": "✅",
    "improved": "✅",
    "regression": "❌",
    "xpass": "❗",
    "failed": "🛑",
    "invalid": "⚠️",
    "not judged": "⚠️",
    "inconclusive": "❔",
    "no_baseline": "❔",
    "xfail": "🔶",
    "baseline": "📏",
}
"""A sign for each state; the word always stands beside it."""

_APART = "&#8203;"
"""A zero-width space."""
_SIGN = re.compile(r"[\\`*_\[\]~&<>|$@]|#(?=\w)|\b(?i:gh)-(?=\d)|://|\b(?i:www)\.")
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "|": "&#124;", "$": "<span>$</span>", "://": ":\\//"}
_LEADING = re.compile(r"[-+=#]|\d{1,9}(?=[.)])")
_BLANK = re.compile(r"[\s\x00-\x1f\x7f-\x9f]+")
_TURNS = re.compile("[\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Characters that turn the direction of writing: text after them is not where it seems to be."""
_COLOR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_NOT_SHOWN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_MENTION = re.compile(r"@|#(?=\w)|\b(?i:gh)-(?=\d)")


def inline(text: str) -> str:
    """One line that is shown as it is, within a line or a table's field: no markup, link or mention."""
    return _SIGN.sub(lambda found: _shown(found[0]), one_line(text))


def plain(text: str) -> str:
    """The same at the beginning of a line, where a number or a dash would begin a list."""
    shown = inline(text)
    begins = _LEADING.match(shown)
    if begins is None:
        return shown
    return f"{begins[0]}\\{shown[begins.end() :]}" if begins[0].isdigit() else f"\\{shown}"


def code(text: str) -> str:
    """A name as code on one line; where code would not hold it, as plain text."""
    line = one_line(text)
    return f"`{line}`" if line and not re.search("[`|]", line) else inline(line)


def block(text: str, language: str = "") -> str:
    """Lines as they are, in a fence longer than any within."""
    body = _NOT_SHOWN.sub("", _sound(text).replace("\r", "\n"))
    fence = "`" * (1 + max([2, *(len(run) for run in re.findall("`+", body))]))
    return f"{fence}{language}\n{body}\n{fence}"


def folded(title: str, body: str) -> str:
    """Markdown behind a title (plain text) that opens it."""
    heading = _MENTION.sub(lambda found: found[0] + _APART, html.escape(one_line(title), quote=False))
    return f"<details><summary>{heading}</summary>\n\n{body}\n\n</details>"


def grid(columns: Sequence[Column]) -> str:
    """A table of plain texts; a line break in one is one in the table."""
    return table(
        [inline_lines(column.title) for column in columns],
        [[inline_lines(column.texts[i]) for column in columns] for i in range(len(columns[0].texts))],
    )


def table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of Markdown, each field on one line."""
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join(f"| {' | '.join(fields)} |" for fields in lines)


def inline_lines(text: str) -> str:
    return "<br>".join(inline(line) for line in text.split("\n"))


def one_line(text: str) -> str:
    """Text that can be written as UTF-8, on one line, in the direction in which it reads."""
    return _BLANK.sub(" ", _sound(text)).strip()


def shortened(text: str, most: int) -> str:
    """At most so many characters, its end left out."""
    line = one_line(text)
    return line if len(line) <= most else f"{line[: max(0, most - 2)].rstrip()} …"


def _sound(text: str) -> str:
    return _TURNS.sub("", _COLOR.sub("", text)).encode("utf-8", "replace").decode("utf-8")


def _shown(sign: str) -> str:
    if sign in _ENTITIES:
        return _ENTITIES[sign]
    if sign[0] in "@#":
        return sign + _APART
    return f"{sign[:-1]}\\{sign[-1]}" if sign[-1] == "." else sign + _APART if sign[-1] == "-" else f"\\{sign}"
