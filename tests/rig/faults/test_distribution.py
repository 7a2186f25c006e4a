"""The plugin as a distribution of its own: nothing to depend on, nothing done until it is asked for."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PLUGIN = ROOT / "rig" / "faults"
MODULES = sorted(PLUGIN.glob("*.py"))
LOADED_BY_VLLM = {"storage.py": {"torch", "vllm"}}
"""What a module may import beside, that vLLM itself loads when its configuration names it."""


def project() -> dict[str, object]:
    return tomllib.loads((PLUGIN / "pyproject.toml").read_text())


def test_the_wheel_holds_every_module_and_nothing_depends_on_anything() -> None:
    described = project()
    assert described["project"]["dependencies"] == []  # type: ignore[index]
    included = described["tool"]["hatch"]["build"]["targets"]["wheel"]["only-include"]  # type: ignore[index]
    assert included == [path.name for path in MODULES]


@pytest.mark.parametrize("path", MODULES, ids=lambda p: p.name)
def test_modules_import_the_standard_library_and_their_siblings_only(path: Path) -> None:
    tree = ast.parse(path.read_text())
    known = sys.stdlib_module_names | LOADED_BY_VLLM.get(path.name, set())
    for node in tree.body:
        if isinstance(node, ast.Import):
            assert all(alias.name.split(".")[0] in known for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 1 or (node.module or "").split(".")[0] in known


def test_without_a_control_file_registering_imports_nothing_more() -> None:
    code = (
        "import sys, os; os.environ.pop('PDRIG_FAULTS', None)\n"
        "from rig.faults import plugin; plugin.register()\n"
        "print(sorted(m for m in sys.modules if m.split('.')[0] in ('torch', 'vllm') or m.endswith('faults.hooks')))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_installers_marker_follows_the_sources(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("install_faults", ROOT / "scripts" / "install_faults.py")
    assert spec is not None and spec.loader is not None
    install_faults = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(install_faults)
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    (tmp_path / "a.py").write_text("x = 1\n")
    before = install_faults.digest(tmp_path)
    assert not install_faults.is_ready(tmp_path, before)
    (tmp_path / install_faults.MARKER).write_text(before)
    assert install_faults.is_ready(tmp_path, install_faults.digest(tmp_path))
    (tmp_path / "a.py").rename(tmp_path / "b.py")
    assert not install_faults.is_ready(tmp_path, install_faults.digest(tmp_path))
