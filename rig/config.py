"""A sweep file, read and checked: `load_config` is the only way in."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from rig.config_errors import config_error, validate
from rig.config_facts import ModelFacts, engine_version, model_facts
from rig.config_matrix import Axis, Cell, complete, expand, read_axes, unknown_name
from rig.config_models import EngineConfig, ModelConfig, SweepFile
from rig.config_routers import RouterConfig
from rig.config_tasks import TaskFile
from rig.errors import ConfigError, Unreadable
from rig.task_file import StatedTask, read_task_file
from rig.yaml_source import KeyPath, YamlSource, parse_yaml, read_yaml

Program = TypeVar("Program", EngineConfig, RouterConfig)


@dataclass(frozen=True)
class Config:
    """A checked sweep: `cells` are complete and in order, `exclude` not yet applied (it matches labels).

    Paths in `sweep.models`, `.engines` and `.routers` are absolute: relative ones are taken from the file's folder.
    `facts` and `versions` say what the models and the engine builds are, by name, as far as their files tell,
    `stated` the tasks that have a file of their own, by their names in the sweep.
    """

    source: YamlSource
    sweep: SweepFile
    axes: tuple[Axis, ...]
    cells: tuple[Cell, ...]
    facts: Mapping[str, ModelFacts] = field(default_factory=dict)
    versions: Mapping[str, str | None] = field(default_factory=dict)
    stated: Mapping[str, StatedTask] = field(default_factory=dict)

    @property
    def file(self) -> str:
        return self.source.file

    def error(self, path: KeyPath, problem: str) -> ConfigError:
        """An error at a place of the file, with its line."""
        return config_error(self.source, path, problem)


def load_config(path: str | Path) -> Config:
    """Read a sweep file. Raises ConfigError, one line with file, key, what was expected and what was found."""
    return _checked(read_yaml(path), Path(path).resolve().parent)


def parse_config(text: str, file: str, folder: Path) -> Config:
    """The same from text; `folder` is what relative paths are taken from."""
    return _checked(parse_yaml(text, file), folder)


def _checked(source: YamlSource, folder: Path) -> Config:
    sweep = validate(SweepFile, source.data, source)
    sweep = sweep.model_copy(
        update={
            "models": {name: _model(model, folder) for name, model in sweep.models.items()},
            "engines": {name: _in_folder(engine, folder) for name, engine in sweep.engines.items()},
            "routers": {name: _in_folder(router, folder) for name, router in sweep.routers.items()},
        }
    )
    for i, baseline in enumerate(sweep.baseline):
        engine = baseline.monolithic.engine if baseline.monolithic else None
        if engine is not None and engine not in sweep.engines:
            listed: Iterable[Any] = (i,) if isinstance(source.data.get("baseline"), list) else ()
            at: KeyPath = ("baseline", *listed, "monolithic", "engine")
            raise unknown_name(source, at, "engine", engine, dict(sweep.engines))
    axes = read_axes(sweep, source)
    cells = tuple(complete(cell, sweep, source) for cell in expand(sweep, axes, source))
    facts = {name: model_facts(model) for name, model in sweep.models.items()}
    versions = {name: engine_version(engine) for name, engine in sweep.engines.items()}
    stated = {
        label: _stated(source, label, folder / Path(task.task.file).expanduser())
        for label, task in sweep.tasks.items()
        if isinstance(task.task, TaskFile)
    }
    return Config(source, sweep, axes, cells, facts, versions, stated)


def _stated(source: YamlSource, label: str, path: Path) -> StatedTask:
    """The task of a file. What is wrong within that file is said of it; that it is not there, of where it is named."""
    try:
        return read_task_file(path)
    except Unreadable as error:
        raise config_error(source, ("tasks", label, "task", "file"), f"{error}; name another task file") from None


def _absolute(path: str, folder: Path) -> str:
    # Links are kept: an environment works only under the path that it was made with.
    return os.path.normpath(folder / Path(path).expanduser())


def _model(model: ModelConfig, folder: Path) -> ModelConfig:
    return model if model.path is None else model.model_copy(update={"path": _absolute(model.path, folder)})


def _in_folder(program: Program, folder: Path) -> Program:
    return program if program.venv is None else program.model_copy(update={"venv": _absolute(program.venv, folder)})
