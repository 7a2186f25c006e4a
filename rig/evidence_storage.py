"""What counters and legs prove where KV goes from prefill to decode through a storage, without parameters. Pure.

No series counts the bytes. What speaks are prompt tokens by source, which an engine counts when its scheduler takes
the connector's word for them (vLLM 0.32, v1/core/sched/scheduler.py): decode loaded every whole block that it can find,
and prefill computed what it wrote. Whether the right bytes came is for the answers to show.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from evals.records import RequestRecord
from rig import series as c
from rig.connectors import found_in_storage
from rig.evidence_common import deltas, not_given_back, total_of, unreadable, who_answered
from rig.records import Evidence, Finding, Leg
from rig.series import Reading


def stored(
    before: Sequence[Reading],
    after: Sequence[Reading],
    asked: Sequence[RequestRecord],
    legs: Iterable[Leg] | None,
    under_way: int | None,
) -> Evidence:
    """Judge whether decode loaded the prompt of every answered request, as far as blocks can be loaded.

    Arguments as of rig.evidence.disaggregated. There are no transfers, bytes, failures or leases to count: None.
    """
    delta = deltas(before, after)
    roles = {r.instance: r.role for r in after}
    answered = [r for r in asked if r.error is None]
    external, local = (total_of(delta, roles, name, "decode") for name in (c.EXTERNAL_TOKENS, c.LOCAL_TOKENS))
    cached = total_of(delta, roles, c.CACHED_TOKENS, "decode")
    found = total_of(delta, roles, c.EXTERNAL_TOKENS, "prefill")
    blocks = {r.block_size for r in after if r.role == "decode"}
    findings = [
        *unreadable(before, after),
        *_loaded(external, local, cached, blocks, answered, len(asked) + (under_way or 0)),
        *_written(external, found),
        *who_answered(delta, roles, answered, legs, parameters=False),
        *(not_given_back(before, after) if under_way is None else ()),
    ]
    return Evidence(
        pd_exercised=not any(f.severity == "invalid" for f in findings),
        external_tokens=external,
        local_tokens=local,
        findings=tuple(findings),
        counters=delta,
    )


def _loaded(
    external: int | None,
    local: int | None,
    cached: int | None,
    blocks: set[int | None],
    answered: Sequence[RequestRecord],
    asked: int,
) -> list[Finding]:
    """Decode computed no more than what no file can hold; one that failed may have left a block and a token to it."""
    if external is None or local is None:
        return [_invalid("decode's series of prompt tokens by source are missing", "counters")]
    block = next(iter(blocks)) if len(blocks) == 1 else None
    if block is None:
        return [_invalid("decode does not say one block size: what it can load is not known", "counters")]
    prompts = [r.prompt_tokens for r in answered]
    sizes = [p for p in prompts if p is not None]
    if len(sizes) < len(prompts):
        return [_invalid("some answers did not say how many prompt tokens they had", "requests")]
    expected = sum(found_in_storage(size, block) for size in sizes)
    if not expected:
        return [
            _invalid(f"no prompt fills a block of {block} tokens that could be loaded: ask longer ones", "requests")
        ]
    findings = []
    left = sum(sizes) - expected + (asked - len(answered)) * (block + 1)
    if local > left:
        text = (
            f"decode computed {local} prompt tokens itself, more than the {left} that blocks of {block} tokens leave "
            "to it: some requests were prefilled by decode"
        )
        findings.append(_invalid(text, "counters"))
    seen = external + local + (cached or 0)
    if seen < sum(sizes) or (len(answered) == asked and seen != sum(sizes)):
        text = (
            f"decode counted {seen} prompt tokens ({external} loaded, {local} computed, {cached or 0} cached), the "
            f"answers {sum(sizes)}"
        )
        findings.append(_invalid(text, "counters"))
    return findings


def _written(external: int | None, found: int | None) -> list[Finding]:
    """What prefill found there itself it did not write: an earlier question did, or an earlier run."""
    if found is None:
        return [_invalid("prefill's series of prompt tokens by source are missing", "counters")]
    if not found:
        return []
    if external is not None and found >= external:
        return [
            _invalid(
                f"prefill found {found} prompt tokens in the storage, and decode loaded {external}: nothing shows that "
                "prefill wrote any of them; start with an empty folder",
                "counters",
            )
        ]
    text = (
        f"prefill found {found} of its prompt tokens in the storage: an earlier request wrote them, or an earlier run"
    )
    return [Finding("transfer", text, "counters")]


def _invalid(text: str, source: str) -> Finding:
    return Finding("transfer", text, source, "invalid")
