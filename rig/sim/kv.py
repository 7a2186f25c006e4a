"""The hand-off between two simulated engines: tickets on the prefill side, redeeming them on the decode side.

The side channel is HTTP here: one POST reads (pull mode) or registers for (push mode) a request's blocks.
"""

from __future__ import annotations

import asyncio
import re
import uuid
from dataclasses import dataclass
from typing import Any

import aiohttp
from aiohttp import web

from rig.sim import log
from rig.sim.metrics import Metrics
from rig.sim.options import KVTransfer, Options

WIRE_S = 60
"""How long the side channel may take beside what the other side waits for: hundreds of hand-offs may come at once."""
_SUFFIX = re.compile(r"-[0-9a-f]{8}$")
_WORKER = "base_worker.py:1240"


def base_id(request_id: str) -> str:
    """An engine's request id without its random end: what both legs share in push mode."""
    return _SUFFIX.sub("", request_id)


@dataclass
class Held:
    """Blocks kept for the other side until they are read or their lease runs out."""

    blocks: int
    tokens: int
    damage: str | None
    timer: asyncio.TimerHandle | None = None


@dataclass(frozen=True)
class Redeemed:
    """What came of redeeming a ticket: a reason where nothing was read, the fault that damaged what was."""

    reason: str | None
    damage: str | None = None


