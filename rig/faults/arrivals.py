"""The scheduler's side: who is about to receive blocks, and which faults strike them.

The decision is made once, where the whole request is known, and travels with the connector's metadata, so
that every tensor-parallel rank strikes the same requests.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .control import FAULTS, STORAGE_FAULTS, Control, Fault, Hit, Moment, append_hit, sample_of, strikes

ATTRIBUTE = "pdrig_arrivals"
"""On a connector's metadata: request id to Arrival. On a request: the Arrival, when its load is to fail."""


@dataclass(frozen=True)
class Arrival:
    """A request whose blocks are about to be received; `prompt` is equal for equal prompts, lengths in tokens."""

    request_id: str
    sample_id: str | None
    prompt: int
    loaded_tokens: int
    faults: tuple[Fault, ...]

    def struck_by(self, name: str) -> bool:
        return any(fault.fault == name for fault in self.faults)

    def hit(self, fault: str, **detail: Any) -> Hit:
        return Hit(fault, self.sample_id or "", self.request_id, time.time(), os.getpid(), detail)


def faults_for(control: Control, request_id: str, moment: Moment) -> tuple[Fault, ...]:
    """The faults that strike this request now."""
    sample_id = sample_of(request_id)
    if sample_id is None:
        return ()
    return tuple(fault for fault in control.faults if strikes(fault, sample_id, moment))


def _received(metadata: Any) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Each NIXL metadata with what it has to receive; MultiConnector nests its children's."""
    for part in getattr(metadata, "metadata", (metadata,)):
        if received := getattr(part, "reqs_to_recv", None):
            yield part, received


def announce(scheduler: Any, metadata: Any, read: Callable[[], Control]) -> None:
    """Put on the metadata of a step who is about to receive blocks and what strikes them."""
    for part, received in _received(metadata):
        control = read()
        arrivals: dict[str, Arrival] = {}
        for request_id, transfer in received.items():
            request = scheduler.requests.get(request_id)
            if request is None or not any(transfer.local_block_ids):
                continue
            arrival = _arrival(scheduler, request_id, request, control, FAULTS)
            arrivals[request_id] = arrival
            if arrival.struck_by("recompute_unwritten"):
                setattr(request, ATTRIBUTE, arrival)
        setattr(part, ATTRIBUTE, arrivals)
    for part in getattr(metadata, "metadata", (metadata,)):
        if jobs := getattr(part, "load_jobs", None):
            control = read()
            ids = {job.req_id for job in jobs.values()} & scheduler.requests.keys()
            loading = {i: _arrival(scheduler, i, scheduler.requests[i], control, STORAGE_FAULTS) for i in ids}
            setattr(part, ATTRIBUTE, loading)


def _arrival(scheduler: Any, request_id: str, request: Any, control: Control, among: Container[str]) -> Arrival:
    """`among` are the faults that can strike it on this way."""
    moment = Moment(len(scheduler.requests), request.num_prompt_tokens)
    return Arrival(
        request_id,
        sample_of(request_id),
        hash(tuple(request.prompt_token_ids or ())),
        request.num_computed_tokens,
        tuple(fault for fault in faults_for(control, request_id, moment) if fault.fault in among),
    )


def forget_failure(scheduler: Any, failed: Iterable[str], control_path: Path) -> None:
    """Lose the report of a failed load: nothing is recomputed, and the request goes on with unwritten blocks."""
    for request_id in failed:
        request = scheduler.requests.get(request_id)
        arrival = getattr(request, ATTRIBUTE, None)
        if arrival is None or request_id not in scheduler.failed_recving_kv_req_ids:
            continue
        delattr(request, ATTRIBUTE)
        scheduler.failed_recving_kv_req_ids.discard(request_id)
        request.num_computed_tokens = arrival.loaded_tokens
        append_hit(control_path, arrival.hit("recompute_unwritten", unwritten_tokens=arrival.loaded_tokens))
