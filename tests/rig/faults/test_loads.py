"""What is damaged of the blocks that an offload storage gave back."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from rig.faults import loads
from rig.faults.arrivals import ATTRIBUTE, Arrival
from rig.faults.control import Fault, read_hits
from rig.faults.loads import Loads


class Page:
    """As much of a tensor as is asked for."""

    def __init__(self, value: int) -> None:
        self.value = value

    def clone(self) -> Page:
        return Page(self.value)

    def copy_(self, other: Page) -> None:
        self.value = other.value

    def zero_(self) -> None:
        self.value = 0

    def count_nonzero(self) -> int:
        return int(self.value != 0)


class Cache:
    """The pages of one layer, a page a block."""

    def __init__(self, layer: int) -> None:
        self.pages = [Page(100 * layer + block) for block in range(1, 13)]

    def __getitem__(self, place: tuple[int, slice]) -> Page:
        return self.pages[place[0]]


@pytest.fixture
def caches(monkeypatch: pytest.MonkeyPatch) -> list[Cache]:
    """Two layers of attention, and one of state."""
    monkeypatch.setattr(loads, "same", lambda one, other: one.value == other.value)
    return [Cache(1), Cache(2), Cache(3)]


@pytest.fixture
def worker(caches: list[Cache], tmp_path: Path) -> Loads:
    refs = [[0, 1], [2]]
    canonical = SimpleNamespace(
        tensors=[SimpleNamespace(tensor=cache) for cache in caches],
        group_data_refs=[[SimpleNamespace(tensor_idx=i, page_size_bytes=8) for i in group] for group in refs],
    )
    return Loads(canonical, [False, True], 0, tmp_path / "faults.json")


def load(worker: Loads, name: str, attention: list[int], state: list[int], *faults: Fault, done: bool = True) -> None:
    arrival = Arrival(f"cmpl-{name}", name, hash(name), 0, faults)
    spec = SimpleNamespace(block_ids=[*attention, *state], group_sizes=[len(attention), len(state)])
    metadata = SimpleNamespace(load_jobs={1: SimpleNamespace(req_id=f"cmpl-{name}", dst_spec=spec)})
    setattr(metadata, ATTRIBUTE, {f"cmpl-{name}": arrival})
    worker.before(metadata)
    if done:
        worker.after({f"cmpl-{name}", "cmpl-without-a-load"})


def values(caches: list[Cache]) -> list[list[int]]:
    return [[page.value for page in cache.pages] for cache in caches]


def test_a_sound_load_is_left_alone(worker: Loads, caches: list[Cache], tmp_path: Path) -> None:
    before = values(caches)
    load(worker, "a", [0, 1], [2])
    assert values(caches) == before and read_hits(tmp_path / "faults.json") == []


@pytest.mark.parametrize(
    ("groups", "zero"),
    [
        ("attention", {(0, 0), (0, 1), (1, 0), (1, 1)}),
        ("state", {(2, 2)}),
        ("all", {(0, 0), (0, 1), (1, 0), (1, 1), (2, 2)}),
    ],
)
def test_zeroed_are_the_blocks_of_the_chosen_groups_in_every_layer(
    worker: Loads, caches: list[Cache], tmp_path: Path, groups: str, zero: set[tuple[int, int]]
) -> None:
    load(worker, "a", [0, 1], [2], Fault("storage_zeroed", 1.0, params={"groups": groups}))
    found = {(i, j) for i, cache in enumerate(values(caches)) for j, value in enumerate(cache) if value == 0}
    assert found == zero
    (hit,) = read_hits(tmp_path / "faults.json")
    assert (hit.sample_id, hit.detail) == ("a", {"rank": 0, "groups": groups, "blocks": len(zero)})


def test_a_load_that_has_not_ended_is_not_damaged(worker: Loads, caches: list[Cache]) -> None:
    before = values(caches)
    load(worker, "a", [0, 1], [2], Fault("storage_zeroed", 1.0), done=False)
    assert values(caches) == before
    worker.after({"cmpl-a"})
    assert values(caches) != before


def test_swapped_blocks_are_what_an_earlier_load_brought(worker: Loads, caches: list[Cache], tmp_path: Path) -> None:
    swap = Fault("storage_swapped", 1.0)
    load(worker, "first", [0], [3], swap)
    load(worker, "a", [0, 1], [2])
    caches[0].pages[1].value = 999  # the block has another owner by now
    load(worker, "b", [4, 5, 6], [7], swap)
    assert [cache[4:8] for cache in values(caches)] == [
        [105, 101, 102, 108],
        [205, 201, 202, 208],
        [305, 306, 307, 303],
    ]
    (hit,) = read_hits(tmp_path / "faults.json")
    assert (hit.sample_id, hit.detail) == ("b", {"rank": 0, "donor": "cmpl-a", "blocks": 5})


def test_swapped_is_what_the_last_load_of_another_prompt_brought(
    worker: Loads, caches: list[Cache], tmp_path: Path
) -> None:
    """Also where the last load of all was of the same prompt, however often."""
    for name, block in (("a", 0), ("b", 1), ("c", 2), ("c", 3)):
        load(worker, name, [block], [block])
    load(worker, "c", [6], [6], Fault("storage_swapped", 1.0))
    (hit,) = read_hits(tmp_path / "faults.json")
    assert hit.detail == {"rank": 0, "donor": "cmpl-b", "blocks": 3}
    assert [cache[6] for cache in values(caches)] == [cache[1] for cache in values(caches)] == [102, 202, 302]
    load(worker, "d", [7], [7], Fault("storage_swapped", 1.0))
    assert read_hits(tmp_path / "faults.json")[-1].detail["donor"] == "cmpl-c"
