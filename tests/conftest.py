"""`@pytest.mark.needs("slurm")`: a test that needs programs which not every machine has (tests/support/needs.py)."""

from __future__ import annotations

import needs
import pytest


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
