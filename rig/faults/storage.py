"""An offload storage for an engine whose KV cache is in CPU memory, where vLLM 0.32's own refuses to run.

    "kv_connector_extra_config": {"spec_name": "PlainStorage", "spec_module_path": "pdrig_faults.storage",
                                  "cpu_bytes_to_use": 1073741824}

All but the copying is vLLM's: the connector, its scheduler, and which chunks the storage holds and gives up
(v1/kv_offload/cpu). vLLM loads it as an out-of-tree spec (v1/kv_offload/factory.py), with or without PDRIG_FAULTS.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from vllm.v1.kv_offload.base import OffloadingWorker, TransferResult
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec

from .pages import placed


class PlainStorage(CPUOffloadingSpec):  # type: ignore[misc]
    """vLLM's storage in CPU memory, with copies of its own between the cache and the storage."""

    def get_worker(self, kv_caches: Any) -> Any:
        return PlainCopies(kv_caches, self.num_chunks, self.blocks_per_chunk)


class PlainCopies(OffloadingWorker):  # type: ignore[misc]
    """Copies blocks at once: a job is done when it has been submitted.

    `kv_caches` are vLLM's canonical ones: tensors of a page a block, and for each group which pages its layers use.
    """

    def __init__(self, kv_caches: Any, chunks: int, blocks_per_chunk: int) -> None:
        self._groups = kv_caches.group_data_refs
        self._caches = [t.tensor.view(torch.int8) for t in kv_caches.tensors]
        self._per_chunk = blocks_per_chunk
        sizes = [(chunks, blocks_per_chunk, cache.shape[1]) for cache in self._caches]
        self._kept = [torch.zeros(size, dtype=torch.int8) for size in sizes]
        self._done: list[Any] = []

    def submit_store(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        return self._copy(job_id, src_spec, dst_spec, store=True)

    def submit_load(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        return self._copy(job_id, dst_spec, src_spec, store=False)

    def get_finished(self) -> list[Any]:
        done, self._done = self._done, []
        return done

    def wait(self, job_ids: set[int]) -> None:
        """Nothing to wait for."""

    def _copy(self, job_id: int, blocks: Any, chunks: Any, store: bool) -> bool:
        begun, moved = time.monotonic(), 0
        for group, block, chunk, at in placed(blocks, chunks.block_ids, self._per_chunk):
            for ref in self._groups[group]:
                size = ref.page_size_bytes
                cache, kept = self._caches[ref.tensor_idx][block, :size], self._kept[ref.tensor_idx][chunk, at, :size]
                if store:
                    kept.copy_(cache)
                else:
                    cache.copy_(kept)
                moved += size
        result = TransferResult(job_id, True, transfer_size=moved, transfer_time=time.monotonic() - begun)
        self._done.append(result)
        return True
