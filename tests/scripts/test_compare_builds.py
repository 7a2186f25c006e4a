"""The script that holds two builds against each other: the sweep that it writes is the user's, from another folder."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import yaml

from rig.config import load_config

ROOT = Path(__file__).parents[2]


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("compare_builds", ROOT / "scripts" / "compare_builds.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_relative_paths_are_those_of_the_users_file(tmp_path: Path) -> None:
    """Of models, routers and task files; without one of them the sweep is refused, or another one runs."""
    sweep = yaml.safe_load((ROOT / "configs" / "routers.yaml").read_text())
    sweep["tasks"]["ledger"] = {"task": {"file": "tasks/ledger.yaml"}, "concurrency": 8}
    sweep["cell"]["task"] = "ledger"
    config = tmp_path / "configs" / "mine.yaml"
    config.parent.mkdir()
    (config.parent / "tasks").symlink_to(ROOT / "configs" / "tasks")
    config.write_text(yaml.safe_dump(sweep))
    written = script().write_sweep(config, {"base": tmp_path / "a", "pr": tmp_path / "b"}, tmp_path / "out" / "deep")
    before, after = load_config(config), load_config(written)
    assert after.sweep.models == before.sweep.models and after.sweep.routers == before.sweep.routers
    assert after.stated == before.stated and after.sweep.routers["vllm-router"].venv is not None
    assert {name: engine.venv for name, engine in after.sweep.engines.items()} == {
        "base": str(tmp_path / "a"),
        "pr": str(tmp_path / "b"),
    }
