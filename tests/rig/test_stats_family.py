"""Holm and Bonferroni against statsmodels."""

from __future__ import annotations

import gc
import math
from collections.abc import Iterator
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm
from statsmodels.stats.multitest import multipletests

from rig.stats_family import bonferroni, holm

# A short list of values makes ties common.
p_values = st.one_of(st.floats(0, 1), st.sampled_from([0.0, 0.01, 0.025, 0.05, 1.0]))
families = st.dictionaries(st.text(max_size=3), p_values, min_size=1, max_size=12)


@pytest.fixture(scope="module")
def collected() -> Iterator[None]:
    """statsmodels collects garbage in each call: not among all that the tests before have left."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("collected")
@given(families)
def test_holm_equals_statsmodels(family: dict[str, float]) -> None:
    expected = multipletests(list(family.values()), method="holm")[1]
    found = holm(family)
    assert list(found) == list(family)
    assert list(found.values()) == pytest.approx(list(expected), abs=1e-12)


@given(families)
def test_holm_is_monotone_capped_and_never_below_the_p_value(family: dict[str, float]) -> None:
    found = holm(family)
    in_order = sorted(family, key=lambda k: (family[k], found[k]))
    assert [found[k] for k in in_order] == sorted(found.values())
    assert all(family[k] <= found[k] <= bonferroni(family[k], len(family)) <= 1 for k in family)


@given(families, st.randoms(use_true_random=False))
def test_holm_does_not_depend_on_the_order(family: dict[str, float], random: Random) -> None:
    shuffled = list(family.items())
    random.shuffle(shuffled)
    assert holm(dict(shuffled)) == holm(family)


@given(p_values, st.integers(1, 8))
def test_ties_get_equal_values(p: float, m: int) -> None:
    assert set(holm(dict.fromkeys(range(m), p)).values()) == {bonferroni(p, m)}


def test_by_hand() -> None:
    assert holm({"a": 0.01, "b": 0.04, "c": 0.03}) == pytest.approx({"a": 0.03, "b": 0.06, "c": 0.06})
    assert holm({}) == {}
    assert bonferroni(0.02, 3) == pytest.approx(0.06) and bonferroni(0.5, 3) == 1


@pytest.mark.parametrize("p", [-0.1, 1.1, math.nan])
def test_what_is_no_p_value_is_refused(p: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        holm({"a": p})
    with pytest.raises(ValueError, match="between 0 and 1"):
        bonferroni(p, 2)


def test_false_alarms_of_a_family_of_dependent_tests() -> None:
    """Any false rejection among 5 true nulls that share a part, beside two that are false: at most alpha."""
    rng = np.random.default_rng(3)
    shared = rng.normal(size=(4000, 1))
    z = 0.6 * shared + 0.8 * rng.normal(size=(4000, 7)) + np.array([0, 0, 0, 0, 0, 3, 3])
    alarms = [min(list(holm(dict(enumerate(row))).values())[:5]) <= 0.05 for row in norm.sf(z)]
    assert 0.01 < np.mean(alarms) <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 4000)
