"""Where vLLM is wrapped: the scheduler that knows the requests, and the NIXL connector that receives blocks."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .arrivals import announce, forget_failure
from .control import NIXL, Fault, impossible
from .damage import Worker
from .loads import Loads
from .watch import Watch

logger = logging.getLogger("vllm.pdrig_faults")

_STATE = "pdrig_faults"
_installed = False


def _wrap(owner: type, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    original = getattr(owner, name)
    setattr(owner, name, functools.wraps(original)(make(original)))


def names_of(connector: Any) -> list[str]:
    """The class names of a connector and of those within it, as the configuration has them."""
    inside = getattr(connector, "sub_connectors", ())
    return [type(one).__name__ for one in (connector, *inside)]


def install(control: Path) -> None:
    """Wrap this process's vLLM, once; says in the log when this vLLM is not one that it can wrap."""
    global _installed
    if _installed:
        return
    _installed = True
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl import connector
    from vllm.distributed.kv_transfer.kv_connector.v1.offloading.worker import OffloadingConnectorWorker
    from vllm.v1.core.sched.scheduler import Scheduler

    wanted = [
        (Scheduler, "_build_kv_connector_meta"),
        (Scheduler, "_handle_failed_recving"),
        (connector.NixlPullConnector, "start_load_kv"),
        (connector.NixlPushConnector, "start_load_kv"),
        (connector.NixlBaseConnector, "get_transfer_results"),
        (OffloadingConnectorWorker, "_init_worker"),
        (OffloadingConnectorWorker, "start_kv_transfers"),
        (OffloadingConnectorWorker, "get_finished"),
    ]
    for owner, name in wanted:
        if not hasattr(owner, name):
            logger.error("no fault can be planted: this vLLM has no %s.%s", owner.__name__, name)
            return
    _wrap_scheduler(Scheduler, control)
    _wrap_connector(connector, control)
    _wrap_storage(OffloadingConnectorWorker, control)


def _wrap_scheduler(scheduler: type, control: Path) -> None:
    watch = Watch(control, logger.error)

    def build(original: Callable[..., Any]) -> Callable[..., Any]:
        def _build_kv_connector_meta(self: Any, connector: Any, scheduler_output: Any) -> Any:
            metadata = original(self, connector, scheduler_output)
            names = names_of(connector)

            def why_not(fault: Fault) -> str | None:
                return impossible(fault.fault, names, self.recompute_kv_load_failures)

            announce(self, metadata, lambda: watch.control(why_not))
            if not set(names) & set(NIXL):
                watch.control(why_not)
            return metadata

        return _build_kv_connector_meta

    def failed(original: Callable[..., Any]) -> Callable[..., Any]:
        def _handle_failed_recving(self: Any, failed_req_ids: Any) -> Any:
            affected = original(self, failed_req_ids)
            forget_failure(self, failed_req_ids, control)
            return affected

        return _handle_failed_recving

    _wrap(scheduler, "_build_kv_connector_meta", build)
    _wrap(scheduler, "_handle_failed_recving", failed)


def _wrap_connector(module: Any, control: Path) -> None:
    def worker_of(connector: Any) -> Worker:
        found = getattr(connector, _STATE, None)
        if found is None:
            found = Worker(connector.connector_worker, control)
            setattr(connector, _STATE, found)
        return found

    def start(original: Callable[..., Any]) -> Callable[..., Any]:
        def start_load_kv(self: Any, *args: Any, **kwargs: Any) -> Any:
            worker_of(self).before_transfer(self._connector_metadata)
            return original(self, *args, **kwargs)

        return start_load_kv

    def results(original: Callable[..., Any]) -> Callable[..., Any]:
        def get_transfer_results(self: Any, finished_req_ids: Any) -> Any:
            transfers = original(self, finished_req_ids)
            worker_of(self).after_transfer(transfers, finished_req_ids)
            return transfers

        return get_transfer_results

    _wrap(module.NixlPullConnector, "start_load_kv", start)
    _wrap(module.NixlPushConnector, "start_load_kv", start)
    _wrap(module.NixlBaseConnector, "get_transfer_results", results)


def _wrap_storage(worker: type, control: Path) -> None:
    from vllm.v1.kv_cache_interface import MambaSpec

    def made(original: Callable[..., Any]) -> Callable[..., Any]:
        def _init_worker(self: Any, kv_caches: Any) -> Any:
            groups = self.kv_cache_config.kv_cache_groups
            offloaded = [groups[group.group_id] for group in self.spec.config.groups]
            is_state = [isinstance(group.kv_cache_spec, MambaSpec) for group in offloaded]
            setattr(self, _STATE, Loads(kv_caches, is_state, self.spec.config.parallel.rank, control))
            return original(self, kv_caches)

        return _init_worker

    def start(original: Callable[..., Any]) -> Callable[..., Any]:
        def start_kv_transfers(self: Any, metadata: Any) -> Any:
            getattr(self, _STATE).before(metadata)
            return original(self, metadata)

        return start_kv_transfers

    def ended(original: Callable[..., Any]) -> Callable[..., Any]:
        def get_finished(self: Any, finished_req_ids: Any) -> Any:
            sent, received = original(self, finished_req_ids)
            getattr(self, _STATE).after(received)
            return sent, received

        return get_finished

    _wrap(worker, "_init_worker", made)
    _wrap(worker, "start_kv_transfers", start)
    _wrap(worker, "get_finished", ended)
