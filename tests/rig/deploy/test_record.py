"""What is written down, and what a server's environment is made of."""

from __future__ import annotations

import os

from rig.deploy.local import server_env
from rig.deploy.record import identity


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
