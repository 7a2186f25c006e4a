"""Stored baselines: small files that are reviewed and committed, one a model and task (docs/baselines.md).

A file holds what its baselines share (task, prompts' hashes) once, then each with its figures and the questions that
it did not answer right, one a line, so that a change is a diff that can be read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import ConfigDict, TypeAdapter, ValidationError

from rig.errors import DataError, UsageError
from rig.matching import Difference, differences, task_differences
from rig.records import Accuracy, Canaries, Counts, Gates, Outcome, Percentiles, TaskInfo, Throughput
from rig.store import require_schema, write_text

SCHEMA = 1
DECIMALS = 6
"""Of figures in a file: more than any of them is worth, few enough to read."""

Missed = Literal["wrong", "unparsed", "truncated", "error"]


@dataclass(frozen=True)
class Origin:
    """Where a baseline comes from: run, cell, when it ran, when it was saved (UTC), and the sweep's command line."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    run: str
    cell: str
    ran: str
    saved: str
    argv: list[str]
    git: dict[str, Any] | None


@dataclass(frozen=True)
class Proof:
    """What counters and canaries showed; as in `rig.records.Evidence`."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    pd_exercised: bool | None
    transfers: int | None
    failed: int | None
    expired: int | None
    canaries: Canaries | None


@dataclass(frozen=True)
class Stored:
    """One baseline. `missed` are the questions that it was asked and did not answer right, by outcome.

    `not_asked` are questions of the file that it was not asked; `verdict` None is a monolithic cell's, which is held
    against nothing. Times are ms, as in `cell.json`.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    name: str
    labels: dict[str, Any]
    kind: Literal["pd", "monolithic"]
    verdict: Literal["pass", "improved"] | None
    accuracy: Accuracy
    n: int
    prompt_sha256: str
    counts: Counts
    evidence: Proof
    latency_ms: dict[str, Percentiles]
    throughput: Throughput | None
    warmup_requests: int | None
    gates: Gates
    commands: dict[str, list[str]]
    machine: dict[str, Any]
    versions: dict[str, str]
    origin: Origin
    missed: dict[Missed, list[str]]
    not_asked: list[str] = field(default_factory=list)

    def outcomes(self, questions: Mapping[str, str]) -> dict[str, Outcome]:
        """The outcome of every question that it was asked, by sample."""
        missed: dict[str, Outcome] = {sample: name for name, samples in self.missed.items() for sample in samples}
        left_out = set(self.not_asked)
        return {sample: missed.get(sample, "correct") for sample in questions if sample not in left_out}


@dataclass(frozen=True)
class StoredTask:
    """What all baselines of a file were asked, and how it was scored; as in `rig.records.TaskInfo`."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    name: str
    version: str
    endpoint: Literal["completions", "chat"]
    params: dict[str, Any]
    score_reasoning: bool
    scorer: str
    scorer_sha256: str

    @classmethod
    def of(cls, task: TaskInfo) -> StoredTask:
        return cls(
            task.name, task.version, task.endpoint, task.params, task.score_reasoning, task.scorer, task.scorer_sha256
        )


@dataclass(frozen=True)
class BaselineFile:
    """All baselines of a model and task, by name; `questions` has the prompt's SHA-256 by sample."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    model: str
    task_label: str
    task: StoredTask
    baselines: list[Stored]
    questions: dict[str, str]
    schema: int = SCHEMA

    def task_info(self, stored: Stored) -> TaskInfo:
        """The task of one of its baselines, as results have it."""
        t = self.task
        return TaskInfo(
            name=t.name,
            version=t.version,
            prompt_sha256=stored.prompt_sha256,
            scorer=t.scorer,
            scorer_sha256=t.scorer_sha256,
            n=stored.n,
            params=t.params,
            endpoint=t.endpoint,
            score_reasoning=t.score_reasoning,
        )


@dataclass(frozen=True)
class Fit:
    """The stored baseline that comes nearest to a cell; it fits where nothing differs. `file` is where it stands."""

    file: str
    stored: Stored
    differences: tuple[Difference, ...]

    @property
    def exact(self) -> bool:
        return not self.differences


_FILE = TypeAdapter(BaselineFile)


def find(labels: Mapping[str, Any], task: TaskInfo, files: Mapping[str, BaselineFile]) -> Fit | None:
    """The baseline that fits a cell's labels and task, else the one that differs least; `files` by name.

    None where no file is of the cell's model and task. Labels that tell neither from any other are not compared:
    one that is absent equals one that is None.
    """
    fits = [
        Fit(name, stored, differences(labels, stored.labels) + task_differences(task, file.task_info(stored)))
        for name, file in files.items()
        if (file.model, file.task_label) == (labels.get("model"), labels.get("task"))
        for stored in file.baselines
    ]
    return min(fits, key=lambda fit: len(fit.differences), default=None)


def file_name(model: str, task: str) -> str:
    """`tiny.gsm-tiny.json`: the labels of model and task, with what a file's name cannot hold replaced."""
    return ".".join(re.sub(r"[^A-Za-z0-9_-]+", "_", part) for part in (model, task)) + ".json"


