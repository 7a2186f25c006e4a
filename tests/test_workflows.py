"""The workflow files: their shell, the commands in it, and who may run what with which rights."""

from __future__ import annotations

import functools
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import needs
import pytest
import yaml

from rig.cli import cli

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yaml"))
BUILDS, NIGHTLY = (ROOT / ".github" / "workflows" / name for name in ("pr.yaml", "nightly-gpu.yaml"))
ENDS = ("|", "||", "&&", ";", ">", ">>", "2>", "}", ")", "then", "fi")
"""Where a command's own words end."""


def load(path: Path) -> dict[Any, Any]:
    """YAML 1.1 reads the key `on` as true."""
    found = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert isinstance(found, dict)
    return found


def steps(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, job in load(path)["jobs"].items():
        for step in job["steps"]:
            yield name, step


def shells() -> list[Any]:
    """Every `run` of every workflow."""
    return [
        pytest.param(step["run"], id=f"{path.stem}-{job}-{i}")
        for path in WORKFLOWS
        for i, (job, step) in enumerate(steps(path))
        if "run" in step
    ]


def documented() -> list[Any]:
    """The shell of the guide: fenced `sh` blocks, and the commands within its worked examples."""
    text = (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")
    found = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL):
        found += re.findall(r"^ *- ((?:make|python3|\.venv/bin/|rig/).*)$", block, re.MULTILINE)
    return [pytest.param(shell, id=f"docs-{i}") for i, shell in enumerate(found)]


def commands(shell: str) -> Iterator[list[str]]:
    """Each command of the rig's in a script: `pdrig ...`, `python scripts/X.py ...`, `make ...`, as words."""
    for line in shell.replace("\\\n", " ").splitlines():
        words = shlex.split(line)
        for i, word in enumerate(words):
            name = Path(word).name
            if name not in ("pdrig", "make") and not (word.endswith(".py") and "scripts/" in word):
                continue
            rest = words[i + 1 :]
            end = next((k for k, w in enumerate(rest) if w in ENDS or w.endswith(";")), len(rest))
            yield [word, *rest[:end]]


@pytest.mark.parametrize("shell", shells() + documented())
def test_every_script_is_valid_shell(shell: str) -> None:
    done = subprocess.run(["bash", "-n"], input=shell, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("shell", shells() + documented())
def test_every_command_is_one_that_there_is(shell: str) -> None:
    """A renamed command, option, script or target is noticed here; nothing is run but their parsers."""
    for words in commands(shell):
        name = Path(words[0]).name
        if name == "pdrig":
            parsed_by_pdrig(words[1:])
        elif name == "make":
            targets = [w for w in words[1:] if w in targets_of_make()]
            assert targets, f"make: no such target among {words[1:]}"
        else:
            options_are_known(ROOT / "scripts" / name, words[1:])


def parsed_by_pdrig(words: list[str]) -> None:
    command: click.Command = cli
    while isinstance(command, click.Group):
        command, words = command.commands[words[0]], words[1:]
    command.make_context(str(command.name), list(words))


def options_are_known(script: Path, words: list[str]) -> None:
    assert script.is_file(), script
    given = [word.split("=")[0] for word in words if word.startswith("--")]
    if given:
        helped = help_of(script, words[0] if script.name == "post_comment.py" else "")
        for option in given:
            assert re.search(rf"{re.escape(option)}\b", helped), f"{script.name} has no {option}"


@functools.cache
def help_of(script: Path, command: str) -> str:
    words = [sys.executable, str(script), *([command] if command else []), "--help"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize(
    ("shell", "error"),
    [
        ("pdrig sweep configs/sim.yaml --nope 2>&1 | tee log", click.NoSuchOption),
        (".venv/bin/pdrig swoop configs/sim.yaml", KeyError),
        ("pdrig report", click.MissingParameter),
        ("python3 scripts/nightly.py --config x \\\n  --nope", AssertionError),
        ("python3 scripts/nope.py", AssertionError),
        ("make nope", AssertionError),
    ],
)
def test_a_command_that_is_none_is_noticed(shell: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        test_every_command_is_one_that_there_is(shell)


def targets_of_make() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


def test_the_guides_worked_examples_are_yaml() -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "ci.md").read_text(encoding="utf-8"), re.DOTALL)
    buildkite, gitlab = map(yaml.safe_load, blocks)
    assert len(buildkite["steps"]) == 3
    assert all(isinstance(line, str) for line in [*buildkite["steps"][0]["commands"], *gitlab["pdrig"]["script"]])


def test_the_variables_of_the_guide_are_those_of_the_workflows() -> None:
    used = {name for path in (BUILDS, NIGHTLY) for name in re.findall(r"vars\.(\w+)", path.read_text(encoding="utf-8"))}
    told = set(re.findall(r"^\| `(PDRIG_\w+)`", (ROOT / "docs" / "ci.md").read_text(encoding="utf-8"), re.MULTILINE))
    assert used == told


def test_options_set_in_variables_are_known_too() -> None:
    """The scripts are called with "$@": what is collected there is parsed like the rest."""
    found = 0
    for path, script in ((BUILDS, "compare_builds.py"), (NIGHTLY, "nightly.py")):
        for _, step in steps(path):
            for options in re.findall(r"set -- (.*?)(?:;|$)", step.get("run", ""), re.MULTILINE):
                options_are_known(ROOT / "scripts" / script, shlex.split(options))
                found += 1
    assert found == 4


def test_ci_skips_no_test_for_want_of_a_program() -> None:
    """Every need is promised by a job that installs it and runs what needs it."""
    promised = set()
    for job in load(ROOT / ".github" / "workflows" / "ci.yaml")["jobs"].values():
        names = needs.required({needs.REQUIRE: "", **job.get("env", {})})
        words = " ".join(step.get("run", "") for step in job["steps"]).split()
        for name in names:
            assert set(needs.NEEDS[name].packages) <= set(words[words.index("apt-get") :]), name
        promised |= names if {"pytest", "needs"} <= set(words) else set()
    assert promised == set(needs.NEEDS)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda p: p.stem)
def test_rights_limits_and_versions(path: Path) -> None:
    workflow = load(path)
    assert workflow["permissions"] in ({}, {"contents": "read"})
    assert "secrets." not in path.read_text(encoding="utf-8")
    for name, job in workflow["jobs"].items():
        assert job["timeout-minutes"], f"{name} may run for ever"
    for name, step in steps(path):
        if "uses" in step:
            assert re.fullmatch(r"actions/[a-z-]+@(v\d+|[0-9a-f]{40})", step["uses"]), step["uses"]
        if step.get("uses", "").startswith("actions/checkout"):
            assert step["with"]["persist-credentials"] is False, f"{name}: the token would lie in the checkout"
        # What others may choose (titles, branches, inputs) would be pasted into the script.
        assert "${{" not in step.get("run", ""), f"{name}: pass it through env"


def test_nobody_with_a_token_that_writes_runs_foreign_code() -> None:
    for path in WORKFLOWS:
        for name, job in load(path)["jobs"].items():
            if "write" not in (job.get("permissions") or {}).values():
                continue
            assert job["runs-on"] == "ubuntu-latest", f"{name} would have its token on our own runner"
            for step in job["steps"]:
                if "checkout" in step.get("uses", ""):
                    assert "github.event.pull_request" not in str(step["with"]), f"{name} checks out foreign code"
                for words in commands(step.get("run", "")):
                    assert Path(words[0]).name == "post_comment.py", f"{name} runs {words}"


def test_forks_reach_the_gpu_runner_only_behind_the_label() -> None:
    workflow = load(BUILDS)
    assert set(workflow[True]) == {"pull_request_target", "workflow_dispatch"}
    compare = workflow["jobs"]["compare"]
    assert compare["permissions"] == {"contents": "read"}

    def runs(action: str, label: str, fork: bool) -> bool:
        return evaluated(compare["if"], action, label, fork)

    for action in ("opened", "synchronize", "reopened"):
        assert runs(action, "", fork=False)
        assert not runs(action, "", fork=True)
    assert runs("labeled", "gpu-ok", fork=True)
    assert not runs("labeled", "bug", fork=True)
    assert not runs("labeled", "bug", fork=False)


def evaluated(condition: str, action: str, label: str, fork: bool) -> bool:
    """GitHub's expression for an event of a pull request, in the repository me/vllm, which has set the variables."""
    values = {
        "vars.PDRIG_GPU_RUNNER": "gpu",
        "vars.PDRIG_REPOSITORY": "me/pdrig",
        "vars.PDRIG_LABEL": "",
        "github.event_name": "pull_request_target",
        "github.event.action": action,
        "github.event.label.name": label,
        "github.event.pull_request.head.repo.full_name": "you/vllm" if fork else "me/vllm",
        "github.repository": "me/vllm",
    }
    text = condition.replace("&&", " and ").replace("||", " or ").replace("\n", " ")
    for name, value in sorted(values.items(), key=lambda item: -len(item[0])):
        text = text.replace(name, repr(value))
    return bool(eval(text, {"__builtins__": {}}))


def test_the_code_of_a_pull_request_is_that_of_the_event() -> None:
    """By commit, never by a name that can move between the label and the run."""
    checkouts = [s["with"] for _, s in steps(BUILDS) if "checkout" in s.get("uses", "") and "ref" in s["with"]]
    assert [c["ref"] for c in checkouts] == [
        "${{ github.event.pull_request.base.sha }}",
        "${{ github.event.pull_request.head.sha }}",
    ]


def test_actionlint_has_nothing_to_say() -> None:
    beside = Path(sys.executable).parent / "actionlint"
    program = str(beside) if beside.exists() else shutil.which("actionlint")
    if program is None:
        pytest.skip("actionlint is not installed: make actionlint")
    done = subprocess.run([program, *map(str, WORKFLOWS)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
