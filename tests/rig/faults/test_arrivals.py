"""The scheduler's side: who is announced, with which faults, and the report of a failed load that is lost."""

from __future__ import annotations

import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rig.faults.arrivals import ATTRIBUTE, announce, forget_failure
from rig.faults.control import Control, Fault, When, read_hits


def request_id(sample: str) -> str:
    return f"cmpl-{sample}-0123456789abcdef-0-83c3bd21"


@pytest.fixture
def scheduler() -> Any:
    def request(tokens: int) -> Any:
        return SimpleNamespace(
            num_prompt_tokens=tokens, prompt_token_ids=list(range(tokens)), num_computed_tokens=tokens - 1
        )

    requests = {request_id("a"): request(256), request_id("b"): request(300), "cmpl-somebody-0-83c3bd21": request(300)}
    return SimpleNamespace(requests=requests, recompute_kv_load_failures=True, failed_recving_kv_req_ids=set())


def metadata_of(*ids: str) -> Any:
    return SimpleNamespace(reqs_to_recv={i: SimpleNamespace(local_block_ids=[[1], [2, 3]]) for i in ids})


def struck(scheduler: Any, *faults: Fault) -> list[tuple[str, tuple[str, ...]]]:
    metadata = metadata_of(*scheduler.requests)
    announce(scheduler, metadata, lambda: Control(faults))
    arrivals = getattr(metadata, ATTRIBUTE)
    return [(a.sample_id, tuple(f.fault for f in a.faults)) for a in arrivals.values()]


def test_every_arrival_is_announced_and_only_the_rigs_own_are_struck(scheduler: Any) -> None:
    assert struck(scheduler, Fault("late_zeroing", 1.0), Fault("slow_transfer", samples=("b",))) == [
        ("a", ("late_zeroing",)),
        ("b", ("late_zeroing", "slow_transfer")),
        (None, ()),
    ]


@pytest.mark.parametrize(
    ("when", "samples"),
    [
        (When(min_concurrency=3), ["a", "b"]),
        (When(min_concurrency=4), []),
        (When(min_prompt_tokens=300), ["b"]),
        (When(prompt_multiple_of=128), ["a"]),
    ],
)
def test_conditions_see_the_server_and_the_prompt(scheduler: Any, when: When, samples: list[str]) -> None:
    assert [s for s, faults in struck(scheduler, Fault("late_zeroing", 1.0, when=when)) if faults] == samples


def test_the_file_is_looked_at_only_when_something_arrives(scheduler: Any) -> None:
    def read() -> Control:
        raise AssertionError("nothing arrives")

    announce(scheduler, metadata_of(), read)
    announce(scheduler, SimpleNamespace(), read)


def test_a_request_that_is_gone_or_receives_no_block_is_not_announced(scheduler: Any) -> None:
    metadata = metadata_of(request_id("a"), request_id("gone"))
    metadata.reqs_to_recv[request_id("a")].local_block_ids = [[], []]
    announce(scheduler, metadata, lambda: Control((Fault("late_zeroing", 1.0),)))
    assert getattr(metadata, ATTRIBUTE) == {}


def test_each_child_of_a_multi_connector_gets_its_own(scheduler: Any) -> None:
    nixl, other = metadata_of(request_id("a")), SimpleNamespace()
    announce(scheduler, SimpleNamespace(metadata=(nixl, other)), lambda: Control((Fault("late_zeroing", 1.0),)))
    (arrival,) = pickle.loads(pickle.dumps(getattr(nixl, ATTRIBUTE))).values()
    assert (arrival.sample_id, arrival.loaded_tokens, arrival.struck_by("late_zeroing")) == ("a", 255, True)
    assert not hasattr(other, ATTRIBUTE)


def test_a_lost_failure_is_no_longer_recomputed_and_others_are(scheduler: Any, tmp_path: Path) -> None:
    control = tmp_path / "faults.json"
    struck(scheduler, Fault("recompute_unwritten", samples=("a",)))
    failed = {request_id("a"), request_id("b")}
    for i in failed:
        scheduler.requests[i].num_computed_tokens = 0
    scheduler.failed_recving_kv_req_ids |= failed
    forget_failure(scheduler, failed, control)
    assert scheduler.failed_recving_kv_req_ids == {request_id("b")}
    assert scheduler.requests[request_id("a")].num_computed_tokens == 255
    (hit,) = read_hits(control)
    assert (hit.fault, hit.sample_id, hit.detail) == ("recompute_unwritten", "a", {"unwritten_tokens": 255})


def test_no_report_is_lost_of_a_request_that_was_not_struck(scheduler: Any, tmp_path: Path) -> None:
    assert struck(scheduler, Fault("late_zeroing", 1.0))[0] == ("a", ("late_zeroing",))
    forget_failure(scheduler, {request_id("a")}, tmp_path / "faults.json")
    assert read_hits(tmp_path / "faults.json") == []


def test_loads_from_a_storage_are_struck_by_its_own_faults_alone(scheduler: Any) -> None:
    """Beside a hand-off within one MultiConnector, whose faults leave the loads alone."""
    hand_off = metadata_of(request_id("a"))
    jobs = {7: SimpleNamespace(req_id=request_id("b")), 8: SimpleNamespace(req_id="gone")}
    storage = SimpleNamespace(load_jobs=jobs)
    planted = Control((Fault("late_zeroing", 1.0), Fault("storage_swapped", 1.0)))
    announce(scheduler, SimpleNamespace(metadata=(hand_off, storage)), lambda: planted)
    for part, sample, fault in ((hand_off, "a", "late_zeroing"), (storage, "b", "storage_swapped")):
        (arrival,) = getattr(part, ATTRIBUTE).values()
        assert (arrival.sample_id, [f.fault for f in arrival.faults]) == (sample, [fault])
