from __future__ import annotations

import asyncio
import itertools
import statistics
from collections.abc import Iterator
from typing import Any

import pytest
from clocks import Clock

from evals.client import Request, Target, Timeouts
from evals.errors import BadParams
from evals.load import ClosedLoop, ConstantRate, Poisson, Ramp, Schedule, requests_of, run_load
from evals.records import RequestRecord
from evals.tasks import build_task


def asks(count: int) -> Iterator[Request]:
    for n in range(count):
        yield Request(f"s-{n}", f"question {n}", {})


async def load(url: str, count: int, schedule: Schedule, **options: Any) -> list[RequestRecord]:
    records: list[RequestRecord] = []
    await run_load(Target(url, "m"), asks(count), schedule, records.append, stream=True, **options)
    return records


class Gate:
    """A server behaviour that answers no request before `width` are in flight, or all that are left."""

    def __init__(self, server: Any, width: int, total: int) -> None:
        self.server, self.width, self.total = server, width, total
        self.changed = asyncio.Condition()
        self.answered = 0

    def full(self) -> bool:
        return bool(self.server.active >= min(self.width, self.total - self.answered))

    async def __call__(self, call: Any) -> None:
        async with self.changed:
            if self.full():
                self.changed.notify_all()
            # A load that keeps fewer in flight than it should waits here until the test's timeout.
            await self.changed.wait_for(self.full)
            self.answered += 1
            if self.full():
                self.changed.notify_all()
        await call.stream("18")


@pytest.mark.parametrize(("width", "total"), [(1, 5), (4, 30), (16, 100), (50, 20)])
async def test_a_closed_loop_keeps_exactly_its_concurrency(server: Any, width: int, total: int) -> None:
    server.behave = Gate(server, width, total)
    records = await load(server.url, total, ClosedLoop(width))
    assert server.peak == min(width, total)
    assert sorted(r.sample_id for r in records) == sorted(f"s-{n}" for n in range(total))
    assert all(r.error is None for r in records)
    assert len({r.request_id for r in records}) == total


async def test_the_clock_starts_when_a_request_is_sent(server: Any) -> None:
    server.behave = lambda call: call.stream("18")
    submitted: list[tuple[str, str, float]] = []
    records = await load(
        server.url, 5, ClosedLoop(1), on_submit=lambda i, request, t: submitted.append((i, request.sample_id, t))
    )
    for before, after in itertools.pairwise(records):
        assert before.t_end <= after.t_submit + 1e-6
    assert [(i, s) for i, s, _ in submitted] == [(r.request_id, r.sample_id) for r in records]
    assert [round(t, 6) for *_, t in submitted] == [r.t_submit for r in records]


async def test_the_records_clock_is_the_callers(server: Any) -> None:
    server.behave = lambda call: call.stream("18")
    records = await load(server.url, 1, ClosedLoop(1), t0=asyncio.get_running_loop().time() - 1000)
    assert records[0].t_submit > 999


async def test_connections_are_used_again(server: Any) -> None:
    server.behave = lambda call: call.stream("18")
    await load(server.url, 200, ClosedLoop(4))
    assert server.connections == 4


async def test_a_thousand_at_once(server: Any) -> None:
    server.behave = Gate(server, 1000, 1000)
    # All of them connect at once, in one process with the server: on a busy machine that takes seconds.
    records = await load(server.url, 1000, ClosedLoop(1000), timeouts=Timeouts(connect=90))
    assert (server.peak, len(records)) == (1000, 1000)
    assert {r.error for r in records} == {None}


@pytest.mark.parametrize("schedule", [ConstantRate(2000), Poisson(2000, 3), Ramp(500, 2000, 0.05)])
async def test_an_open_loop_does_not_wait_for_answers(server: Any, schedule: Schedule) -> None:
    server.behave = Gate(server, 60, 60)
    records = await load(server.url, 60, schedule)
    assert server.peak == 60
    assert len(records) == 60


