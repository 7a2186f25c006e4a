"""The worker's side of an OffloadingConnector: damage to the blocks that its storage gives back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .arrivals import ATTRIBUTE, Arrival
from .control import Fault, append_hit
from .pages import same


@dataclass
class Loading:
    """A request whose blocks are being loaded: ids of the blocks, one list a group."""

    arrival: Arrival
    blocks: list[list[int]] = field(default_factory=list)


class Loads:
    """The faults of one worker: blocks are damaged when their load has ended, before the scheduler is told.

    `caches` are vLLM's canonical ones, `is_state` tells of each of their groups whether it holds a model's state.
    What the last two sound loads of different prompts brought is kept, the latest first: whatever a later request's
    prompt is, one of the two has another.
    """

    def __init__(self, caches: Any, is_state: list[bool], rank: int, control: Path) -> None:
        self._caches = caches
        self._is_state = is_state
        self._rank = rank
        self._control = control
        self._loading: dict[str, Loading] = {}
        self._sound: list[tuple[Arrival, list[list[list[Any]]]]] = []

    def before(self, metadata: Any) -> None:
        """Called before the loads of a step are started."""
        arrivals: dict[str, Arrival] = getattr(metadata, ATTRIBUTE, {})
        for job in metadata.load_jobs.values():
            if job.req_id not in arrivals:
                continue
            ids = iter(int(block) for block in job.dst_spec.block_ids)
            groups = [[next(ids) for _ in range(count)] for count in job.dst_spec.group_sizes]
            known = self._loading.setdefault(job.req_id, Loading(arrivals[job.req_id], [[] for _ in groups]))
            known.blocks = [have + more for have, more in zip(known.blocks, groups, strict=True)]

    def after(self, finished: Iterable[str]) -> None:
        """Called with the requests whose loads have ended."""
        for request_id in sorted(finished):
            if (loading := self._loading.pop(request_id, None)) is None:
                continue
            for fault in loading.arrival.faults:
                damage = self._zeroed if fault.fault == "storage_zeroed" else self._swapped
                if detail := damage(loading, fault):
                    append_hit(self._control, loading.arrival.hit(fault.fault, rank=self._rank, **detail))
            if not loading.arrival.faults:
                content = [
                    [[page.clone() for page in self._pages(group, block)] for block in blocks]
                    for group, blocks in enumerate(loading.blocks)
                ]
                self._sound = [(loading.arrival, content), *self._of_others(loading)[:1]]

    def _of_others(self, loading: Loading) -> list[tuple[Arrival, list[list[list[Any]]]]]:
        """The sound loads that are kept of other prompts, the latest first."""
        return [kept for kept in self._sound if kept[0].prompt != loading.arrival.prompt]

    def _zeroed(self, loading: Loading, fault: Fault) -> dict[str, Any] | None:
        changed = 0
        for group, blocks in enumerate(loading.blocks):
            if fault.groups != "all" and self._is_state[group] != (fault.groups == "state"):
                continue
            for page in (page for block in blocks for page in self._pages(group, block)):
                changed += bool(page.count_nonzero())
                page.zero_()
        return {"groups": fault.groups, "blocks": changed} if changed else None

    def _swapped(self, loading: Loading, _: Fault) -> dict[str, Any] | None:
        """Last to last, so that the blocks after a prefix in common are among them."""
        others = self._of_others(loading)
        if not others:
            return None
        donor, content = others[0]
        changed = 0
        for group, (blocks, theirs) in enumerate(zip(loading.blocks, content, strict=True)):
            for block, other in zip(reversed(blocks), reversed(theirs), strict=False):
                for page, source in zip(self._pages(group, block), other, strict=True):
                    if not same(page, source):
                        page.copy_(source)
                        changed += 1
        return {"donor": donor.request_id, "blocks": changed} if changed else None

    def _pages(self, group: int, block: int) -> Iterator[Any]:
        """A block of every layer of the group; writing to it writes to the cache."""
        for ref in self._caches.group_data_refs[group]:
            yield self._caches.tensors[ref.tensor_idx].tensor[block, : ref.page_size_bytes]
