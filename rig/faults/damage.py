"""The worker's side: what each fault does to the blocks of a request that it strikes."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .arrivals import ATTRIBUTE, Arrival
from .control import Fault, append_hit
from .pages import Pages, same

KEPT = 64
"""Earlier arrivals that are remembered as donors: more than are in flight at once on a small server."""

FAILED = ("failed_handshake", "recompute_unwritten")


@dataclass
class Expected:
    """A request between the start of its transfer and its arrival; block ids are logical, one list a group."""

    arrival: Arrival
    local: list[list[int]]
    remote: list[list[int]]
    remote_engine: str
    before: list[tuple[int, int, list[Any]]] = field(default_factory=list)
    redirected: bool = False
    finished: bool = False


class Worker:
    """The faults of one NIXL worker; donors are remembered by block id, never copied."""

    def __init__(self, worker: Any, control: Path) -> None:
        self._worker = worker
        self._control = control
        self._pages = Pages(worker)
        self._expected: dict[str, Expected] = {}
        self._sound: deque[Expected] = deque(maxlen=KEPT)
        self._struck: deque[Expected] = deque(maxlen=KEPT)
        self._held: dict[str, tuple[float, Arrival, float]] = {}

    def before_transfer(self, metadata: Any) -> None:
        """Called before the transfers of a step are started."""
        arrivals: dict[str, Arrival] = getattr(metadata, ATTRIBUTE, {})
        for request_id, arrival in arrivals.items():
            transfer = metadata.reqs_to_recv[request_id]
            expected = Expected(
                arrival,
                [list(group) for group in transfer.local_block_ids],
                [list(group) for group in transfer.remote.block_ids or ()],
                transfer.remote.engine_id,
            )
            self._expected[request_id] = expected
            for fault in arrival.faults:
                if fault.fault in FAILED:
                    self._misdirect(metadata, request_id)
                elif fault.fault == "last_block_missing":
                    last = self._pages.last_attention_block(expected.local, arrival.loaded_tokens)
                    expected.before = self._copy(last)
                elif fault.fault == "stale_blocks":
                    self._read_stale(expected, transfer)

    def after_transfer(self, results: Any, finished: Iterable[str]) -> None:
        """Called with what has arrived, before the scheduler is told; `finished` are requests that have ended."""
        ended = set(finished)
        for expected in (*self._sound, *self._struck):
            expected.finished = expected.finished or expected.arrival.request_id in ended
        for request_id in sorted(results.finished_recving):
            if request_id in self._expected:
                self._strike(self._expected.pop(request_id), results, request_id in results.failed_recving)
        self._release(results)

    def _strike(self, expected: Expected, results: Any, failed: bool) -> None:
        arrival = expected.arrival
        for fault in arrival.faults:
            detail: dict[str, Any] | None
            if failed:
                detail = {} if fault.fault == "failed_handshake" else None
            elif fault.fault == "slow_transfer":
                self._hold(arrival, results, fault.ms)
                continue
            else:
                detail = self._damage(fault, expected)
            if detail is not None:
                append_hit(self._control, arrival.hit(fault.fault, rank=self._worker.tp_rank, **detail))
        if not failed:
            (self._struck if arrival.faults else self._sound).append(expected)

    def _damage(self, fault: Fault, expected: Expected) -> dict[str, Any] | None:
        """Do the damage; what was changed, None when nothing was."""
        if fault.fault == "late_zeroing":
            return self._zero(expected, fault.groups)
        if fault.fault == "state_rewritten":
            return self._replace(expected, state=True)
        if fault.fault == "blocks_swapped":
            return self._replace(expected, state=False)
        if fault.fault == "last_block_missing":
            return self._put_back(expected)
        if fault.fault == "stale_blocks" and expected.redirected:
            return {"remote_blocks": sum(map(len, expected.remote))}
        return None

    def _zero(self, expected: Expected, which: str) -> dict[str, Any] | None:
        changed = 0
        for group, ids in enumerate(self._pages.physical(expected.local)):
            if which != "all" and self._pages.is_state[group] != (which == "state"):
                continue
            for block_id in ids:
                for block in self._pages.blocks(group, block_id):
                    changed += bool(block.count_nonzero())
                    block.zero_()
        return {"groups": which, "blocks": changed} if changed else None

    def _replace(self, expected: Expected, *, state: bool) -> dict[str, Any] | None:
        """Overwrite blocks with those of an earlier request, counted from the end, where the question is."""
        own = self._pages.physical(expected.local)
        for donor in self._donors(expected):
            theirs = self._pages.physical(donor.local)
            changed = 0
            for group, is_state in enumerate(self._pages.is_state):
                if is_state == state and not set(own[group]) & set(theirs[group]):
                    changed += self._overwrite(group, own[group], theirs[group])
            if changed:
                return {"donor": donor.arrival.request_id, "blocks": changed}
        return None

    def _overwrite(self, group: int, own: Sequence[int], theirs: Sequence[int]) -> int:
        changed = 0
        for mine, other in zip(reversed(own), reversed(theirs), strict=False):
            pairs = zip(self._pages.blocks(group, mine), self._pages.blocks(group, other), strict=True)
            for block, source in pairs:
                if not same(block, source):
                    block.copy_(source)
                    changed += 1
        return changed

    def _donors(self, expected: Expected) -> list[Expected]:
        """Earlier requests with another prompt, the latest first, but sound and ended ones before all others.

        Where every request is struck, damage copied from damage would soon be the same for all.
        """
        known = [*reversed(self._sound), *reversed(self._struck)]
        others = [e for e in known if e.arrival.prompt != expected.arrival.prompt]
        return sorted(others, key=lambda e: (bool(e.arrival.faults), not e.finished))

    def _copy(self, block_ids: Sequence[Sequence[int]]) -> list[tuple[int, int, list[Any]]]:
        return [
            (group, block_id, [block.clone() for block in self._pages.blocks(group, block_id)])
            for group, ids in enumerate(self._pages.physical(block_ids))
            for block_id in ids
        ]

    def _put_back(self, expected: Expected) -> dict[str, Any] | None:
        changed = 0
        for group, block_id, kept in expected.before:
            for block, content in zip(self._pages.blocks(group, block_id), kept, strict=True):
                if not same(block, content):
                    block.copy_(content)
                    changed += 1
        expected.before = []
        tokens = (expected.arrival.loaded_tokens - 1) % self._pages.block_tokens + 1
        return {"blocks": changed, "tokens": tokens} if changed else None

    def _read_stale(self, expected: Expected, transfer: Any) -> None:
        """Read, in place of the request's blocks, as many that prefill has freed since an earlier request."""
        donors = [e.remote for e in self._donors(expected) if e.remote_engine == expected.remote_engine]
        own = expected.remote
        taken = {i for ids in own for i in ids}
        whole = [
            r for r in donors if list(map(len, r)) == list(map(len, own)) and not taken & {i for g in r for i in g}
        ]
        stale = []
        for group, ids in enumerate(own):
            freed = [i for remote in reversed(whole[:1] or donors) for i in remote[group] if i not in ids]
            stale.append(freed[len(freed) - len(ids) :])
        if own and list(map(len, stale)) == list(map(len, own)):
            transfer.remote.block_ids = stale
            expected.redirected = True

    def _misdirect(self, metadata: Any, request_id: str) -> None:
        """Expect another engine than the one that answers: vLLM's own check then fails the handshake."""
        nobody = f"{metadata.reqs_to_recv[request_id].remote.engine_id}-expected-by-{request_id}"
        metadata.reqs_to_recv[request_id].remote.engine_id = nobody
        if registration := metadata.push_registrations.get(request_id):
            metadata.push_registrations[request_id] = {**registration, "remote_engine_id": nobody}

    def _hold(self, arrival: Arrival, results: Any, ms: float) -> None:
        results.finished_recving.discard(arrival.request_id)
        now = time.monotonic()
        self._held[arrival.request_id] = (now + ms / 1000, arrival, now)

    def _release(self, results: Any) -> None:
        now = time.monotonic()
        for request_id, (due, arrival, since) in list(self._held.items()):
            if now >= due:
                del self._held[request_id]
                results.finished_recving.add(request_id)
                detail = {"rank": self._worker.tp_rank, "ms": round((now - since) * 1000, 1)}
                append_hit(self._control, arrival.hit("slow_transfer", **detail))