def merged(old: BaselineFile | None, new: BaselineFile) -> BaselineFile:
    """The file with the baselines of `new` in place of those with the same labels.

    Raises UsageError where a baseline that stays was asked or scored otherwise: it would fit nothing any more.
    """
    if old is None:
        return new
    if (old.model, old.task_label) != (new.model, new.task_label):
        raise UsageError(
            f"the file holds {old.model} and {old.task_label}: rename the model or the task in the sweep, "
            "or give another --out"
        )
    staying = [s for s in old.baselines if all(differences(s.labels, other.labels) for other in new.baselines)]
    changed = [name for name, sha256 in new.questions.items() if old.questions.get(name, sha256) != sha256]
    if staying and (old.task != new.task or changed):
        what = f"the prompt of {changed[0]}" if changed else "the task, its parameters or its scorer"
        raise UsageError(
            f"{what} changed, and {', '.join(s.name for s in staying)} would no longer fit: save all of the file's "
            "baselines from one run, or delete the file first"
        )
    questions = {**old.questions, **new.questions} if staying else new.questions
    kept = [_asked_of(stored, old.questions, questions) for stored in staying]
    added = [_asked_of(stored, new.questions, questions) for stored in new.baselines]
    return replace(
        new,
        baselines=sorted([*kept, *added], key=lambda s: s.name),
        questions=dict(sorted(questions.items())),
    )


def _asked_of(stored: Stored, before: Mapping[str, str], questions: Mapping[str, str]) -> Stored:
    """The baseline as part of a file with more questions."""
    asked = stored.outcomes(before)
    return replace(stored, not_asked=sorted(sample for sample in questions if sample not in asked))


def changes(old: BaselineFile | None, new: BaselineFile, stored: Stored) -> str:
    """What saving one baseline changes, in a line: accuracy, n, and questions that are right no more or now."""
    value = _share(stored.accuracy.value)
    before = next((s for s in old.baselines if not differences(s.labels, stored.labels)), None) if old else None
    if old is None or before is None:
        return f"new: accuracy {value}, n {stored.n}"
    was, now = before.outcomes(old.questions), stored.outcomes(new.questions)
    lost = sum(was[s] == "correct" != now[s] for s in was.keys() & now.keys())
    gained = sum(now[s] == "correct" != was[s] for s in was.keys() & now.keys())
    flips = f"{lost} right no more, {gained} right now that were not" if lost or gained else "the same ones right"
    return (
        f"replaced (was from run {before.origin.run}): accuracy {_share(before.accuracy.value)} -> {value}, "
        f"n {before.n} -> {stored.n}; of the questions of both, {flips}"
    )


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def dump(file: BaselineFile) -> str:
    """The file's text: stable, one value a line. Lists are sorted; figures have DECIMALS decimals."""
    return json.dumps(_rounded(_FILE.dump_python(file, mode="json")), indent=1, ensure_ascii=False) + "\n"


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return round(value, DECIMALS) if isinstance(value, float) else value


def read(path: Path) -> BaselineFile:
    """Raises DataError, naming the key, for a file that is not a stored baseline."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None
    require_schema(path, content, SCHEMA)
    try:
        file = _FILE.validate_json(content)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise DataError(
            f"{path}: {f'{key}: ' if key else ''}{first['msg']} (not a baseline that `pdrig baseline save` wrote?)"
        ) from None
    for stored in file.baselines:
        asked = stored.outcomes(file.questions)
        unknown = {s for samples in stored.missed.values() for s in samples} - asked.keys()
        if len(asked) != stored.n or unknown:
            stray = f" and name {min(unknown)}, which was not asked" if unknown else ""
            raise DataError(
                f"{path}: {stored.name}: n is {stored.n}, its lists say {len(asked)} questions{stray}: "
                "restore the file, or save it again"
            )
    return file


def read_all(folder: Path) -> dict[str, BaselineFile]:
    """All files of a folder by path; none where there is no such folder. Raises DataError."""
    return {str(path): read(path) for path in sorted(folder.glob("*.json"))}


def write(path: Path, file: BaselineFile) -> None:
    write_text(path, dump(file))


def pick(file: BaselineFile, path: str, name: str) -> Stored:
    """One baseline of a file by its name. Raises UsageError."""
    for stored in file.baselines:
        if stored.name == name:
            return stored
    raise UsageError(f"{path}: has no baseline {name}; it has {_names(file.baselines)}")


def choose(files: Mapping[str, BaselineFile], name: str) -> list[tuple[str, BaselineFile, list[Stored]]]:
    """The baselines called `name`, or all those of the file called so; `files` by path. Raises UsageError."""
    found = []
    for path, file in files.items():
        whole = name in (path, Path(path).name, Path(path).stem)
        some = [s for s in file.baselines if whole or s.name == name]
        if some:
            found.append((path, file, some))
    if not found:
        known = ", ".join(s.name for file in files.values() for s in file.baselines) or "none are stored"
        raise UsageError(f"no baseline is called {name}: {known}")
    return found


def _names(baselines: Sequence[Stored]) -> str:
    return ", ".join(s.name for s in baselines)


def missed_of(outcomes: Iterable[tuple[str, Outcome]]) -> dict[Missed, list[str]]:
    """Samples by what became of them, those that were right left out; all four outcomes are always there."""
    missed: dict[Missed, list[str]] = {"wrong": [], "unparsed": [], "truncated": [], "error": []}
    for sample, outcome in outcomes:
        if outcome != "correct" and outcome != "unscored":
            missed[outcome].append(sample)
    return {name: sorted(samples) for name, samples in missed.items()}
