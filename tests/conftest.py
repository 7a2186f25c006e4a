"""Programs that not every machine has: `@pytest.mark.needs("slurm")` (tests/support/needs.py), and vllm-router; a port
where nobody listens.

Property tests draw the same examples each time, so that a change passes or fails by what it changes; `make search`
draws new ones. A busy machine makes any example slow: pytest-timeout bounds what hangs.
"""

from __future__ import annotations

import os
import shutil
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import needs
import pytest
from hypothesis import settings

settings.register_profile("same", deadline=None, derandomize=True)
settings.register_profile("search", deadline=None, print_blob=True)
settings.load_profile("same")


def pytest_configure(config: pytest.Config) -> None:
    try:
        needs.required()
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers("needs"):
        for name in mark.args:
            if (reason := needs.unmet(name)) is None:
                continue
            if name in needs.required():
                pytest.fail(f"{needs.REQUIRE} names {name}, but there is {reason}", pytrace=False)
            pytest.skip(reason)


@pytest.fixture
def closed_port() -> Iterator[int]:
    """Takes no connections, and belongs to nobody else until the test is over."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield int(held.getsockname()[1])


@pytest.fixture(scope="session")
def vllm_router() -> str:
    """The program, from the environment that the tests run in: `make dev` brings it where there is a wheel."""
    found = shutil.which("vllm-router", path=str(Path(sys.executable).parent))
    if found is None:
        reason = "vllm-router is not installed here: pip install -e '.[routers]'"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return found
