"""The hot path: a client's request, its prefill leg, its decode leg, the answer byte for byte. Plain ASGI."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

import orjson

from proxy import handoff, stream
from proxy.errors import STATUS, ErrorClass, LegError, Refused, StaleError, error_body, error_event
from proxy.exchange import Exchange, LegLine, answer_message
from proxy.guard import Guard
from proxy.legs import LegsWriter
from proxy.metrics import Metrics
from proxy.pairs import Pairs
from proxy.settings import Settings
from proxy.upstream import Reply, Upstream

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

logger = logging.getLogger("pdrig.proxy")

JSON = (b"content-type", b"application/json")


class HandoffRoute:
    """ASGI application for the two completion endpoints. `upstream` and `legs` are set before the first request."""

    upstream: Upstream
    legs: LegsWriter

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self._settings = settings
        self._metrics = metrics
        self._pairs = Pairs(settings.prefill_instances, settings.decode_instances)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        task = asyncio.current_task()
        assert task is not None
        path: str = scope["path"]
        exchange = Exchange(scope["headers"])
        guard = Guard(asyncio.get_running_loop(), task)
        outcome = "ok"
        self._metrics.in_flight.inc()
        try:
            outcome = await self._serve(path, exchange, guard, receive, send)
        except Refused as refusal:
            error = LegError("proxy", "refused", str(refusal))
            outcome = await self._fail(exchange, error, guard, send, refusal.param)
        except LegError as error:
            outcome = await self._fail(exchange, error, guard, send)
        except asyncio.CancelledError:
            # An app that lets this through is reported as crashed; each cause has been dealt with here.
            outcome = await self._fail(exchange, _interruption(guard), guard, send)
        except Exception as error:
            logger.exception("request %s: a fault of the proxy", exchange.request_id)
            failure = LegError("proxy", "internal", f"{type(error).__name__}: {error}")
            outcome = await self._fail(exchange, failure, guard, send)
        finally:
            guard.close()
            self._metrics.in_flight.dec()
            self._metrics.request_ended(path, outcome)

    async def _serve(self, path: str, exchange: Exchange, guard: Guard, receive: Receive, send: Send) -> str:
        """Answers the client; how it ended: `ok`, or the class of an error that decode streamed."""
        raw = await _read_body(receive)
        if raw is None:
            guard.gone = True
            raise LegError("proxy", "cancelled", "the client went away while it sent its request")
        body = handoff.parse(raw)
        handoff.check(body)
        watcher = asyncio.ensure_future(_watch(receive, guard))
        exchange.prefill, exchange.decode = self._pairs.next()
        prefill_body = handoff.prefill_body(body)
        try:
            try:
                reply, line = await self._hand_off(path, exchange, raw, body, prefill_body, guard, False)
            except StaleError as error:
                # No byte of an answer came, and the whole hand-off is begun anew under another id: a ticket that
                # decode may have used already is not used twice.
                exchange.retries += 1
                self._metrics.retries.labels(error.leg).inc()
                logger.info("request %s: %s; begun again", exchange.request_id, error.message)
                reply, line = await self._hand_off(path, exchange, raw, body, prefill_body, guard, True)
            try:
                return await self._answer(exchange, reply, line, guard, send)
            except LegError as error:
                line.end(error)
                raise
            except asyncio.CancelledError:
                line.end(_interruption(guard))
                raise
            finally:
                reply.close()
        finally:
            watcher.cancel()

    async def _hand_off(
        self,
        path: str,
        exchange: Exchange,
        raw: bytes,
        body: handoff.Body,
        prefill_body: bytes,
        guard: Guard,
        again: bool,
    ) -> tuple[Reply, LegLine]:
        """The prefill leg whole, then the decode leg until its answer begins."""
        assert exchange.prefill is not None and exchange.decode is not None
        headers = exchange.leg_headers()
        line = LegLine(exchange, exchange.prefill, self.legs, self._metrics)
        with _failure_noted(line, guard, again):
            reply = await self.upstream.send(exchange.prefill, path, prefill_body, headers, guard, again)
            line.begun(reply.status)
            try:
                params = await self._params(reply, line)
            finally:
                reply.close()
        prefill_end = line.end()
        if params is None:
            exchange.unparametered = True
            self._metrics.lenient.inc()

        decode_body = handoff.decode_body(raw, body, params)
        line = LegLine(exchange, exchange.decode, self.legs, self._metrics)
        line.params_present = params is not None
        self._metrics.handoff_seconds.observe(line.t_start - prefill_end)
        with _failure_noted(line, guard, again):
            reply = await self.upstream.send(exchange.decode, path, decode_body, headers, guard, again)
        line.begun(reply.status)
        return reply, line

    async def _params(self, reply: Reply, line: LegLine) -> handoff.Params | None:
        """What prefill gives for decode; None only where `lenient` lets that through."""
        answer = await reply.answer()
        if answer.status != 200:
            raise _refusing(line, answer.status, LegError("prefill", _class(answer.status), "", answer))
        params, line.engine_id = handoff.params_for_decode(answer.body, self._settings.mode)
        line.params_present = params is not None
        if params is None and not self._settings.lenient:
            raise LegError(
                "prefill",
                "no_kv_params",
                f"{line.instance.name} ({line.instance.url}) gave no kv_transfer_params: decode would compute the "
                "prompt by itself and nothing would be disaggregated; check its --kv-transfer-config",
            )
        return params

    async def _answer(self, exchange: Exchange, reply: Reply, line: LegLine, guard: Guard, send: Send) -> str:
        if reply.streams:
            return await self._stream(exchange, reply, line, guard, send)
        answer = await reply.answer()
        guard.rest()
        if answer.status != 200:
            raise _refusing(line, answer.status, LegError("decode", _class(answer.status), "", answer))
        if not (answer.body.lstrip()[:1] == b"{" and answer.body.rstrip()[-1:] == b"}"):
            raise LegError("decode", "bad_response", f"{line.instance.name} answered 200 with {answer.body[:120]!r}")
        if b'"remote_engine_id"' in answer.body:
            line.engine_id = _engine_id(answer.body)
        line.end()
        await _respond(send, 200, [*answer.headers, *exchange.response_headers()], answer.body)
        return "ok"

    async def _stream(self, exchange: Exchange, reply: Reply, line: LegLine, guard: Guard, send: Send) -> str:
        """Passes the stream on as it comes; the response begins with its first byte, so an early failure has a status.

        After the end mark, or an error object of decode's own, the answer is complete for the client whatever
        becomes of the connection.
        """
        scanner = stream.StreamScanner()
        chunk = reply.first
        try:
            while chunk:
                # While a slow client takes its time, no deadline of decode's runs.
                guard.rest()
                if out := scanner.feed(chunk):
                    if scanner.done:
                        self._end_stream(line, scanner)
                    if not exchange.started:
                        await self._start_stream(exchange, reply, send)
                    await send({"type": "http.response.body", "body": out, "more_body": True})
                chunk = await reply.more()
            guard.rest()
            if out := scanner.close():
                if not exchange.started:
                    await self._start_stream(exchange, reply, send)
                await _body(send, out, more=True)
            if not (scanner.done or scanner.error):
                raise _no_end(line, reply.first)
        except LegError as error:
            if not (scanner.done or scanner.error):
                if exchange.started and (rest := scanner.break_event()):
                    await _body(send, rest, more=True)
                if error.error_class == "reset":
                    error = LegError("decode", "stream_cut", error.message)
                raise error from None
        except asyncio.CancelledError:
            if guard.gone or not (scanner.done or scanner.error):
                if exchange.started and not guard.gone and (rest := scanner.break_event()):
                    await _body(send, rest, more=True)
                raise
        outcome = self._end_stream(line, scanner)
        await _body(send, b"", more=False)
        return outcome

    def _end_stream(self, line: LegLine, scanner: stream.StreamScanner) -> str:
        line.engine_id = scanner.engine_id
        if scanner.error is None:
            line.end()
            return "ok"
        error = LegError("decode", "stream_error", scanner.error)
        line.end(error)
        return error.error_class

    async def _start_stream(self, exchange: Exchange, reply: Reply, send: Send) -> None:
        exchange.started = True
        headers = [*reply.headers, *exchange.response_headers()]
        await send({"type": "http.response.start", "status": 200, "headers": headers})

    async def _fail(
        self, exchange: Exchange, error: LegError, guard: Guard, send: Send, param: str | None = None
    ) -> str:
        """Tells the client, in the form that its answer has reached; the error's class."""
        guard.rest()
        self._metrics.errors.labels(error.leg, error.error_class).inc()
        if guard.gone:
            return error.error_class
        log = logger.info if error.error_class == "refused" else logger.warning
        log("request %s: %s", exchange.request_id, exchange.redacted(str(error)))
        try:
            if exchange.started:
                await _body(send, error_event(error), more=False)
                return error.error_class
            headers = exchange.response_headers(error)
            # A status beyond 599 is no HTTP, and our own server cannot send it.
            if error.answer is None or error.answer.status > 599:
                await _respond(send, STATUS[error.error_class], [JSON, *headers], error_body(error, param))
            else:
                await _respond(send, error.answer.status, [*error.answer.headers, *headers], error.answer.body)
        except asyncio.CancelledError:
            pass
        return error.error_class


