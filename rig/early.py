"""Ending an evaluation as soon as its verdict is decided; pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal

from evals.canaries import Canary, check
from evals.client import Request
from evals.records import RequestRecord
from rig import records
from rig.records import Gates, Outcome
from rig.stats_sequential import Sequential, log_e_drop, log_e_no_drop


class EarlyStop:
    """Takes the answers of a cell as they come, and knows when there are enough.

    Answers count in the order of asking, however they overtake one another: what ends early would else be judged by
    its short answers. A question that failed on either side is passed over. `share` is the cell's part of alpha.
    """

    def __init__(
        self,
        requests: Sequence[Request],
        baselines: Mapping[str, Mapping[str, Outcome]],
        gates: Gates,
        share: float,
        outcome: Callable[[RequestRecord], Outcome],
        canaries: Mapping[str, Canary],
    ) -> None:
        self._requests = requests
        self._order = [r.sample_id for r in requests if r.kind == "question"]
        self._baselines = baselines
        self._gates, self._share = gates, share
        self._outcome = outcome
        self._canaries = canaries
        self._owners = {canary.code: sample for sample, canary in canaries.items()}
        self._waiting: dict[str, Outcome] = {}
        self._next = 0
        self._crossed = self._decided = False
        self.planned = len(self._order)
        self.deciders = {name: Sequential() for name in baselines}

    def requests(self) -> Iterator[Request]:
        """The requests, up to the decision."""
        for request in self._requests:
            if self._decided:
                return
            yield request

    def seen(self, record: RequestRecord) -> None:
        """Take in one answer."""
        if record.kind == "canary" and record.error is None:
            outcome, _, _ = check(self._canaries[record.sample_id], record.text, self._owners)
            self._crossed |= outcome == "crossed"
            self._decided |= self._crossed
        elif record.kind == "question":
            self._waiting[record.sample_id] = self._outcome(record)
            while self._next < len(self._order) and self._order[self._next] in self._waiting and not self._decided:
                self._add(self._order[self._next])
                self._next += 1

    def result(self, asked: int) -> records.Sequential:
        """How it ended, `asked` questions having been asked; the e-values are those of the least decided baseline."""
        deciders = list(self.deciders.values())
        of_drop = max(float(log_e_no_drop(d.losses, d.gains)) for d in deciders)
        of_margin = min(float(log_e_drop(d.losses, d.gains, d.n, self._gates.max_accuracy_drop)) for d in deciders)
        decided = self._found()
        return records.Sequential(asked, self.planned, decided, math.exp(of_drop), math.exp(of_margin))

    def _found(self) -> Literal["pass", "regression"] | None:
        """A regression against any baseline or by a code that crossed, or a pass against all."""
        if self._crossed:
            return "regression"
        found = [
            d.decided(self._share, self._gates.alpha, self._gates.max_accuracy_drop) for d in self.deciders.values()
        ]
        if "regression" in found:
            return "regression"
        return "pass" if all(f == "pass" for f in found) else None

    def _add(self, sample: str) -> None:
        mine = self._waiting[sample]
        for name, decider in self.deciders.items():
            theirs = self._baselines[name].get(sample, "error")
            if not {"error", "unscored"} & {mine, theirs}:
                lost = (theirs == "correct") - (mine == "correct")
                decider.add("loss" if lost > 0 else "gain" if lost < 0 else "tie")
        self._decided = self._found() is not None
