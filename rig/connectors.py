"""What each KV connector's own series prove about a hand-off, and how long it may hold blocks. Pure.

Names and meaning are those of vLLM 0.32, `distributed/kv_transfer/kv_connector/v1/`: `nixl/stats.py` (a transfer is
counted by the engine that drives it: decode reads in pull mode, prefill writes in push mode), `offloading/metrics.py`,
`multi_connector.py`, which registers each child's series once, under the child's own names and without a label that
names the child, and `example_connector.py`, which has none: there the prompt tokens by source speak.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from rig import series as c

LEASE_S = 30.0
"""Default of `kv_lease_duration` in seconds (vLLM 0.32, nixl/base_scheduler.py)."""

MULTI = "MultiConnector"
OFFLOADING = "OffloadingConnector"
EXAMPLE = "ExampleConnector"


@dataclass(frozen=True)
class Adapter:
    """The series that prove a transfer, and the side on which they are counted.

    `failed` are series of failures; of these the largest counts, as vLLM 0.32 counts a failed notification among the
    failed transfers as well. `late_reads` counts reads that ended after the blocks had been given up (None: the
    connector's reader is not the one who could be late). `offloads` says that blocks may also come from an engine's
    own offload storage, which `prompt_tokens_by_source` counts as external too.
    """

    transfers_on: Literal["prefill", "decode"]
    transfers: str = c.BYTES_COUNT
    bytes: str = c.BYTES_SUM
    failed: tuple[str, ...] = (c.FAILED_TRANSFERS, c.FAILED_NOTIFICATIONS)
    expired: str = c.EXPIRED
    late_reads: str | None = None
    offloads: bool = False


NIXL: Mapping[str, Adapter] = {
    "NixlConnector": Adapter(transfers_on="decode", late_reads=c.LATE_READS),
    "NixlPullConnector": Adapter(transfers_on="decode", late_reads=c.LATE_READS),
    "NixlPushConnector": Adapter(transfers_on="prefill"),
}


def children(config: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of a MultiConnector's connectors in their order; empty for any other connector."""
    if config.get("kv_connector") != MULTI:
        return ()
    return tuple(str(child.get("kv_connector")) for child in child_configs(config))


def adapter(connector: str | None, inside: tuple[str, ...] = ()) -> Adapter | None:
    """The adapter of a connector, `inside` being a MultiConnector's children; None where nothing proves a hand-off."""
    if connector != MULTI:
        return NIXL.get(connector or "")
    proving = [NIXL[name] for name in inside if name in NIXL]
    if len(proving) != 1:
        return None
    found = proving[0]
    return Adapter(found.transfers_on, late_reads=found.late_reads, offloads=OFFLOADING in inside)


def through_storage(connector: str | None) -> bool:
    """Whether decode finds a prompt's KV by its tokens in a storage that prefill wrote to, without parameters."""
    return connector == EXAMPLE


def found_in_storage(prompt_tokens: int, block_size: int) -> int:
    """Tokens of a prompt that a decode with the ExampleConnector loads from its files; the rest it computes.

    Whole blocks of all but the last token (`get_num_new_matched_tokens`). A prompt of k blocks and one token is written
    under k blocks and looked for under k - 1 (`align_to_block_size` is applied to another length): it is not found.
    """
    whole = max(0, prompt_tokens - 1) // block_size
    return 0 if prompt_tokens == whole * block_size + 1 else whole * block_size


def why_none(connector: str | None, inside: tuple[str, ...] = ()) -> str:
    """Why a connector has no adapter, and which ones have."""
    known = ", ".join(NIXL)
    if connector == OFFLOADING:
        return (
            f"{OFFLOADING} moves KV between an engine and its own offload storage, nothing from prefill to decode: "
            f"use one of {known}, or {MULTI} with one of them"
        )
    if connector == MULTI:
        return (
            f"{MULTI} with {', '.join(inside) or 'no connectors'} proves no hand-off: it needs exactly one of {known}"
        )
    return (
        f"no rule says which series prove a transfer of the connector {connector}; known are {known}, {EXAMPLE}, "
        f"and {MULTI} with one of NIXL's"
    )


def lease_s(config: Mapping[str, Any]) -> float:
    """How long prefill holds a finished request's blocks for decode, in seconds; 0 without a NIXL connector."""
    configs = child_configs(config) if config.get("kv_connector") == MULTI else [config]
    return max(
        (float(_extra(one).get("kv_lease_duration", LEASE_S)) for one in configs if one.get("kv_connector") in NIXL),
        default=0.0,
    )


def decode_keeps(config: Mapping[str, Any]) -> bool:
    """Whether decode holds a request's blocks for its next turn: no leak, until `decoder_kv_blocks_ttl` is over."""
    configs = child_configs(config) if config.get("kv_connector") == MULTI else [config]
    return any(bool(_extra(one).get("bidirectional_kv_xfer")) for one in configs)


def _extra(config: Mapping[str, Any]) -> Mapping[str, Any]:
    extra = config.get("kv_connector_extra_config")
    return extra if isinstance(extra, Mapping) else {}


def child_configs(config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The configs of a MultiConnector's connectors, as far as they are objects."""
    listed = _extra(config).get("connectors")
    return [child for child in listed if isinstance(child, Mapping)] if isinstance(listed, list | tuple) else []
