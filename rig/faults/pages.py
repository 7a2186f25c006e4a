"""The KV cache of one worker, block by block, whatever the layers keep in it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any


class Pages:
    """The blocks of a NIXL worker's KV-cache groups, as the tensors that the model reads."""

    def __init__(self, worker: Any) -> None:
        from vllm.v1.kv_cache_interface import MambaSpec

        self._worker = worker
        self._groups = worker.kv_cache_config.transfer_groups
        self._ratio: int = worker._physical_blocks_per_logical_kv_block
        self.is_state = tuple(issubclass(spec, MambaSpec) for spec in worker._group_spec_types)

    @property
    def block_tokens(self) -> int:
        """Tokens of one logical attention block."""
        return int(self._worker.block_size) * self._ratio

    def physical(self, block_ids: Sequence[Sequence[int]]) -> list[list[int]]:
        """Logical block ids, one list a group, as the ids by which the tensors are indexed."""
        expanded = self._worker._logical_to_kernel_block_ids(block_ids, self._ratio)
        return [list(group) for group in expanded]

    def last_attention_block(self, block_ids: Sequence[Sequence[int]], tokens: int) -> list[list[int]]:
        """Of logical block ids those that hold the last of so many tokens; none of the state groups.

        Blocks that decode had in its prefix cache are not among the ids: then the last one is the last of those.
        """
        last = (tokens - 1) // self.block_tokens
        return [
            [] if state else list(group[last : last + 1] or group[-1:])
            for group, state in zip(block_ids, self.is_state, strict=True)
        ]

    def blocks(self, group: int, block_id: int) -> Iterator[Any]:
        """A physical block of every layer of the group; writing to it writes to the cache."""
        spec = self._groups[group].kv_cache_spec
        for name in self._groups[group].layer_names:
            cache = self._worker.device_kv_caches.get(name)
            if cache is None:
                continue
            if cache.ndim == 1:
                page = spec.page_size_bytes if self.is_state[group] else spec.page_size_bytes // self._ratio
                page //= cache.element_size()
                yield cache[block_id * page : (block_id + 1) * page]
            else:
                yield cache[block_id]


def same(one: Any, other: Any) -> bool:
    """Whether two tensors hold the same bytes, NaN included."""
    import torch

    return bool(torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8)))


def placed(blocks: Any, chunk_ids: Sequence[int], per_chunk: int) -> Iterator[tuple[int, int, int, int]]:
    """Group, block, chunk and the block's place in the chunk, for each block of a GPULoadStoreSpec.

    A group's blocks are one after another in its chunks, from the place that `block_indices` gives.
    """
    ids, chunks = iter(blocks.block_ids), iter(chunk_ids)
    for group, (count, first) in enumerate(zip(blocks.group_sizes, blocks.block_indices, strict=True)):
        chunk = -1
        for index in range(first, first + count):
            if index == first or index % per_chunk == 0:
                chunk = int(next(chunks))
            yield group, int(next(ids)), chunk, index % per_chunk
