"""The likeliest tokens at a place: as many as were asked for, and no more than there are words."""

from __future__ import annotations

import pytest

from rig.sim.tokens import VOCABULARY, alternatives, word


@pytest.mark.parametrize("piece", [word(3), f" {word(3)}", "7"])
@pytest.mark.parametrize("count", [0, 1, 2, 20, 10**9])
def test_the_likeliest_tokens(piece: str, count: int) -> None:
    words = {f" {word(number)}" for number in range(VOCABULARY)}
    found = alternatives(piece, -0.25, 5, "key", count)
    assert len(found) == min(count, len(words | {piece}))
    assert found[:1] == [(piece, -0.25)][:count]
    assert len({token for token, _ in found}) == len(found)
    values = [value for _, value in found]
    assert values == sorted(values, reverse=True)
