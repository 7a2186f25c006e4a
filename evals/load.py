"""Load: how many requests are in flight, or when each one starts, and the run of a whole list."""

from __future__ import annotations

import asyncio
import itertools
import math
import random
import resource
from collections.abc import Callable, Coroutine, Iterable, Iterator
from dataclasses import dataclass

from evals.bounds import BOUNDS
from evals.client import Request, Target, Timeouts, send
from evals.errors import BadParams
from evals.records import Kind, RequestRecord
from evals.session import Session
from evals.tasks import Task


@dataclass(frozen=True)
class ClosedLoop:
    """Exactly `concurrency` requests in flight while there are that many left."""

    concurrency: int

    def __post_init__(self) -> None:
        least, most = BOUNDS["concurrency"]
        if not least <= self.concurrency <= most:
            raise BadParams(f"concurrency is {self.concurrency}; it must be {least} to {most}")


@dataclass(frozen=True)
class ConstantRate:
    """A request every 1/`rate` seconds, however long answers take."""

    rate: float

    def __post_init__(self) -> None:
        _check_rate(self.rate)

    def starts(self) -> Iterator[float]:
        """Seconds from the beginning at which requests start."""
        n = 0
        while True:
            yield n / self.rate
            n += 1


@dataclass(frozen=True)
class Poisson:
    """Independent arrivals, `rate` a second on average; the same ones for the same seed."""

    rate: float
    seed: int = 0

    def __post_init__(self) -> None:
        _check_rate(self.rate)

    def starts(self) -> Iterator[float]:
        """Seconds from the beginning at which requests start."""
        rng = random.Random(self.seed)
        at = 0.0
        while True:
            at += rng.expovariate(self.rate)
            yield at


@dataclass(frozen=True)
class Ramp:
    """A rate that goes evenly from `first` to `last` within `seconds`, then stays."""

    first: float
    last: float
    seconds: float

    def __post_init__(self) -> None:
        for rate in (self.first, self.last, self.seconds):
            _check_rate(rate)

    def starts(self) -> Iterator[float]:
        """Seconds from the beginning at which requests start: request n where the rate's integral is n."""
        slope = (self.last - self.first) / self.seconds
        ramped = (self.first + self.last) / 2 * self.seconds
        n = 0
        while True:
            if n >= ramped:
                yield self.seconds + (n - ramped) / self.last
            else:
                yield 2 * n / (self.first + math.sqrt(self.first**2 + 2 * slope * n))
            n += 1


Schedule = ClosedLoop | ConstantRate | Poisson | Ramp


def requests_of(task: Task, *, kind: Kind | None = None, pass_: int = 0, repeat: int = 0) -> Iterator[Request]:
    """A task's requests in order; `kind` replaces the samples' own, for a warm-up."""
    for sample in task.samples:
        yield Request(sample.sample_id, sample.prompt, task.params, kind or sample.kind, pass_, repeat)


async def run_load(
    target: Target,
    requests: Iterable[Request],
    schedule: Schedule,
    on_record: Callable[[RequestRecord], None],
    *,
    stream: bool,
    t0: float | None = None,
    timeouts: Timeouts | None = None,
    stop: asyncio.Event | None = None,
    on_submit: Callable[[str, Request, float], None] | None = None,
    retries: int = 0,
) -> None:
    """Send the requests as the schedule says; `on_record` gets a record for each that was sent.

    `t0` is the start of the records' clock by the running loop's `time()` (None: now). `on_submit` gets
    request id, request and time as each is sent. After `stop`, or when this is cancelled, what is in flight
    is recorded as `cancelled` and nothing more is sent. Whatever the callbacks raise ends the load and is raised.
    """
    _allow_open_files()
    start = asyncio.get_running_loop().time() if t0 is None else t0
    pending = iter(requests)
    limits = timeouts or Timeouts()
    async with Session() as session:

        async def one(request: Request) -> None:
            record = await send(
                session,
                target,
                request,
                t0=start,
                stream=stream,
                timeouts=limits,
                retries=retries,
                on_submit=on_submit,
            )
            on_record(record)
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise asyncio.CancelledError

        if isinstance(schedule, ClosedLoop):
            load = _closed(pending, schedule.concurrency, one)
        else:
            load = _open(pending, schedule.starts(), one)
        await _until_stopped(load, stop)


_One = Callable[[Request], Coroutine[None, None, None]]


async def _closed(pending: Iterator[Request], concurrency: int, one: _One) -> None:
    async def slot(request: Request) -> None:
        await one(request)
        for following in pending:
            await one(following)

    async with asyncio.TaskGroup() as group:
        for request in itertools.islice(pending, concurrency):
            group.create_task(slot(request))


async def _open(pending: Iterator[Request], starts: Iterator[float], one: _One) -> None:
    loop = asyncio.get_running_loop()
    begin = loop.time()
    async with asyncio.TaskGroup() as group:
        for request, at in zip(pending, starts, strict=False):
            if (wait := begin + at - loop.time()) > 0:
                await asyncio.sleep(wait)
            group.create_task(one(request))


async def _until_stopped(coroutine: Coroutine[None, None, None], stop: asyncio.Event | None) -> None:
    load = asyncio.create_task(coroutine)
    stopper = asyncio.create_task(stop.wait() if stop else asyncio.Event().wait())
    try:
        await asyncio.wait({load, stopper}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopper.cancel()
        load.cancel()
        await asyncio.wait({load})
    error = None if load.cancelled() else load.exception()
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if error:
        raise error


def _allow_open_files() -> None:
    """Raise the soft limit of open files to the hard one: each request in flight is a socket."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _check_rate(rate: float) -> None:
    if not (rate > 0 and math.isfinite(rate)):
        raise BadParams(f"a rate or time of {rate} makes no sense; it must be above 0")