def test_arrivals_follow_their_rates() -> None:
    assert list(itertools.islice(ConstantRate(4).starts(), 4)) == [0, 0.25, 0.5, 0.75]
    gaps = [b - a for a, b in itertools.pairwise(itertools.islice(Poisson(10, 1).starts(), 5000))]
    assert statistics.mean(gaps) == pytest.approx(0.1, rel=0.05)
    assert statistics.stdev(gaps) == pytest.approx(0.1, rel=0.05)
    assert list(itertools.islice(Poisson(10, 1).starts(), 9)) == list(itertools.islice(Poisson(10, 1).starts(), 9))
    ramp = list(itertools.islice(Ramp(1, 9, 10).starts(), 70))
    assert ramp[0] == 0 and ramp == sorted(ramp)
    # 50 requests fall within the ramp (mean rate 5 for 10 s), then 9 a second.
    assert ramp[50] == pytest.approx(10)
    assert ramp[59] == pytest.approx(11)
    assert Ramp(9, 1, 10).starts().__next__() == 0


@pytest.mark.parametrize(
    "make",
    [
        lambda: ClosedLoop(0),
        lambda: ClosedLoop(10**6),
        lambda: ConstantRate(0),
        lambda: Poisson(-1),
        lambda: Ramp(1, 2, float("nan")),
    ],
)
def test_a_schedule_that_makes_no_sense_is_refused(make: Any) -> None:
    with pytest.raises(BadParams):
        make()


@pytest.mark.parametrize("schedule", [ClosedLoop(3), ConstantRate(1000)])
async def test_stop_records_what_is_in_flight(server: Any, schedule: Schedule) -> None:
    stop = asyncio.Event()

    async def behave(call: Any) -> None:
        if len(server.calls) == 3:
            stop.set()
        await asyncio.Event().wait()

    server.behave = behave
    submitted: list[str] = []
    records = await load(server.url, 10**6, schedule, stop=stop, on_submit=lambda i, *_: submitted.append(i))
    assert sorted(r.request_id for r in records) == sorted(submitted)
    assert len(records) >= 3
    assert {(r.error.leg, r.error.error_class) for r in records if r.error} == {("client", "cancelled")}
    assert all(r.error for r in records)


async def test_a_load_that_was_stopped_before_it_began(server: Any) -> None:
    stop = asyncio.Event()
    stop.set()
    server.behave = lambda call: call.stream("18")
    records = await load(server.url, 50, ClosedLoop(2), stop=stop)
    assert all(r.error and r.error.error_class == "cancelled" for r in records)


async def test_cancelling_the_load_records_what_is_in_flight(server: Any) -> None:
    reached = asyncio.Event()

    async def behave(call: Any) -> None:
        reached.set()
        await asyncio.Event().wait()

    server.behave = behave
    records: list[RequestRecord] = []
    running = asyncio.create_task(
        run_load(Target(server.url, "m"), asks(5), ClosedLoop(1), records.append, stream=True)
    )
    await reached.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert [r.error.error_class for r in records if r.error] == ["cancelled"]


async def test_a_callback_that_fails_ends_the_load(server: Any) -> None:
    server.behave = lambda call: call.stream("18")

    def full(record: RequestRecord) -> None:
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        await run_load(Target(server.url, "m"), asks(50), ClosedLoop(4), full, stream=True)


async def test_a_deadline_does_not_end_the_load(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    silent: list[Any] = []
    both = asyncio.Event()

    async def behave(call: Any) -> None:
        if call.body["prompt"] in ("question 1", "question 4"):
            silent.append(call)
            if len(silent) == 2:
                both.set()
            await asyncio.Event().wait()
        await call.stream("18")

    server.behave = behave
    # The first of the two has waited for some time when the limit is made to pass.
    monkeypatch.setattr("evals.client.STOOD_STILL_S", 3600)
    clock, loading = Clock(), asyncio.create_task(load(server.url, 12, ClosedLoop(2), timeouts=Timeouts(first_byte=30)))
    await both.wait()
    clock.advance(30)
    records = await loading
    late = {r.sample_id for r in records if r.error and r.error.error_class == "first_byte_timeout"}
    assert (len(records), late) == (12, {"s-1", "s-4"})
    assert sum(r.error is None for r in records) == 10


async def test_an_empty_list_is_no_load(server: Any) -> None:
    assert await load(server.url, 0, ClosedLoop(8)) == []
    assert await load(server.url, 0, Poisson(8)) == []


def test_requests_of_a_task() -> None:
    task = build_task("gsm-tiny", limit=3)
    made = list(requests_of(task, pass_=1, repeat=2))
    assert [r.sample_id for r in made] == [s.sample_id for s in task.samples]
    assert {(r.kind, r.pass_, r.repeat) for r in made} == {("question", 1, 2)}
    assert made[0].params == task.params
    assert {r.kind for r in requests_of(task, kind="warmup")} == {"warmup"}
