"""Which GPUs there are."""

from __future__ import annotations

from pathlib import Path

import pytest

from rig.machine import detect_machine, visible_gpus


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        (None, None),
        ("", ()),
        ("0", ("0",)),
        ("3, 1", ("3", "1")),
        ("0,-1,2", ("0",)),
        ("-1", ()),
        ("NoDevFiles", ()),
        ("0,,2", ("0",)),
        ("1,1", ("1",)),
        ("GPU-aa-bb,MIG-cc/1/0", ("GPU-aa-bb", "MIG-cc/1/0")),
    ],
)
def test_cuda_visible_devices(text: str | None, ids: tuple[str, ...] | None) -> None:
    assert visible_gpus({} if text is None else {"CUDA_VISIBLE_DEVICES": text}) == ids


def fake_smi(folder: Path, script: str) -> None:
    command = folder / "nvidia-smi"
    command.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    command.chmod(0o755)


@pytest.mark.parametrize(
    ("script", "gpus"),
    [("echo 0; echo 1", ("0", "1")), ("echo 0; exit 9", ()), ("echo No devices were found", ())],
)
def test_nvidia_smi_is_asked_when_nothing_is_set(
    script: str, gpus: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_smi(tmp_path, script)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert detect_machine({}).gpus == gpus
    assert detect_machine({"CUDA_VISIBLE_DEVICES": "5"}).gpus == ("5",)


def test_no_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    machine = detect_machine({})
    assert machine.gpus == ()
    assert machine.hostname
    assert Path(machine.rig_python).is_file()
