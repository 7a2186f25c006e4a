"""Each connector's adapter names the series that prove a hand-off, or the reason why there is none."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rig import series as c
from rig.connectors import (
    LEASE_S,
    adapter,
    children,
    decode_keeps,
    found_in_storage,
    lease_s,
    through_storage,
    why_none,
)


def multi(*connectors: dict[str, Any]) -> dict[str, Any]:
    return {"kv_connector": "MultiConnector", "kv_connector_extra_config": {"connectors": list(connectors)}}


def nixl(**extra: Any) -> dict[str, Any]:
    return {"kv_connector": "NixlConnector", "kv_connector_extra_config": extra}


@pytest.mark.parametrize(
    ("connector", "side"),
    [("NixlConnector", "decode"), ("NixlPullConnector", "decode"), ("NixlPushConnector", "prefill")],
)
def test_the_side_that_drives_a_transfer_counts_it(connector: str, side: str) -> None:
    found = adapter(connector)
    assert found is not None and found.transfers_on == side
    assert (found.transfers, found.bytes, found.expired) == (c.BYTES_COUNT, c.BYTES_SUM, c.EXPIRED)
    assert (found.late_reads == c.LATE_READS) is (side == "decode"), "only a reader can be late"
    assert adapter("MultiConnector", (connector, "OffloadingConnector")).transfers_on == side  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("connector", "inside", "words"),
    [
        ("OffloadingConnector", (), "its own offload storage"),
        ("MultiConnector", (), "with no connectors"),
        ("MultiConnector", ("OffloadingConnector",), "with OffloadingConnector proves no hand-off"),
        ("MultiConnector", ("NixlConnector", "NixlPushConnector"), "exactly one"),
        ("LMCacheConnectorV1", (), "LMCacheConnectorV1"),
        (None, (), "None"),
    ],
)
def test_a_connector_that_proves_nothing_is_told_which_ones_do(
    connector: str | None, inside: tuple[str, ...], words: str
) -> None:
    assert adapter(connector, inside) is None
    reason = why_none(connector, inside)
    assert words in reason and "NixlConnector" in reason and "MultiConnector" in reason


def test_only_a_multi_connector_with_offloading_may_load_from_elsewhere() -> None:
    assert adapter("MultiConnector", ("NixlConnector", "OffloadingConnector")).offloads  # type: ignore[union-attr]
    assert not adapter("MultiConnector", ("NixlConnector",)).offloads  # type: ignore[union-attr]
    assert not adapter("NixlConnector").offloads  # type: ignore[union-attr]


def test_children_in_their_order() -> None:
    config = multi(nixl(), {"kv_connector": "OffloadingConnector"})
    assert children(config) == ("NixlConnector", "OffloadingConnector")
    assert children(nixl()) == children({}) == children({"kv_connector": "MultiConnector"}) == ()


def test_the_lease_is_the_one_configured_where_the_nixl_connector_stands() -> None:
    assert lease_s(nixl()) == lease_s(multi(nixl())) == LEASE_S
    assert lease_s(nixl(kv_lease_duration=7)) == lease_s(multi(nixl(kv_lease_duration=7))) == 7
    assert lease_s({}) == lease_s({"kv_connector": "OffloadingConnector"}) == 0


def test_decode_keeps_blocks_for_the_next_turn_only_where_kv_goes_both_ways() -> None:
    assert decode_keeps(nixl(bidirectional_kv_xfer=True)) and decode_keeps(multi(nixl(bidirectional_kv_xfer=True)))
    assert not decode_keeps(nixl()) and not decode_keeps(nixl(bidirectional_kv_xfer=False)) and not decode_keeps({})


def test_only_the_example_connector_goes_through_a_storage() -> None:
    assert through_storage("ExampleConnector")
    assert not any(through_storage(name) for name in (None, "NixlConnector", "OffloadingConnector", "MultiConnector"))


@pytest.mark.parametrize(
    ("prompt", "found"),
    [(0, 0), (1, 0), (128, 0), (129, 0), (130, 128), (256, 128), (257, 0), (258, 256), (384, 256), (385, 0)],
)
def test_whole_blocks_are_found_but_for_a_prompt_of_blocks_and_one_token(prompt: int, found: int) -> None:
    assert found_in_storage(prompt, 128) == found


def aligned(tokens: int, block: int) -> int:
    """`align_to_block_size` of vLLM 0.32's example_connector.py."""
    return (tokens - 1) // block * block


@given(st.integers(1, 5000), st.integers(1, 300))
def test_what_is_found_is_what_is_looked_for_under_the_name_it_was_written(prompt: int, block: int) -> None:
    written, looked_for = aligned(prompt, block), max(0, aligned(prompt - 1, block))
    assert found_in_storage(prompt, block) == (looked_for if written == looked_for else 0)
