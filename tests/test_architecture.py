"""The folder listing is the architecture: who may import whom, and which modules do no I/O."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

LAYERS = [
    {"errors", "records", "planned", "secrets", "stats", "series", "faults", "matching", "compared"}
    | {"ending", "readers", "within", "clients"},
    {
        "metrics",
        "judge",
        "counters",
        "connectors",
        "routers",
        "log_findings",
        "divergence",
        "pairs",
        "segments",
        "explain",
        "labels",
        "columns",
        "store",
        "progress",
        "yaml_source",
        "machine",
        "provenance",
    },
    {"config", "config_errors", "evidence", "comparison", "ratios", "early", "judge_canaries", "verdict", "settling"}
    | {"attempts", "task_file", "baselines", "saving", "sides", "comparing"},
    {"plan"},
    {"report", "plan_text", "deploy", "doctor"},
    {"asking", "fitting", "observing", "rounds", "reporting"},
    {"cell", "concluding", "evaluate", "launching", "rescoring", "resuming", "stored"},
    {"run"},
    {"selftest"},
    {"cli"},
    {"__main__"},
]
PURE = {
    "matching",
    "compared",
    "comparing",
    "comparison",
    "ratios",
    "early",
    "rounds",
    "settling",
    "connectors",
    "routers",
    "log_findings",
    "pairs",
    "segments",
    "explain",
    "labels",
    "columns",
    "plan",
    "plan_text",
    "planned",
    "records",
    "stats",
    "judge",
    "metrics",
    "evidence",
    "verdict",
    "report",
    "secrets",
    "series",
    "divergence",
}
IMPURE_MODULES = {"subprocess", "socket", "httpx", "aiohttp", "shutil", "tempfile", "asyncio", "requests"}


def modules(package: str) -> list[Path]:
    return sorted(p for p in (ROOT / package).rglob("*.py") if "tiny_hybrid/train" not in str(p))


def imported(path: Path) -> set[str]:
    """Dotted names that a module imports, at any depth."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def part(path: Path) -> str:
    """The name of the module of `rig` that a file belongs to."""
    return path.relative_to(ROOT / "rig").parts[0].removesuffix(".py")


def layer(name: str) -> int:
    for i, group in enumerate(LAYERS):
        if any(name == g or name.startswith(f"{g}_") for g in group):
            return i
    raise AssertionError(f"rig/{name} has no place in the layers: add it")


@pytest.mark.parametrize("package", ["proxy", "evals"])
def test_proxy_and_evals_know_nothing_of_the_rig(package: str) -> None:
    for path in modules(package):
        assert not {n for n in imported(path) if n.split(".")[0] == "rig"}, path


def test_the_simulated_engine_is_never_imported() -> None:
    for path in modules("rig"):
        if part(path) != "sim":
            assert not {n for n in imported(path) if n.startswith("rig.sim")}, path


def test_the_simulated_engine_stands_apart() -> None:
    """Of the rig it knows only the control file, which it obeys as a real engine does."""
    for path in modules("rig/sim"):
        known = {n for n in imported(path) if n.split(".")[0] == "rig" and n != "rig"}
        assert not {n for n in known if n.split(".")[1] not in ("sim", "faults")}, path


def test_rig_imports_downward_only() -> None:
    for path in modules("rig"):
        name = part(path)
        if name in ("__init__", "sim"):
            continue
        for target in imported(path):
            pieces = target.split(".")
            if pieces[0] != "rig" or len(pieces) < 2 or pieces[1] == name:
                continue
            if not ((ROOT / "rig" / pieces[1]).is_dir() or (ROOT / "rig" / f"{pieces[1]}.py").exists()):
                continue
            assert layer(pieces[1]) <= layer(name), f"{path} imports {target}, which is above it"


def test_pure_modules_do_no_io() -> None:
    for path in modules("rig"):
        if any(part(path) == p or part(path).startswith(f"{p}_") for p in PURE):
            assert not {n.split(".")[0] for n in imported(path)} & IMPURE_MODULES, path
            calls = {
                n.func.id
                for n in ast.walk(ast.parse(path.read_text()))
                if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)
            }
            assert "open" not in calls, path


def test_modules_stay_small() -> None:
    long = {
        str(p.relative_to(ROOT)): n
        for pkg in ("rig", "proxy", "evals")
        for p in modules(pkg)
        if (n := len(p.read_text().splitlines())) > 400
    }
    assert not long
