"""What is written down, and what a server's environment is made of."""

from __future__ import annotations

import os

import pytest

from rig.deploy.local import server_env
from rig.deploy.record import identity, masked_argv

ARGV = [
    (
        ["vllm", "serve", "m", "--api-key", "hush", "--port", "1"],
        ["vllm", "serve", "m", "--api-key", "***", "--port", "1"],
    ),
    (["x", "--hf-token=hush", "--max-tokens", "5"], ["x", "--hf-token=***", "--max-tokens", "5"]),
    (["x", "--tokenizer", "t", "--api-key"], ["x", "--tokenizer", "t", "--api-key"]),
]


@pytest.mark.parametrize(("argv", "shown"), ARGV)
def test_secret_flags_are_masked(argv: list[str], shown: list[str]) -> None:
    assert masked_argv(argv) == shown


def test_a_server_gets_the_environment_without_the_rigs_python() -> None:
    base = {"PATH": "/bin", "VIRTUAL_ENV": "/v", "PYTHONPATH": "/p", "PYTHONHOME": "/h", "HOME": "/root"}
    assert server_env(("/e/bin/vllm",), {"HOME": "/x"}, base) == {"PATH": "/e/bin:/bin", "HOME": "/x"}
    assert server_env(("vllm",), {"PATH": "/y"}, base) == {"PATH": "/y", "HOME": "/root"}


def test_identity_of_a_process() -> None:
    own = identity(os.getpid())
    assert own is not None
    assert own["pid"] == os.getpid()
    assert own["start"] > 0
    assert own["group"] == os.getpgid(0)
    assert identity(None) is None
