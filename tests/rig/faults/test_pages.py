"""Where a storage keeps the blocks of a load or a store."""

from __future__ import annotations

from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from rig.faults.pages import placed


def blocks(ids: list[int], sizes: list[int], first: list[int]) -> SimpleNamespace:
    return SimpleNamespace(block_ids=ids, group_sizes=sizes, block_indices=first)


def test_a_chunk_of_one_block_is_that_block() -> None:
    asked = blocks([5, 6, 9], [2, 1], [0, 3])
    assert list(placed(asked, [70, 71, 72], 1)) == [(0, 5, 70, 0), (0, 6, 71, 0), (1, 9, 72, 0)]


def test_a_group_may_begin_and_end_within_a_chunk() -> None:
    asked = blocks([10, 11, 12, 13, 20], [4, 1], [1, 2])
    assert list(placed(asked, [7, 8, 9], 3)) == [
        (0, 10, 7, 1),
        (0, 11, 7, 2),
        (0, 12, 8, 0),
        (0, 13, 8, 1),
        (1, 20, 9, 2),
    ]


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 9)), min_size=1, max_size=4), st.integers(1, 4))
def test_what_was_stored_is_found_again(groups: list[tuple[int, int]], per_chunk: int) -> None:
    """Every block has a place of its own; blocks of other ids have the same places."""
    sizes, first = [size for size, _ in groups], [at for _, at in groups]
    chunks = sum(-(-(at % per_chunk + size) // per_chunk) for size, at in groups if size)
    stored = list(placed(blocks(list(range(100, 100 + sum(sizes))), sizes, first), range(chunks), per_chunk))
    loaded = list(placed(blocks(list(range(500, 500 + sum(sizes))), sizes, first), range(chunks), per_chunk))
    assert [place[2:] for place in stored] == [place[2:] for place in loaded]
    assert len({place[2:] for place in stored}) == sum(sizes)
    assert {chunk for _, _, chunk, _ in stored} == set(range(chunks))
