"""A text of several parts within a limit: what matters least is left out or shortened first; pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

GITHUB_LIMIT = 65_536
"""Characters of a comment's body (GitHub's API refuses more: "Body is too long (maximum is 65536 characters)")."""
LIMIT = GITHUB_LIMIT - 536
"""What a report takes of it: who puts it into a comment may add a line of his own."""

BETWEEN = "\n\n"


@dataclass(frozen=True)
class Part:
    """One part in its forms, the shortest first, which is always there (empty: nothing).

    `ranks` says of each longer form how early it is wanted; the lowest rank gets its place first.
    """

    forms: tuple[str, ...]
    ranks: tuple[int, ...]


def fixed(text: str) -> Part:
    """A part that is always there, whole."""
    return Part((text,), ())


def optional(text: str, rank: int) -> Part:
    """A part that is there or not."""
    return Part(("", text), (rank,))


def units(text: str) -> int:
    """UTF-16 units, as JavaScript and GitHub's form count: never fewer than characters."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def fit(parts: Sequence[Part], limit: int, notice: str) -> str:
    """The parts in their order, each in the longest form there is room for within `limit` units.

    Where any is not in its longest form, `notice` stands at the end. Only the shortest forms together may exceed the
    limit.
    """
    whole = _joined([part.forms[-1] for part in parts])
    if units(whole) <= limit:
        return whole
    chosen = [0] * len(parts)
    left = limit - sum(_size(part.forms[0]) for part in parts) - _size(notice)
    wanted = sorted(
        (rank, i, form) for i, part in enumerate(parts) for form, rank in enumerate(part.ranks, 1) if part.forms[form]
    )
    for _, i, form in wanted:
        more = _size(parts[i].forms[form]) - _size(parts[i].forms[chosen[i]])
        if more <= left:
            chosen[i], left = form, left - more
    return _joined([*(part.forms[form] for part, form in zip(parts, chosen, strict=True)), notice])


def _size(text: str) -> int:
    return units(text) + len(BETWEEN) if text else 0


def _joined(texts: Sequence[str]) -> str:
    return BETWEEN.join(text for text in texts if text) + "\n"
