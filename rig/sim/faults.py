"""The faults that can be planted, and when one strikes. Pure.

A fault strikes a request when all of its conditions hold and its draw is below its rate. The draw depends on
the seed, the fault and the prompt (`by: prompt`: the same prompts each time) or the number of the request on
this server as well (`by: request`: others each time).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from rig.sim.answers import fraction

Side = Literal["prefill", "decode", "monolithic"]

_DAMAGE = ("decode", "monolithic")
_ALL = ("prefill", "decode", "monolithic")

REQUEST_FAULTS: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    # the answer, HTTP fine
    "wrong_answer": (_DAMAGE, {}),
    "swapped": (_DAMAGE, {}),
    "stale": (_DAMAGE, {}),
    "garbage": (_DAMAGE, {"piece": "!"}),
    "endless": (_DAMAGE, {}),
    "no_number": (_DAMAGE, {}),
    "runs_on": (_DAMAGE, {}),
    "empty_text": (_DAMAGE, {}),
    "reasoning_only": (_DAMAGE, {}),
    "prompt_tokens_off": (_DAMAGE, {"by": 1}),
    # the hand-off
    "no_kv_params": (("prefill",), {}),
    "wrong_engine_id": (("prefill",), {}),
    "lease_expired": (("prefill",), {}),
    "ignore_kv_params": (("decode",), {}),
    "transfer_failed": (("decode",), {"neighbours": False}),
    "transfer_garbage": (("decode",), {}),
    "slow_transfer": (("decode",), {"ms": 1000.0}),
    # the HTTP face
    "error_status": (_ALL, {"status": 500, "message": "Internal server error"}),
    "empty_200": (_ALL, {"body": ""}),
    "bad_json": (_ALL, {}),
    "stream_error": (_ALL, {"tokens": 3}),
    "stream_cut": (_ALL, {"tokens": 3}),
    "stream_stall": (_ALL, {"tokens": 3}),
    "no_done": (_ALL, {}),
    "headers_then_nothing": (_ALL, {}),
    "hang": (_ALL, {}),
    "reset": (_ALL, {}),
    "slow_first_token": (_ALL, {"ms": 1000.0}),
    "slow_tokens": (_ALL, {"ms": 50.0}),
    # the process
    "crash": (_ALL, {"code": 1}),
    "engine_dead": (_ALL, {"message": "AssertionError: CPU GDN attention requires BF16.", "exit_after_ms": None}),
}
"""Faults of single requests: the sides they strike unless `when.side` says otherwise, and their parameters."""

START_FAULTS: dict[str, dict[str, Any]] = {
    "start_error": {"message": "ValueError: No available memory for the cache blocks.", "exits": False, "code": 1},
    "slow_start": {"ms": 5000.0},
    "never_healthy": {},
    "ignore_sigterm": {},
    "orphan_child": {"lifetime_s": 120.0, "new_session": True},
}
"""Faults of the process from its start, and their parameters; they take no rate and no conditions."""


class When(BaseModel):
    """Conditions; one that is absent holds. Requests are counted from 1 on each server."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    min_concurrency: int | None = Field(None, ge=1)
    after_requests: int | None = Field(None, ge=0)
    prompt_multiple_of: int | None = Field(None, ge=1)
    prompt_contains: str | None = None
    predecessor_contains: str | None = None
    after_finish_within_ms: float | None = Field(None, gt=0)
    async_scheduling: bool | None = None
    transferred: bool | None = None
    stream: bool | None = None
    port: int | None = None
    side: Side | Literal["any"] | None = None


class Fault(BaseModel):
    """A planted fault; `limit` is the most requests it strikes on one server."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    fault: str
    rate: float = Field(1.0, ge=0, le=1)
    by: Literal["prompt", "request"] = "prompt"
    when: When = When()
    seed: int = 0
    limit: int | None = Field(None, ge=1)
    params: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check_names(self) -> Fault:
        if self.fault in START_FAULTS:
            known = START_FAULTS[self.fault]
            if self.rate != 1 or self.when != When():
                raise ValueError(f"{self.fault} holds from the start: it takes no rate and no conditions")
        elif self.fault in REQUEST_FAULTS:
            known = REQUEST_FAULTS[self.fault][1]
        else:
            raise ValueError(
                f"unknown fault {self.fault!r}; known: {', '.join(sorted([*REQUEST_FAULTS, *START_FAULTS]))}"
            )
        strange = set(self.params) - set(known)
        if strange:
            takes = ", ".join(sorted(known)) or "none"
            raise ValueError(f"{self.fault}: unknown params {', '.join(sorted(strange))}; it takes {takes}")
        return self

    def param(self, name: str) -> Any:
        """The value given for a parameter, or its default."""
        known = START_FAULTS.get(self.fault) or REQUEST_FAULTS[self.fault][1]
        return self.params.get(name, known[name])

    @property
    def sides(self) -> tuple[str, ...]:
        if self.when.side == "any":
            return _ALL
        return (self.when.side,) if self.when.side else REQUEST_FAULTS[self.fault][0]


@dataclass(frozen=True)
class Moment:
    """One request as it is admitted: `number` from 1, `concurrency` with itself, times in ms.

    `predecessor` is the prompt of the request that ended last on this server, None before any has; `port` the server's.
    """

    side: Side
    number: int
    concurrency: int
    prompt: str
    prompt_tokens: int
    since_finish_ms: float | None
    async_scheduling: bool
    transferred: bool
    stream: bool
    predecessor: str | None
    port: int


def strikes(fault: Fault, moment: Moment) -> bool:
    """Whether a planted fault strikes a request; start faults never do."""
    if fault.fault in START_FAULTS:
        return False
    when = fault.when
    holds = (
        moment.side in fault.sides
        and (when.min_concurrency is None or moment.concurrency >= when.min_concurrency)
        and (when.after_requests is None or moment.number > when.after_requests)
        and (when.prompt_multiple_of is None or moment.prompt_tokens % when.prompt_multiple_of == 0)
        and (when.prompt_contains is None or when.prompt_contains in moment.prompt)
        and (
            when.predecessor_contains is None
            or (moment.predecessor is not None and when.predecessor_contains in moment.predecessor)
        )
        and (
            when.after_finish_within_ms is None
            or (moment.since_finish_ms is not None and moment.since_finish_ms <= when.after_finish_within_ms)
        )
        and when.async_scheduling in (None, moment.async_scheduling)
        and when.transferred in (None, moment.transferred)
        and when.stream in (None, moment.stream)
        and when.port in (None, moment.port)
    )
    if not holds or fault.rate == 1:
        return holds
    number = moment.number if fault.by == "request" else ""
    return fraction("fault", fault.seed, fault.fault, moment.prompt, number) < fault.rate


class Planted:
    """The faults of one server, with the count of what each has struck."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        self.faults = tuple(faults)
        self._struck = [0] * len(self.faults)

    def at_start(self, name: str) -> Fault | None:
        """The planted start fault of that name, or None."""
        return next((fault for fault in self.faults if fault.fault == name), None)

    def strike(self, moment: Moment) -> dict[str, Fault]:
        """The faults that strike a request, by name; the first of a name wins."""
        struck: dict[str, Fault] = {}
        for index, fault in enumerate(self.faults):
            spent = fault.limit is not None and self._struck[index] >= fault.limit
            if fault.fault not in struck and not spent and strikes(fault, moment):
                struck[fault.fault] = fault
                self._struck[index] += 1
        return struck
