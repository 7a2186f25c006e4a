"""vLLM's HTTP face over the simulated engine: the endpoints, and the faults of how an answer is delivered."""

from __future__ import annotations

import asyncio
import hmac
import os
import socket
import struct
import time
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn

import orjson
from aiohttp import web

from rig.sim import log, protocol, replies
from rig.sim.engine import DEAD, Engine, Job
from rig.sim.protocol import Endpoint, Refused

MAX_BODY_BYTES = 256 * 2**20
_JSON = {"Content-Type": "application/json"}
_STREAM = {"Content-Type": "text/event-stream; charset=utf-8"}


class Broken(Exception):
    """An answer that a fault ended; `outcome` says how, for the ledger."""

    def __init__(self, outcome: str) -> None:
        self.outcome = outcome
        super().__init__(outcome)


def json_response(body: Any, status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(body), status=status, headers=_JSON)


class Face:
    """The handler of one server's port."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._created = int(time.time())
        self._routes: dict[tuple[str, str], Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]] = {
            ("POST", "/v1/completions"): lambda request: self._complete(request, "completions"),
            ("POST", "/v1/chat/completions"): lambda request: self._complete(request, "chat"),
            ("POST", "/tokenize"): self._tokenize,
            ("GET", "/v1/models"): self._models,
            ("GET", "/health"): self._health,
            ("GET", "/metrics"): self._metrics,
            ("GET", "/version"): self._version,
        }

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        key = self.engine.options.api_key
        if key and request.path.startswith("/v1"):
            given = request.headers.get("Authorization", "").encode()
            if not hmac.compare_digest(given, f"Bearer {key}".encode()):
                return json_response({"error": "Unauthorized"}, 401)
        route = self._routes.get((request.method, request.path))
        if route is not None:
            return await route(request)
        known = any(path == request.path for _, path in self._routes)
        status, detail = (405, "Method Not Allowed") if known else (404, "Not Found")
        return json_response(protocol.error_body(status, detail), status)

    async def _models(self, request: web.BaseRequest) -> web.StreamResponse:
        options = self.engine.options
        return json_response(
            {
                "object": "list",
                "data": [
                    {
                        "id": name,
                        "object": "model",
                        "created": self._created,
                        "owned_by": "vllm",
                        "root": options.model,
                        "parent": None,
                        "max_model_len": options.limits.max_model_len,
                    }
                    for name in options.served_names
                ],
            }
        )

    async def _tokenize(self, request: web.BaseRequest) -> web.StreamResponse:
        """Of a prompt, or of a chat's messages (vllm/entrypoints/serve/tokenize/protocol.py)."""
        options = self.engine.options
        try:
            ids = protocol.tokenized(orjson.loads(await request.read()), options.served_names)
        except orjson.JSONDecodeError as error:
            return json_response(protocol.error_body(400, f"JSON decode error: {error}"), 400)
        except Refused as refused:
            return json_response(refused.body(), refused.status)
        return json_response({"count": len(ids), "max_model_len": options.limits.max_model_len, "tokens": ids})

    async def _health(self, request: web.BaseRequest) -> web.StreamResponse:
        ill = self.engine.dead or self.engine.planted.at_start("never_healthy")
        return web.Response(status=503 if ill else 200)

    async def _metrics(self, request: web.BaseRequest) -> web.StreamResponse:
        self.engine.gauges()
        kind = {"Content-Type": "text/plain; version=1.0.0; charset=utf-8"}
        return web.Response(body=self.engine.metrics.text().encode(), headers=kind)

    async def _version(self, request: web.BaseRequest) -> web.StreamResponse:
        return json_response({"version": "0.32.0+sim"})

    async def _complete(self, request: web.BaseRequest, endpoint: Endpoint) -> web.StreamResponse:
        options = self.engine.options
        try:
            ask = protocol.read(endpoint, orjson.loads(await request.read()), options.served_names, options.limits)
        except orjson.JSONDecodeError as error:
            return json_response(protocol.error_body(400, f"JSON decode error: {error}"), 400)
        except Refused as refused:
            return json_response(refused.body(), refused.status)
        job = self.engine.begin(ask, request.headers.get("X-Request-Id"))
        reason = "abort"
        try:
            if self.engine.settings.reject_duplicate_ids and job.entry.duplicate_id:
                raise Refused(400, f"Request id {job.entry.request_id} already running")
            response = await self._answer(request, job)
            reason = job.entry.finish_reason or "error"
            return response
        except Refused as refused:
            reason, job.entry.outcome, job.entry.status = "error", "error", refused.status
            return json_response(refused.body(), refused.status)
        except Broken as broken:
            job.entry.outcome = broken.outcome
            await _wait_for_close()
        except asyncio.CancelledError:
            if job.entry.outcome == "answered":
                job.entry.outcome = "cancelled"
            raise
        except ConnectionError:
            job.entry.outcome = "cancelled"
            await _wait_for_close()
        finally:
            if job.entry.outcome != "answered":
                job.entry.right = None
            self.engine.end(job, reason)

    async def _answer(self, request: web.BaseRequest, job: Job) -> web.StreamResponse:
        early = await self._before_headers(request, job)
        if early is not None:
            return early
        await self.engine.seat()
        try:
            return await (self._stream(request, job) if job.ask.stream else self._whole(request, job))
        finally:
            self.engine.leave()

    async def _before_headers(self, request: web.BaseRequest, job: Job) -> web.StreamResponse | None:
        """The faults that come before anything is computed."""
        struck, entry = job.struck, job.entry
        if "crash" in struck:
            entry.outcome = "crash"
            self.engine.note(job)
            log.line("ERROR", "core.py:1512", "EngineCore encountered a fatal error.")
            os._exit(int(struck["crash"].param("code")))
        dead = struck.get("engine_dead")
        if dead:
            self.engine.die(str(dead.param("message")))
            after_ms = dead.param("exit_after_ms")
            if after_ms is not None:
                asyncio.get_running_loop().call_later(float(after_ms) / 1000, os._exit, 1)
        if self.engine.dead:
            raise Refused(500, DEAD)
        if "hang" in struck:
            entry.outcome = "hang"
            await _wait_for_close()
        if "reset" in struck:
            _reset(request)
            raise Broken("reset")
        fault = struck.get("error_status")
        if fault:
            raise Refused(int(fault.param("status")), str(fault.param("message")))
        empty = struck.get("empty_200")
        if empty:
            entry.status, entry.outcome = 200, "empty_200"
            return web.Response(body=str(empty.param("body")).encode(), headers=_JSON)
        return None

    async def _whole(self, request: web.BaseRequest, job: Job) -> web.StreamResponse:
        engine, ask, struck, entry = self.engine, job.ask, job.struck, job.entry
        if "stream_error" in struck:
            raise Refused(500, "Internal server error")
        await engine.prefill(job)
        choices = engine.choices(job)
        wait_ms = self._token_ms(job) * entry.completion_tokens
        if wait_ms:
            await asyncio.sleep(wait_ms / 1000)
            choices = engine.choices(job)
        body = replies.full(ask, choices, self._response_id(job), self._usage(job, choices), engine.ticket(job))
        data = orjson.dumps(body)
        entry.status = 200
        engine.metrics.generation_tokens.add(entry.completion_tokens)
        if "bad_json" in struck:
            entry.outcome = "bad_json"
            return web.Response(body=data[: len(data) // 2], headers=_JSON)
        broken = next((name for name in ("headers_then_nothing", "stream_stall", "stream_cut") if name in struck), None)
        if broken is None:
            return web.Response(body=data, headers=_JSON)
        response = web.StreamResponse(headers={**_JSON, "Content-Length": str(len(data))})
        await response.prepare(request)
        entry.outcome = broken
        if broken != "headers_then_nothing":
            await response.write(data[: len(data) // 2])
        if broken == "stream_cut":
            _close(request)
        raise Broken(broken)

    async def _stream(self, request: web.BaseRequest, job: Job) -> web.StreamResponse:
        engine, ask, struck, entry = self.engine, job.ask, job.struck, job.entry
        response = web.StreamResponse(headers=_STREAM)
        try:
            if "headers_then_nothing" not in struck:
                await engine.prefill(job)
        except Refused as refused:
            # As vLLM does: the status line of a stream is out before the engine has said anything.
            await response.prepare(request)
            await self._error_event(response, refused)
            entry.status, entry.outcome = 200, "stream_error"
            return response
        await response.prepare(request)
        entry.status = 200
        if "headers_then_nothing" in struck:
            entry.outcome = "headers_then_nothing"
            raise Broken(entry.outcome)
        choices = engine.choices(job)
        events = replies.chunks(ask, choices, self._response_id(job), self._usage(job, choices))
        pause_s = self._token_ms(job) / 1000
        end = next((name for name in ("stream_error", "stream_cut", "stream_stall") if name in struck), None)
        most = int(struck[end].param("tokens")) if end else -1
        ready: list[bytes] = []
        began = False
        for at, data in events:
            if end and (began if at is None else at >= most):
                break
            began = began or at is not None
            ready.append(data)
            if pause_s and at is not None:
                await response.write(b"".join(ready))
                ready.clear()
                await asyncio.sleep(pause_s)
        if ready:
            await response.write(b"".join(ready))
        if end:
            entry.outcome = end
            if end == "stream_error":
                await self._error_event(response, Refused(500, "Internal server error"))
                return response
            if end == "stream_cut":
                _close(request)
            raise Broken(end)
        engine.metrics.generation_tokens.add(entry.completion_tokens)
        if "no_done" in struck:
            entry.outcome = "no_done"
        else:
            await response.write(replies.DONE)
        await response.write_eof()
        return response

    async def _error_event(self, response: web.StreamResponse, refused: Refused) -> None:
        await response.write(replies.event(refused.body()) + replies.DONE)
        await response.write_eof()

    def _token_ms(self, job: Job) -> float:
        slow = job.struck.get("slow_tokens")
        return float(slow.param("ms")) if slow else self.engine.settings.ms_per_token

    def _usage(self, job: Job, choices: list[replies.Choice]) -> dict[str, Any]:
        off = job.struck.get("prompt_tokens_off")
        count = sum(len(prompt.token_ids) for prompt in job.ask.prompts)
        return replies.usage(choices, count + (int(off.param("by")) if off else 0))

    def _response_id(self, job: Job) -> str:
        """The id as a client sees it, without what the engine appends."""
        name = job.request_id.rpartition("-")[0]
        return name.removesuffix("-0") if job.ask.endpoint == "completions" else name


async def _wait_for_close() -> NoReturn:
    """Wait until the connection's end cancels the handler."""
    await asyncio.Event().wait()
    raise AssertionError("unreachable: nothing sets this event")


def _close(request: web.BaseRequest) -> None:
    """Close the connection once what was written is out, without the end of the body."""
    if request.transport:
        request.transport.close()


def _reset(request: web.BaseRequest) -> None:
    """Break the connection off with a TCP reset."""
    if request.transport:
        sock = request.transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        request.transport.abort()
