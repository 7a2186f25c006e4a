"""A task that a file of its own states, read and checked: `read_task_file` is the only way in."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from evals.custom import ANSWER, Custom, Row, fields
from evals.errors import DataError
from evals.scorers import SCORERS, get_scorer
from evals.sink import read_jsonl
from rig.config_errors import config_error, did_you_mean, shown, validate
from rig.config_tasks import RequestParams
from rig.config_types import Name, Strict, problem
from rig.errors import ConfigError
from rig.yaml_source import KeyPath, YamlSource, read_yaml


@dataclass(frozen=True)
class StatedTask:
    """A task as its file states it. `path` is absolute; `sha256` is of that file and of those that it names."""

    path: str
    sha256: str
    task: Custom


def _scorer(name: str) -> str:
    if name not in SCORERS:
        raise problem(f"no scorer is called {shown(name)}{did_you_mean(name, SCORERS)}")
    return name


def _template(text: str) -> str:
    try:
        fields(text)
    except ValueError as error:
        raise problem(str(error)) from None
    return text


def _text(value: Any) -> Any:
    """A number in a row is the text that it is written as."""
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


Rows = list[dict[str, Annotated[str, BeforeValidator(_text)]]]
Template = Annotated[str, Field(min_length=1), AfterValidator(_template)]


class TaskFileModel(Strict):
    """The keys of a task file. What each means for a user is in docs/workloads.md."""

    name: Name
    version: Annotated[str, Field(min_length=1)]
    scorer: Annotated[str, AfterValidator(_scorer)]
    ask: Template
    rows: Rows | None = Field(default=None, min_length=1)
    rows_file: str | None = None
    shot: Template | None = None
    shots: Annotated[int, Field(ge=0)] = 0
    examples: Rows | None = None
    examples_file: str | None = None
    params: RequestParams = Field(default={})

    @model_validator(mode="after")
    def _whole(self) -> TaskFileModel:
        if (self.rows is None) == (self.rows_file is None):
            raise problem("give either `rows`, in this file, or `rows_file`, the path of a JSONL file")
        if self.examples is not None and self.examples_file is not None:
            raise problem("give either `examples` or `examples_file`")
        has_examples = self.examples is not None or self.examples_file is not None
        if has_examples != (self.shot is not None):
            raise problem("`shot`, how an example is shown, and the examples belong together; give both or neither")
        return self


def read_task_file(path: Path) -> StatedTask:
    """Read a task file and those that it names. Raises ConfigError: file, key, what was expected and what was found."""
    source = read_yaml(path)
    model = validate(TaskFileModel, source.data, source)
    digest = hashlib.sha256(path.read_bytes())
    rows = _rows(source, "rows", model.rows, model.rows_file, path.parent, digest)
    examples = _rows(source, "examples", model.examples, model.examples_file, path.parent, digest)
    if model.shots > len(examples):
        raise config_error(source, ("shots",), f"{model.shots} shots; there are {len(examples)} examples")
    if ANSWER in fields(model.ask):
        raise config_error(source, ("ask",), f"gives the answer away: it has {{{ANSWER}}} in it")
    needed = {"rows": [*fields(model.ask), *([ANSWER] if get_scorer(model.scorer).judges else [])]}
    needed["examples"] = fields(model.shot or "")
    for where, found in (("rows", rows), ("examples", examples)):
        for at, row in found:
            if missing := sorted(set(needed[where]) - row.keys()):
                raise at(f"has no {', '.join(f'`{name}`' for name in missing)}; it has {', '.join(row) or 'nothing'}")
    for at, row in rows:
        try:
            get_scorer(model.scorer).target(row.get(ANSWER, ""))
        except DataError as error:
            raise at(f"`{ANSWER}` is nothing that {model.scorer} can read: {error}") from None
    task = Custom(
        name=model.name,
        version=model.version,
        scorer=model.scorer,
        rows=tuple(row for _, row in rows),
        ask=model.ask,
        shot=model.shot or "",
        examples=tuple(row for _, row in examples),
        shots=model.shots,
        params=dict(model.params),
    )
    return StatedTask(str(path.resolve()), digest.hexdigest(), task)


@dataclass(frozen=True)
class _Place:
    """Where a row stands, for messages: called with a problem it gives the error."""

    source: YamlSource
    path: KeyPath
    file: str | None = None

    def __call__(self, text: str) -> ConfigError:
        if self.file is None:
            return config_error(self.source, self.path, text)
        return ConfigError(self.file, "", text)


def _rows(
    source: YamlSource, key: str, inline: Rows | None, file: str | None, folder: Path, digest: Any
) -> list[tuple[_Place, Row]]:
    if file is None:
        return [(_Place(source, (key, i)), row) for i, row in enumerate(inline or ())]
    path = folder / Path(file).expanduser()
    try:
        digest.update(path.read_bytes())
        lines = read_jsonl(path)
    except OSError as error:
        raise config_error(source, (f"{key}_file",), f"{path} cannot be read: {error.strerror}") from None
    except DataError as error:
        raise config_error(source, (f"{key}_file",), str(error)) from None
    if lines.cut_bytes:
        raise config_error(source, (f"{key}_file",), f"{path}: its last line does not end; is it whole?")
    if not lines.rows:
        raise config_error(source, (f"{key}_file",), f"{path} is empty; expected one JSON object a line")
    found: list[tuple[_Place, Row]] = []
    for number, row in enumerate(lines.rows, 1):
        place = _Place(source, (f"{key}_file",), f"{path}:{number}")
        texts = {name: _text(value) for name, value in row.items()}
        if strange := next((name for name, value in texts.items() if not isinstance(value, str)), None):
            raise place(f"`{strange}`: expected text or a number, got {shown(row[strange])}")
        found.append((place, texts))
    return found
