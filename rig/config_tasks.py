"""The keys of a task: what is asked, how hard, how long to wait. What each means for a user is in docs/config.md."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from evals.canaries import MOST as MOST_CANARIES
from evals.tasks import OPTIONS, RESERVED_PARAMS, TASK_NAMES
from rig.config_errors import did_you_mean, shown
from rig.config_types import InFlight, JsonObject, Seconds, Strict, bounded, problem

CONCURRENCY = 8
"""Requests in flight of a task that says neither `concurrency` nor `schedule`."""

Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]
"""Requests a second."""


def _params(params: dict[str, Any]) -> dict[str, Any]:
    if reserved := sorted(RESERVED_PARAMS & params.keys()):
        raise problem(f"{', '.join(reserved)} cannot be set here; the evaluator does")
    return params


RequestParams = Annotated[JsonObject, AfterValidator(_params)]
"""Parameters that go with every request."""


class TaskFile(Strict):
    """A task that a file states; `rig.task_file` reads it."""

    file: str


def _task(value: Any) -> Any:
    if isinstance(value, dict):
        if set(value) != {"file"} or not isinstance(value["file"], str) or not value["file"]:
            raise problem(f"expected a task's name, or `file:` with the path of a task file, got {shown(value)}")
        return TaskFile(file=value["file"])
    names = (*TASK_NAMES, *OPTIONS)
    if not isinstance(value, str):
        known = ", ".join(names)
        raise problem(f"expected a task's name ({known}), or `file:` with the path of a task file, got {shown(value)}")
    if value not in names:
        raise problem(f"no task is called {shown(value)}{did_you_mean(value, names)}")
    return value


def _depth(value: int) -> int:
    if not 0 <= value <= 100:
        raise problem(f"expected per cent of the filler, 0 to 100, got {value}")
    return value


class RampConfig(Strict):
    """A rate that goes evenly from `first` to `last` within `seconds`, then stays."""

    first: Rate
    last: Rate
    seconds: Seconds


class ScheduleConfig(Strict):
    """When requests start, however long answers take: one of a constant rate, Poisson arrivals, or a ramp."""

    rate: Rate | None = None
    poisson: Rate | None = None
    seed: Annotated[int, Field(ge=0)] | None = None
    ramp: RampConfig | None = None

    @model_validator(mode="after")
    def _one_shape(self) -> ScheduleConfig:
        if sum(shape is not None for shape in (self.rate, self.poisson, self.ramp)) != 1:
            raise problem("give one of `rate`, `poisson` and `ramp`")
        if self.seed is not None and self.poisson is None:
            raise problem("`seed` belongs to `poisson`; drop it")
        return self


def require_one_load(concurrency: int | None, schedule: ScheduleConfig | None) -> None:
    """Raises the models' error when both are given."""
    if concurrency is not None and schedule is not None:
        raise problem("give either `concurrency`, requests in flight, or `schedule`, when they start")


class TimeoutsConfig(Strict):
    """Limits of one request in seconds; evals.client.Timeouts says what each bounds, and has the same defaults."""

    connect: Seconds = 10.0
    first_byte: Seconds = 600.0
    idle: Seconds = 120.0
    total: Seconds = 1800.0


class TaskConfig(Strict):
    """A task of evals by name or by its file, how much of it and how hard. None leaves the task's own default.

    `canaries` are asked among the questions (None: one in 20, see evals.canaries); `divergence` asks for token ids, or
    those and logprobs; `repeats` asks all of it so many times, in another order each time. `words` to `multiples` are
    options of some tasks alone (evals.tasks.OPTIONS).
    """

    task: Annotated[str | TaskFile, BeforeValidator(_task)]
    limit: Annotated[int, bounded("limit")] | None = None
    shots: Annotated[int, bounded("shots")] | None = None
    max_tokens: Annotated[int, bounded("max_tokens")] | None = None
    concurrency: InFlight | None = None
    schedule: ScheduleConfig | None = None
    stream: bool = True
    warmup: Annotated[int, bounded("warmup")] = 16
    passes: Annotated[int, Field(ge=1, le=100)] = 1
    endpoint: Literal["completions", "chat"] = "completions"
    params: RequestParams = {}
    score_reasoning: bool = False
    timeouts: TimeoutsConfig = TimeoutsConfig()
    retries: Annotated[int, bounded("retries")] = 0
    canaries: Annotated[int, Field(ge=0, le=MOST_CANARIES)] | None = None
    divergence: Literal["off", "tokens", "logprobs"] = "off"
    repeats: Annotated[int, Field(ge=1, le=100)] = 1
    words: Annotated[int, Field(ge=0, le=200_000)] | None = None
    shared: Annotated[float, Field(ge=0, le=1)] | None = None
    depths: Annotated[list[Annotated[int, AfterValidator(_depth)]], Field(min_length=1)] | None = None
    questions: Literal["gsm8k", "gsm8k-vllm", "gsm-tiny"] | None = None
    multiples: Annotated[int, Field(ge=1, le=10_000)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _load(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("concurrency") is None and data.get("schedule") is None:
            return {**data, "concurrency": CONCURRENCY}
        return data

    @property
    def options(self) -> dict[str, Any]:
        """The task's own options that are given."""
        names = dict.fromkeys(name for known in OPTIONS.values() for name in known)
        return {name: value for name in names if (value := getattr(self, name)) is not None}

    @model_validator(mode="after")
    def _own_options(self) -> TaskConfig:
        for name in self.options:
            owners = [task for task, known in OPTIONS.items() if name in known]
            if self.task not in owners:
                raise problem(f"`{name}` is an option of {', '.join(owners)}; drop it")
        return self

    @model_validator(mode="after")
    def _one_load(self) -> TaskConfig:
        require_one_load(self.concurrency, self.schedule)
        if self.passes > 1 and self.repeats > 1:
            raise problem("give `passes`, a row each with its own cache state, or `repeats`, one row; not both")
        return self