class Tickets:
    """The tickets that one server has issued. Each is redeemed at most once."""

    def __init__(self, options: Options, kv: KVTransfer, groups: int, bytes_per_token: int, metrics: Metrics) -> None:
        self._options, self._kv, self._groups, self._metrics = options, kv, groups, metrics
        self._bytes_per_token = bytes_per_token
        self.engine_id = kv.engine_id or str(uuid.uuid4())
        self._ports = [options.side_port + rank for rank in range(options.dp)]
        self._held: dict[str, Held] = {}
        self._freed: dict[str, str] = {}
        self._arrivals: dict[str, asyncio.Event] = {}
        self._next_block = 1
        self._issued = 0

    @property
    def held_blocks(self) -> int:
        return sum(held.blocks for held in self._held.values())

    def issue(
        self, request_id: str, tokens: int, damage: str | None, expired: bool, wrong_engine: bool
    ) -> dict[str, Any]:
        """Keep a finished prefill's blocks, and the `kv_transfer_params` that lead to them.

        `expired`: the lease is over at once, and what is read afterwards is other requests' data.
        """
        count = -(-tokens // self._options.block_size)
        groups = []
        for _ in range(self._groups):
            groups.append(list(range(self._next_block, self._next_block + count)))
            self._next_block += count
        held = Held(count * self._groups, tokens, damage)
        if expired:
            self._expire(request_id)
            self._freed[request_id] = self._freed[base_id(request_id)] = "lease_expired"
        else:
            self._held[request_id] = held
            held.timer = asyncio.get_running_loop().call_later(self._kv.lease_s, self._expire, request_id)
        arrival = self._arrivals.get(base_id(request_id))
        if arrival:
            arrival.set()
        self._issued += 1
        ticket: dict[str, Any] = {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": groups,
            "remote_engine_id": str(uuid.uuid4()) if wrong_engine else self.engine_id,
            "remote_request_id": request_id,
            "remote_host": self._options.side_host,
            "remote_port": self._ports[self._issued % len(self._ports)],
            "tp_size": self._options.tp,
            "dcp_size": 1,
            "pp_size": self._options.pp,
            "remote_num_tokens": max(tokens - 1, 0),
            "transfer_mode": self._kv.mode,
            "remote_prefill_cached_tokens": 0,
        }
        if self._kv.mode == "pull":
            # Only the decode side of a bidirectional hand-off sets a time here; prefill's lease is its own affair.
            ticket["remote_blocks_expiry_time"] = None
        return ticket

    def _expire(self, request_id: str) -> None:
        self._held.pop(request_id, None)
        self._metrics.expired.add(1)
        log.line(
            "WARNING",
            "base_worker.py:3032",
            f"Releasing expired KV blocks for request {request_id} which were retrieved by 0 remote worker(s) "
            "before lease expired.",
        )

    async def _find(self, request_id: str, wait_s: float) -> str | None:
        """The held request that a reader means; in push mode it may come first and waits."""
        if self._kv.mode == "pull":
            return request_id if request_id in self._held else None
        base = base_id(request_id)
        known = next((held for held in self._held if base_id(held) == base), None)
        if known is None and base not in self._freed:
            arrival = self._arrivals.setdefault(base, asyncio.Event())
            try:
                async with asyncio.timeout(wait_s):
                    await arrival.wait()
            except TimeoutError:
                return None
            finally:
                self._arrivals.pop(base, None)
            known = next((held for held in self._held if base_id(held) == base), None)
        return known

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer the side channel: who reads, with which engine id and build, which request."""
        asked = await request.json()
        if asked["compatibility"] != self._options.compatibility:
            return web.json_response({"reason": "handshake_failed. NIXL compatibility hash mismatch"})
        if asked["engine_id"] != self.engine_id:
            return web.json_response({"reason": "handshake_failed. Remote NIXL agent engine ID mismatch"})
        name = asked["request_id"]
        found = await self._find(name, asked["wait_s"])
        key = name if self._kv.mode == "pull" else base_id(name)
        if found is None and key in self._freed:
            self._metrics.late_notes.add(1)
            log.line(
                "ERROR",
                "pull_worker.py:667",
                f"Potentially invalid KV blocks for unrecognized request {name} were retrieved by a decode worker. "
                "They may have expired.",
            )
            return web.json_response({"damage": self._freed.pop(key)})
        held = self._held.pop(found, None) if found else None
        if held is None:
            return web.json_response({"reason": f"transfer_failed. Request {name} holds no blocks"})
        if held.timer:
            held.timer.cancel()
        if self._kv.mode == "push":
            size = held.tokens * self._bytes_per_token
            self._metrics.transfer(size, held.blocks, 0.001, self._options.tp)
        return web.json_response({"damage": held.damage})


class Reader:
    """The decode side: redeems tickets over the side channel."""

    def __init__(self, options: Options, kv: KVTransfer, bytes_per_token: int, metrics: Metrics) -> None:
        self._options, self._kv, self._metrics = options, kv, metrics
        self._bytes_per_token = bytes_per_token
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        if self._session:
            await self._session.close()

    def usable(self, params: dict[str, Any]) -> bool:
        """Whether params lead to a transfer; those that miss a key do not, and the log says so."""
        if not params.get("do_remote_prefill"):
            return False
        needed = ["remote_engine_id", "remote_host", "remote_port"]
        needed += ["remote_request_id", "remote_block_ids"] if self._kv.mode == "pull" else ["tp_size"]
        if all(params.get(name) for name in needed):
            return True
        log.line(
            "WARNING",
            "pull_scheduler.py:170",
            f"Got invalid KVTransferParams: {params}. This request will not utilize KVTransfer",
        )
        return False

    async def redeem(self, request_id: str, params: dict[str, Any], tokens: int, seconds: float) -> Redeemed:
        """Read a request's blocks, once; counts the transfer or its failure. Waits `seconds` for the wire."""
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=30)
            self._session = aiohttp.ClientSession(connector=connector)
        push = self._kv.mode == "push"
        asked = {
            "engine_id": params["remote_engine_id"],
            "compatibility": self._options.compatibility,
            "request_id": request_id if push else params["remote_request_id"],
            "wait_s": self._kv.registration_s,
        }
        if seconds:
            await asyncio.sleep(seconds)
        try:
            url = f"http://{params['remote_host']}:{params['remote_port']}/redeem"
            limit = aiohttp.ClientTimeout(total=self._kv.registration_s + WIRE_S, sock_connect=WIRE_S)
            async with self._session.post(url, json=asked, timeout=limit) as response:
                answer = await response.json()
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            return self.failed(request_id, params, f"handshake_failed. {type(error).__name__}: {error}")
        if answer.get("reason"):
            return self.failed(request_id, params, answer["reason"])
        if not push:
            blocks = sum(len(group) for group in params["remote_block_ids"])
            self._metrics.transfer(
                max(tokens - 1, 1) * self._bytes_per_token, blocks, max(seconds, 0.001), self._options.tp
            )
        return Redeemed(None, answer.get("damage"))

    def failed(self, request_id: str, params: dict[str, Any], reason: str) -> Redeemed:
        """Count and log a transfer that failed."""
        self._metrics.failed.add(1)
        context: dict[str, Any] = {"failure_type": reason.partition(".")[0], "request_id": request_id}
        context |= {name: params.get(name) for name in ("remote_engine_id", "remote_request_id", "remote_host")}
        log.line("ERROR", _WORKER, f"NIXL transfer failure: {reason} | Context: {context}")
        return Redeemed(reason)
