"""Numbers and facts as words, the same in every reason of a verdict; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from rig.records import Channel, Reason

ChannelState = Literal["regression", "inconclusive", "improved", "pass", "note"]


@dataclass(frozen=True)
class Found:
    """One channel's word; `note` is worth knowing and decides nothing. `alarms` are those of a regression."""

    state: ChannelState
    reasons: tuple[Reason, ...] = ()
    alarms: tuple[Channel, ...] = ()


def worse_or_not(worse: Sequence[Reason], notes: Sequence[Reason] = ()) -> Found:
    """A regression that alarms in the channels of what is worse, or what else is known where nothing is."""
    if not worse:
        return Found("note", tuple(notes))
    return Found("regression", (*worse, *notes), tuple(dict.fromkeys(reason.channel for reason in worse)))


def questions(k: int) -> str:
    """`1 question`, `1,200 questions`."""
    return f"{k:,} question{'' if k == 1 else 's'}"


def classes(errors: Mapping[str, int]) -> str:
    """Classes of errors, the most frequent first."""
    return ", ".join(f"{name} {k}" for name, k in sorted(errors.items(), key=lambda item: (-item[1], item[0])))


def points(share: float) -> str:
    """A share in points of a hundred."""
    return f"{100 * share:.2f} points"


def bound(share: float, margin: str) -> str:
    """A bound in points, with more digits where two would make it look equal to the margin."""
    return f"{100 * share:.4f} points" if points(share) == margin else points(share)


def sentence(text: str) -> str:
    """Text with a capital and a full stop."""
    capital = text[:1].upper() + text[1:]
    return capital if capital.endswith((".", "!", "?")) else f"{capital}."
