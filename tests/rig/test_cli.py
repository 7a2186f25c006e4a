"""The command line: what a user gets for bad input is one line and the right exit code."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from pydantic import ValidationError

from evals.bounds import BOUNDS
from rig.cli import cli, main
from rig.config_tasks import TaskConfig
from rig.store import RunFolder

ROOT = Path(__file__).resolve().parents[2]
SIM = ROOT / "configs" / "sim.yaml"


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as end:
        main(list(argv))
    out, err = capsys.readouterr()
    code = end.value.code
    assert isinstance(code, int)
    return code, out, err


def one_line(err: str) -> str:
    assert "Traceback" not in err
    (line,) = err.strip().splitlines()
    assert line.startswith("pdrig: ")
    return line


def edited(tmp_path: Path, old: str, new: str) -> Path:
    """A copy of the simulated sweep with one piece of text replaced."""
    text = SIM.read_text()
    assert old in text
    path = tmp_path / "sweep.yaml"
    path.write_text(text.replace(old, new))
    return path


def test_without_a_command_the_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys)
    assert code == 2
    assert "Usage: pdrig" in err


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["nosuch"], "No such command 'nosuch'"),
        (["plan"], "Missing argument 'CONFIG'"),
        (["plan", "missing.yaml"], "missing.yaml: "),
        (["plan", str(SIM), "--format", "xml"], "'xml' is not one of"),
        (["plan", str(SIM), "--gpus", "-1"], "--gpus"),
        (["sweep", str(SIM), "--limit", "0"], "--limit"),
        (["sweep", str(SIM), "--resume", "nowhere"], "nowhere: not a run folder"),
        (["eval", "http://127.0.0.1:1", "--task", "nope"], "no task is called 'nope'"),
        (["eval", "ftp://x", "--task", "gsm-tiny"], "expected http://HOST:PORT"),
        (
            ["eval", "http://127.0.0.1:1", "--task", "gsm-tiny", "--rate", "1", "--concurrency", "2"],
            "exclude each other",
        ),
        (["eval", "http://x", "--task", "gsm-tiny", "--rate", "1", "--poisson", "2"], "exclude each other"),
        (["eval", "http://x", "--task", "gsm-tiny", "--ramp", "1", "2"], "--ramp"),
        (["eval", "http://x", "--task", "gsm-tiny", "--seed", "1"], "--seed belongs to --poisson"),
        (["eval", "http://x", "--task", "gsm-tiny", "--param", "top_p"], "--param top_p: expected KEY=JSON"),
        (["eval", "http://x", "--task", "gsm-tiny", "--param", "a=b"], "text needs quotes"),
        (["eval", "http://x", "--task", "gsm-tiny", "--param", "a=NaN"], "--param a=NaN: expected KEY=JSON"),
        (["eval", "http://x", "--task", "gsm-tiny", "--param", "stream=true"], "params may not set stream"),
        (["eval", "http://x", "--task", "gsm-tiny", "--timeout", "idel=1"], "connect, first_byte, idle, total"),
        (["eval", "http://x", "--task", "gsm-tiny", "--timeout", "idle=-1"], "--timeout idle=-1: expected NAME="),
        (["eval", "http://x", "--task", "gsm-tiny", "--retries", "6"], "--retries"),
        (
            ["eval", "http://127.0.0.1:1", "--task", "gsm-tiny", "--shots", "1001"],
            "shots is 1001; it must be 0 to 1000",
        ),
        (["eval", "http://127.0.0.1:1", "--task", "gsm-tiny", "--limit", str(10**30)], "it must be 1 to 1000000"),
        (["eval", "http://127.0.0.1:1", "--task", "gsm-tiny", "--concurrency", str(10**30)], "--concurrency"),
        (["eval", "http://x", "--task", "gsm-tiny", "--warmup", str(10**9)], "--warmup"),
        (["plan", str(SIM), "--gpus", str(10**11)], "--gpus"),
        (["plan", str(SIM), "--parallel", str(10**11)], "--parallel"),
        (["eval", "http://127.0.0.1:1", "--task", "gsm8k", "--data", "nowhere"], "nowhere"),
        (["report", "nowhere"], "nowhere: not a run folder"),
        (["rescore", "nowhere"], "nowhere: not a run folder"),
        (["proxy", "--prefill", "x", "--decode", "http://127.0.0.1:1"], "x"),
    ],
)
def test_bad_usage_is_exit_2_and_one_line(capsys: pytest.CaptureFixture[str], argv: list[str], words: str) -> None:
    code, _, err = run(capsys, *argv)
    assert code == 2
    assert words in one_line(err)


@pytest.mark.parametrize("at", ["last", "before an option"])
def test_parallel_without_a_number_is_as_many_lanes_as_gpus_allow(capsys: pytest.CaptureFixture[str], at: str) -> None:
    argv = ["plan", str(SIM), "--parallel", *(["--format", "table"] if at == "before an option" else [])]
    code, out, err = run(capsys, *argv)
    assert code == 0, err
    assert "use no GPUs: say how many lanes there should be (--parallel N)" in " ".join(out.split())


def test_a_server_that_does_not_answer_is_exit_3(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "eval", "http://127.0.0.1:1", "--task", "gsm-tiny")
    assert code == 3
    assert "no server answers at http://127.0.0.1:1" in one_line(err)


def test_an_answer_missing_from_the_data_is_named_with_its_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    row = json.dumps({"question": "q", "answer": "#### 1"}) + "\n"
    (tmp_path / "train.jsonl").write_text(row * 5)
    (tmp_path / "test.jsonl").write_text(row + json.dumps({"question": "q"}) + "\n")
    code, _, err = run(capsys, "eval", "http://127.0.0.1:1", "--task", "gsm8k", "--data", str(tmp_path))
    assert code == 2
    assert "test.jsonl" in one_line(err)
    assert "answer" in err
    assert "2" in err


@pytest.mark.parametrize("name", ["concurrency", "warmup", "retries"])
def test_an_option_has_the_bounds_of_the_key(name: str) -> None:
    option = next(p.type for p in cli.commands["eval"].params if p.name == name)
    assert isinstance(option, click.IntRange) and (option.min, option.max) == BOUNDS[name]
    for value in BOUNDS[name]:
        assert getattr(TaskConfig.model_validate({"task": "gsm-tiny", name: value}), name) == value
    for value in (BOUNDS[name][0] - 1, BOUNDS[name][1] + 1):
        with pytest.raises(ValidationError):
            TaskConfig.model_validate({"task": "gsm-tiny", name: value})


def test_options_have_their_bounds_without_what_they_bound() -> None:
    """`pdrig --help` waits for no model of a sweep file."""
    script = (
        "import sys, rig.cli; print([m for m in ('evals.tasks', 'rig.config_types', 'rig.plan') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


ENGINE = 'command: ["{rig_python}", -m, rig.sim]'
BASELINE = "monolithic: {tp: 1, async_scheduling: false}"
ROUTER = "router: gone\n  proxy: {port: 28000}"


@pytest.mark.parametrize(
    ("old", "new", "key", "said"),
    [
        (ENGINE, ENGINE.replace("{rig_python}", "/no/python"), "engines.sim.command", "/no/python was not found"),
        (ENGINE, "venv: /no/venv", "engines.sim.venv", "/no/venv/bin/vllm was not found"),
        (ENGINE, f"command: [{SIM}, serve]", "engines.sim.command", f"{SIM} is not executable"),
    ],
)
def test_an_engine_that_is_not_there_is_exit_2_before_anything_starts(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, old: str, new: str, key: str, said: str
) -> None:
    path = edited(tmp_path, old, new)
    code, _, err = run(capsys, "sweep", str(path), "--out", str(tmp_path / "runs"))
    assert code == 2
    assert one_line(err) == (
        f"pdrig: {path}: {key}: monolithic-0: the command {said}; install it, or name another engine in the config"
    )
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("router", "key"),
    [
        ("{command: [/no/router, '{prefill}', '{decode}', '{port}']}", "routers.gone.command"),
        ("{kind: vllm-router, venv: /no/venv}", "routers.gone.venv"),
    ],
)
def test_a_router_that_is_not_there_is_told_by_its_key(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, router: str, key: str
) -> None:
    path = edited(tmp_path, "proxy: {port: 28000}", ROUTER)
    path.write_text(f"{path.read_text()}\nrouters:\n  gone: {router}\n")
    code, _, err = run(capsys, "sweep", str(path), "--out", str(tmp_path / "runs"))
    assert code == 2
    assert one_line(err).startswith(f"pdrig: {path}: {key}: proxy: the command /no/")


@pytest.mark.parametrize(
    ("old", "new", "key", "server"),
    [
        ("proxy: {port: 28000}", "proxy: {port: PORT}", "cell.proxy.port", "proxy"),
        ("port: 28100", "port: PORT", "cell.prefill.port", "prefill-0"),
        ("side_channel_port: 26650", "side_channel_port: PORT", "cell.decode.side_channel_port", "decode-0"),
        (BASELINE, BASELINE.replace("tp: 1", "port: PORT"), "baseline.monolithic.port", "monolithic-0"),
        ("matrix:", "matrix:\n  prefill.port: [PORT, 28100]", "matrix.prefill.port[0]", "prefill-0"),
    ],
)
def test_a_port_in_use_is_exit_2_before_anything_starts(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, old: str, new: str, key: str, server: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        path = edited(tmp_path, old, new.replace("PORT", str(port)))
        code, _, err = run(capsys, "sweep", str(path), "--out", str(tmp_path / "runs"))
    assert code == 2
    line = one_line(err)
    assert line.startswith(f"pdrig: {path}: {key}: {server}: port {port} is taken by pid ")
    assert line.endswith("; stop that process or plan another port")
    assert not (tmp_path / "runs").exists()


def test_doctor_names_what_is_missing_and_what_to_do(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = edited(tmp_path, '"{rig_python}"', '"/nowhere/python"')
    code, out, _ = run(capsys, "doctor", str(path), "--data", str(tmp_path))
    assert code == 3
    assert "missing  engine" in out
    assert "->" in out
    assert "no train.jsonl" in out


def test_a_plan_for_a_machine_without_a_gpu_says_what_it_assumed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    config = str(ROOT / "configs" / "hybrid_ssm.yaml")
    code, out, _ = run(capsys, "plan", config)
    assert code == 0
    assert "no GPU is visible here: planned for the 8 that are needed" in out
    code, _, err = run(capsys, "sweep", config)
    assert code == 2
    assert "GPUs needed" in one_line(err)


def test_the_plan_of_the_reference_needs_no_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "plan", str(ROOT / "configs" / "hybrid_ssm.yaml"), "--gpus", "8", "--format", "sh")
    assert code == 0
    assert "--no-async-scheduling" in out
    assert shutil.which("bash")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: " + "[" * 5000, "nested too deep"),
        ('name: "\\ud800"', "a value with characters that cannot be printed"),
        ('"a\\nb": 1', "a key with characters that cannot be printed on a line"),
    ],
)
def test_hostile_yaml_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(text)
    code, _, err = run(capsys, "plan", str(path))
    assert code == 2
    assert words in one_line(err)


def test_aliases_of_aliases_are_counted(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    levels = [f"l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * 9) if i else 'x'}]" for i in range(9)]
    path = tmp_path / "x.yaml"
    path.write_text("\n".join(levels))
    code, _, err = run(capsys, "plan", str(path))
    assert code == 2
    assert "through its aliases" in one_line(err)


def test_a_full_disk_behind_the_output_is_one_line() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "rig", "plan", str(SIM)], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode not in (0, 1)
    assert "Traceback" not in done.stderr


def test_the_trend_over_stored_runs(
    tmp_path: Path, store_run: Callable[..., RunFolder], capsys: pytest.CaptureFixture[str]
) -> None:
    one, other = (store_run(name, {"pd": {"n": 3}}).path for name in ("r1", "r2"))
    code, out, _ = run(capsys, "report", str(one), "--history")
    assert code == 0
    assert out.startswith("2 stored runs, r1 to r2,")
    target = tmp_path / "trend.md"
    assert run(capsys, "report", str(one), str(other), "--history", "--format", "md", "--out", str(target))[0] == 0
    assert target.read_text().startswith("### Trend\n")
    code, _, err = run(capsys, "report", str(one), str(other))
    assert (code, one_line(err)) == (2, "pdrig: several runs: give one, or --history for the trend over all of them")
    code, _, err = run(capsys, "report", str(one), "--history", "--format", "junit")
    assert code == 2
    assert "--format table" in one_line(err)


@pytest.mark.parametrize("name", ["run.json", "cells/pd/cell.json", "cells/pd/requests.jsonl"])
def test_a_file_of_a_newer_schema_is_refused_in_one_line(
    store_run: Callable[..., RunFolder], capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """Nothing else of it need be new: what it says may mean something else."""
    folder = store_run("r", {"pd": {"n": 3}}).path
    path = folder / name
    path.write_text(re.sub(r'"schema": ?1', '"schema":2', path.read_text(), count=1))
    at = f"{path}:1" if path.suffix == ".jsonl" else str(path)
    code, out, err = run(capsys, "report", str(folder), "--format", "html")
    assert (code, out) == (2, "")
    assert one_line(err).startswith(f"pdrig: {at}: schema 2, this version of the rig reads 1: read it with the version")
    code, out, err = run(capsys, "compare", f"{folder}:pd", f"{folder}:pd")
    assert code == 2
    assert f"{at}: schema 2, this version of the rig reads 1" in " ".join((out + err).split())
