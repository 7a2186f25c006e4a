"""Does a router that is not the rig's hand requests over? Its answers name no servers: the engines' counters tell."""

from __future__ import annotations

import asyncio
import time
import uuid

import httpx

from rig import series
from rig.connectors import Adapter, adapter, children
from rig.counters import Source, read_settled
from rig.deploy import ready
from rig.errors import NotUsable
from rig.evidence_common import deltas, total_of
from rig.planned import DeploymentPlan

COUNTED_S = 10.0
"""How long a transfer may take to be counted after its answer, in seconds; an engine publishes with its next step."""


async def check_counted(http: httpx.AsyncClient, url: str, plan: DeploymentPlan, limit_s: float) -> None:
    """As many requests as there are pairs of instances, at most ready.MAX_PAIRS, each with a prompt of its own.

    `limit_s` bounds each. Raises NotUsable (NoAnswer) if an answer is not a 200 with usable tokens, or if fewer
    transfers were counted than answers came. Of a connector that no series prove, only the answers are checked.
    """
    sources = [Source(s.name, s.role, f"{s.url}/metrics") for s in plan.servers]
    sources += [Source(s.name, s.role, s.metrics_url) for s in plan.attached]
    roles = {source.instance: source.role for source in sources}
    each = [*roles.values()]
    asked = min(each.count("prefill") * each.count("decode"), ready.MAX_PAIRS)
    rule = adapter(plan.connector, children(plan.kv_transfer))
    before = await read_settled(sources)
    for _ in range(asked):
        await ready.ask_through(http, url, plan.model, f"{uuid.uuid4().hex[:8]}. {ready.PROMPTS[0]}", limit_s)
    if rule is None:
        return
    deadline = time.monotonic() + COUNTED_S
    while True:
        after = await read_settled(sources)
        missing = [reading for reading in (*before, *after) if reading.missing]
        if missing:
            raise ready.NoAnswer(f"{missing[0].instance}: counters could not be read ({missing[0].missing})", "proxy")
        grown = deltas(before, after)
        moved = total_of(grown, roles, rule.transfers, rule.transfers_on)
        if moved is None or moved >= asked or time.monotonic() >= deadline:
            break
        await asyncio.sleep(ready.POLL_FIRST_S)
    if moved is None:
        raise NotUsable(f"no hand-off can be proved: a {rule.transfers_on} server lacks {rule.transfers}", "proxy")
    if moved < asked:
        computed = total_of(grown, roles, series.LOCAL_TOKENS, "decode")
        raise NotUsable(_too_few(url, asked, moved, rule, computed), "proxy")


def _too_few(url: str, asked: int, moved: int, rule: Adapter, computed: int | None) -> str:
    hand_offs = "no hand-off took place" if not moved else f"only {moved} hand-off{'s' * (moved != 1)} took place"
    itself = "" if computed is None else f", and decode computed {computed} prompt tokens itself"
    return (
        f"the router at {url} answered {asked} request{'s' * (asked != 1)}, but {hand_offs}: {rule.transfers_on} "
        f"counted {moved} transfers ({rule.transfers}){itself}; check that it routes to these servers"
    )