@contextmanager
def _failure_noted(line: LegLine, guard: Guard, again: bool) -> Iterator[None]:
    """Ends the leg's line with what goes wrong within, unless the hand-off is begun again for it."""
    try:
        yield
    except LegError as error:
        if again or not isinstance(error, StaleError):
            line.end(error)
        raise
    except asyncio.CancelledError:
        line.end(_interruption(guard))
        raise


def _interruption(guard: Guard) -> LegError:
    """Why the request's task was cancelled."""
    if guard.expired is not None:
        what = "sent no byte" if guard.expired == "first_byte_timeout" else "paused"
        return LegError(guard.leg, guard.expired, f"{guard.leg} {what} for {guard.waited:g} s")
    if guard.gone:
        return LegError(guard.leg, "cancelled", "the client went away")
    return LegError("proxy", "cancelled", "the proxy is stopping")


def _class(status: int) -> ErrorClass:
    return "http_status" if status >= 400 else "bad_response"


def _refusing(line: LegLine, status: int, error: LegError) -> LegError:
    assert error.answer is not None
    message = f"{line.instance.name} ({line.instance.url}): {answer_message(status, error.answer.body)}"
    return LegError(error.leg, error.error_class, message, error.answer)


def _no_end(line: LegLine, first: bytes) -> LegError:
    """Why an answer that was to be a stream has no end mark; `first` are its first bytes."""
    name = line.instance.name
    if stream.begins_as_events(first):
        return LegError("decode", "stream_cut", f"{name} ended its stream without [DONE]")
    return LegError("decode", "bad_response", f"{name} answered 200 with {first[:120]!r} in place of a stream")


def _engine_id(body: bytes) -> str | None:
    try:
        return stream.engine_id(orjson.loads(body))
    except ValueError:
        return None


async def _read_body(receive: Receive) -> bytes | None:
    """The request's body; None if the client went away before its end."""
    message = await receive()
    if message["type"] == "http.request" and not message.get("more_body", False):
        return bytes(message.get("body", b""))
    chunks: list[bytes] = []
    while message["type"] == "http.request":
        chunks.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(chunks)
        message = await receive()
    return None


async def _watch(receive: Receive, guard: Guard) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    guard.client_gone()


async def _respond(send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    headers.append((b"content-length", b"%d" % len(body)))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await _body(send, body, more=False)


async def _body(send: Send, body: bytes, more: bool) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": more})
