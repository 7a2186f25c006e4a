from __future__ import annotations

import pytest

from rig.series import ACCEPTED_TOKENS, DRAFTED_TOKENS, DRAFTS, WATCHED, block_size, parse

INFO = 'vllm:cache_config_info{%s,cache_dtype="auto",engine="%d"} 1.0'
TYPE = "# TYPE vllm:cache_config_info gauge"


@pytest.mark.parametrize(
    ("lines", "tokens"),
    [
        ([TYPE, INFO % ('block_size="528",mamba_block_size="2048"', 0)], 528),
        ([TYPE, INFO % ('block_size="16"', 0), INFO % ('block_size="16"', 1)], 16),
        ([TYPE, INFO % ('block_size="16"', 0), INFO % ('block_size="32"', 1)], None),
        ([TYPE, INFO % ('block_size="None"', 0)], None),
        ([TYPE, INFO % ('block_size="0"', 0)], None),
        ([TYPE, INFO % ('num_gpu_blocks="16"', 0)], None),
        ([INFO % ('block_size="16"', 0)], 16),
        (["# TYPE vllm:num_requests_running gauge", 'vllm:num_requests_running{engine="0"} 3'], None),
        ([], None),
    ],
)
def test_the_block_size_is_read_or_not_known(lines: list[str], tokens: int | None) -> None:
    assert block_size("\n".join([*lines, ""])) == tokens


def test_it_is_no_counter() -> None:
    assert parse("\n".join([TYPE, INFO % ('block_size="16"', 0), ""])) == dict.fromkeys(WATCHED)


def test_what_a_draft_proposed_and_what_was_accepted_are_counted_over_all_positions_and_ranks() -> None:
    lines = [
        "# TYPE vllm:spec_decode_num_drafts counter",
        'vllm:spec_decode_num_drafts_total{engine="0"} 3',
        'vllm:spec_decode_num_drafts_total{engine="1"} 4',
        "# TYPE vllm:spec_decode_num_draft_tokens counter",
        'vllm:spec_decode_num_draft_tokens_total{engine="0"} 6',
        "# TYPE vllm:spec_decode_num_accepted_tokens counter",
        'vllm:spec_decode_num_accepted_tokens_total{engine="0"} 5',
        "# TYPE vllm:spec_decode_num_accepted_tokens_per_pos counter",
        'vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="0"} 3',
    ]
    found = parse("\n".join([*lines, ""]))
    assert (found[DRAFTS], found[DRAFTED_TOKENS], found[ACCEPTED_TOKENS]) == (7, 6, 5)
