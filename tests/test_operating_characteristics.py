"""The simulation behind docs/operating.md: its pairs, its shortcuts, and that the committed tables are of this rule."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks import operating_characteristics as oc
from rig import stats
from rig.stats_family import holm
from rig.stats_sequential import Outcome, Sequential

SOME = 8
DOCS = (Path(__file__).resolve().parent.parent / "docs" / "operating.md").read_text().splitlines()


@pytest.mark.parametrize(("flips", "drop"), [(0.0, 0.0), (0.02, 0.03), (0.08, 0.10)])
def test_pairs_have_the_rates_they_are_said_to_have(flips: float, drop: float) -> None:
    n = 400
    losses, gains, right = oc.draw(oc.Setting(n, flips, drop), 4000)
    spread = 4 * np.sqrt(0.25 / (4000 * n))
    assert losses.shape == gains.shape == (4000, oc.CELLS)
    assert right.mean() / n == pytest.approx(0.87, abs=spread)
    assert losses[:, 0].mean() / n == pytest.approx(flips / 2 + drop, abs=spread)
    assert losses[:, 1:].mean() / n == pytest.approx(flips / 2, abs=spread)
    assert gains.mean() / n == pytest.approx(flips / 2, abs=spread)


def test_one_baseline_is_shared() -> None:
    losses, gains, _ = oc.draw(oc.Setting(400, 0.08), 4000)
    assert np.corrcoef((losses - gains)[:, 1], (losses - gains)[:, 2])[0, 1] == pytest.approx(0.5, abs=0.06)


def test_alarms_are_those_of_mcnemar_and_holm_one_by_one() -> None:
    losses, gains, _ = oc.draw(oc.Setting(400, 0.02, 0.03), 60)
    found = oc.paired_alarms(losses, gains)
    for b, c, alarms in zip(losses, gains, found, strict=True):
        p_values = {i: stats.mcnemar_no_drop(int(b[i]), int(c[i])) for i in range(oc.CELLS)}
        assert [p <= 0.05 for p in holm(p_values).values()] == alarms.tolist()
    assert 0 < found.mean() < 1


@pytest.mark.parametrize("n", [100, 400])
def test_limits_are_those_of_the_bound(n: int) -> None:
    for c in range(0, 12, 3):
        most = oc.most_losses(n, c)
        assert most < 0 or stats.drop_below(most, c, n, oc.MARGIN, oc.ALPHA)
        assert not any(stats.drop_below(b, c, n, oc.MARGIN, oc.ALPHA) for b in (most + 1, most + 2))


def test_unpaired_test_by_hand() -> None:
    """870 against 840 of 1000: z = 0.03 / sqrt(2 * 0.855 * 0.145 / 1000) = 1.905; against 845 it is 1.59."""
    right, base = np.array([840, 845]), np.array([870, 870])
    assert oc.unpaired_alarms(right, base, 1000).tolist() == [True, False]


def test_sequential_paths_are_decided_as_by_the_class() -> None:
    setting = oc.Setting(250, 0.02, 0.05)
    named, passes, questions, alarms = 0, 0, 0, 0
    for losses, gains in oc.paths(setting, oc.CELLS, SOME):
        for b, c in zip(losses, gains, strict=True):
            ends = [one_by_one(b[i], c[i]) for i in range(oc.CELLS)]
            named += ends[0][0] == "regression"
            passes += ends[0][0] == "pass"
            questions += ends[0][1]
            alarms += any(state == "regression" for state, _ in ends)
    assert oc.stopped(setting, sweeps=SOME) == oc.Stopped(alarms / SOME, named / SOME, passes / SOME, questions / SOME)
    assert 0 < named < SOME


def one_by_one(losses: oc.Counts, gains: oc.Counts) -> tuple[str | None, int]:
    sequential = Sequential()
    steps = zip(np.diff(losses, prepend=0), np.diff(gains, prepend=0), strict=True)
    for asked, (lost, won) in enumerate(steps, start=1):
        outcome: Outcome = "loss" if lost else "gain" if won else "tie"
        sequential.add(outcome)
        if state := sequential.decided(oc.ALPHA / oc.CELLS, oc.ALPHA, oc.MARGIN):
            return state, asked
    return None, len(losses)


def test_a_setting_can_be_repeated_by_itself() -> None:
    setting = oc.Setting(200, 0.04, 0.05)
    assert oc.fixed.__wrapped__(setting, 50) == oc.fixed.__wrapped__(setting, 50)
    assert not np.array_equal(oc.draw(setting, 50)[0], oc.draw(oc.Setting(200, 0.04, 0.10), 50)[0])


# The committed tables


def rows_of(n: int) -> list[str]:
    """Lines of the part of the docs on damage at n questions."""
    rest = DOCS[DOCS.index(f"n = {n}") + 1 :]
    end = next(i for i, line in enumerate(rest) if line.startswith(("n = ", "## ")))
    return rest[:end]


@pytest.mark.parametrize(("n", "flips"), [(400, 0.02), (1319, 0.04)])
def test_the_docs_were_made_by_the_present_rule(n: int, flips: float) -> None:
    assert oc.clean_row(n, flips) in DOCS
    made = oc.damage_rows(n, flips)
    label = f"| {100 * flips:g} % |"
    assert [line for line in rows_of(n) if line.startswith(label)] == made


def test_the_docs_on_stopping_were_made_by_the_present_rule() -> None:
    assert oc.stopped_row(0.02, 0.05) in DOCS


def test_the_docs_hold_every_table_whole() -> None:
    for n in oc.SIZES:
        assert sum(line.startswith(f"| {n} |") for line in DOCS) == len(oc.FLIPS)
        assert sum(" % |" in line for line in rows_of(n)) == 4 * len(oc.FLIPS)
    start = next(i for i, line in enumerate(DOCS) if line.startswith("| flips | drop, points"))
    assert sum(" % |" in line for line in DOCS[start:]) == len(oc.FLIPS) * len(oc.DROPS)


def test_no_clean_sweep_of_the_docs_alarms_more_often_than_alpha() -> None:
    shares = [float(line.split("|")[3]) for n in oc.SIZES for line in DOCS if line.startswith(f"| {n} |")]
    assert len(shares) == 20 and max(shares) <= 5
