"""The order in which cells run. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence


def with_baselines(cells: Iterable[str], baselines: Mapping[str, Sequence[str]]) -> set[str]:
    """These cells and, through all levels, the cells that they are held against."""
    keep: set[str] = set()
    queue = list(cells)
    while queue:
        cell = queue.pop()
        if cell not in keep:
            keep.add(cell)
            queue += baselines[cell]
    return keep


def baselines_first(baselines: Mapping[str, Sequence[str]], deployments: Mapping[str, str]) -> list[str] | None:
    """Every cell after its baselines; None where they form a circle.

    Of the cells that may run next, one of the deployment that is up is taken, since a launch costs most; else
    the one that comes first for a reader: the first cell that is still to run, or what it waits for.
    """
    left = list(baselines)
    done: list[str] = []
    while left:
        ready = [cell for cell in left if all(b in done for b in baselines[cell])]
        if not ready:
            return None
        same = [cell for cell in ready if done and deployments[cell] == deployments[done[-1]]]
        following = same or [cell for cell in ready if cell in _waiting_for(left, baselines)]
        cell = (following or ready)[0]
        left.remove(cell)
        done.append(cell)
    return done


def order_cells(
    baselines: Mapping[str, Sequence[str]], deployments: Mapping[str, str], before: Mapping[str, str | None]
) -> list[str] | None:
    """The same with the passes of one cell together and in order: `before` names each pass's predecessor, or None."""
    first: dict[str, str] = {}
    series: dict[str, list[str]] = {}
    for cell in baselines:
        previous = before[cell]
        first[cell] = cell if previous is None else first[previous]
        series.setdefault(first[cell], []).append(cell)
    needed = {head: [first[b] for cell in cells for b in baselines[cell]] for head, cells in series.items()}
    for head, cells in series.items():
        if any(b in cells[i:] for i, cell in enumerate(cells) for b in baselines[cell]):
            return None
        needed[head] = [other for other in needed[head] if other != head]
    order = baselines_first(needed, deployments)
    return None if order is None else [cell for head in order for cell in series[head]]


def _waiting_for(left: Sequence[str], baselines: Mapping[str, Sequence[str]]) -> set[str]:
    """The first cell of the reader's order that is no baseline of another still to run, and its baselines."""
    needed = {b for cell in left for b in baselines[cell]}
    first = next((cell for cell in left if cell not in needed), left[0])
    return with_baselines([first], baselines)
