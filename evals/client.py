"""One request to an OpenAI-compatible server, and the record of what became of it."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Literal
from urllib.parse import urlsplit

import orjson

from evals.answer import Answer, BadAnswer, error_from, known_class, known_leg, one_line
from evals.errors import BadTarget
from evals.records import ErrorClass, ErrorLeg, Kind, RequestError, RequestRecord
from evals.session import Session, header, request_head
from evals.sse import SseParser
from proxy.stream import begins_as_events
from proxy.wire import Connection, Lost, NotHttp, Pool

PATHS = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}
LEG_HEADER = "x-pdrig-error-leg"
CLASS_HEADER = "x-pdrig-error-class"
DECODE_HEADER = "x-pdrig-decode"
"""In every answer of pdrig's own proxy: what such an answer of 200 holds came from this decode server."""

END_OF_STREAM_S = 1.0
"""How long the end of the body may follow the end mark before the connection is given up."""

FIRST_BYTES = 200
"""So much of a body that should be events is kept until the first one, to tell what it is instead."""

STOOD_STILL_S = 2.0
"""A limit that is noticed so much later says that this process got no turn: it cannot tell whose answer was late."""

OWN_LIMITS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL})
"""Reasons not to get a socket that are this machine's, not the server's."""

_STATUSES = frozenset(HTTPStatus)


@dataclass(frozen=True)
class Target:
    """Where requests go. `default_leg` gets the blame for failures that name no leg: `proxy` for pdrig's own.

    Raises BadTarget for an address that is not http(s)://host[:port][/path] or holds a password.
    """

    base_url: str
    model: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    endpoint: Literal["completions", "chat"] = "completions"
    default_leg: ErrorLeg = "decode"

    def __post_init__(self) -> None:
        try:
            parts = urlsplit(self.base_url)
            usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            raise BadTarget(f"{self.base_url!r} is not a URL; expected http://HOST:PORT") from None
        if parts.username is not None or parts.password is not None:
            raise BadTarget("a server address may not hold a user or password; pass an Authorization header")
        if not usable or parts.query or parts.fragment:
            raise BadTarget(f"{self.base_url!r} is not a server address; expected http://HOST:PORT")

    @property
    def url(self) -> str:
        """The full URL of the endpoint; a base that ends in /v1 is taken as it is meant."""
        return self.base_url.rstrip("/").removesuffix("/v1") + PATHS[self.endpoint]


@dataclass(frozen=True)
class Timeouts:
    """Limits in seconds: to connect; to the first byte of the body; between bytes; for the whole request."""

    connect: float = 10.0
    first_byte: float = 600.0
    idle: float = 120.0
    total: float = 1800.0


@dataclass(frozen=True)
class Request:
    """One request to make: a sample's prompt with the task's parameters."""

    sample_id: str
    prompt: str
    params: Mapping[str, Any]
    kind: Kind = "question"
    pass_: int = 0
    repeat: int = 0


class Watch:
    """The deadlines of one request, with a single timer however many chunks arrive.

    A deadline that passes cancels the task; `expired` tells that from a cancellation by somebody else.
    """

    def __init__(self, timeouts: Timeouts, task: asyncio.Task[Any]) -> None:
        self._timeouts = timeouts
        self._task = task
        self._cancelling = task.cancelling()
        self._loop = asyncio.get_running_loop()
        self._start = self.last = self._loop.time()
        self.body_begun = False
        self.answered_at: float | None = None
        self.fired: ErrorClass | None = None
        self.late_s = 0.0
        self._timer = self._loop.call_at(self._next()[0], self._check)

    def _next(self) -> tuple[float, ErrorClass]:
        if self.answered_at is not None:
            return self.answered_at + END_OF_STREAM_S, "idle_timeout"
        quiet: tuple[float, ErrorClass] = (
            (self.last + self._timeouts.idle, "idle_timeout")
            if self.body_begun
            else (self._start + self._timeouts.first_byte, "first_byte_timeout")
        )
        return min(quiet, (self._start + self._timeouts.total, "total_timeout"))

    def _check(self) -> None:
        due, kind = self._next()
        if self._loop.time() >= due:
            self.fired = kind
            self.late_s = self._loop.time() - due
            self._task.cancel()
        else:
            self._timer = self._loop.call_at(due, self._check)

    def arrived(self, now: float) -> None:
        """Bytes of the body came; with the first of them the idle limit takes over."""
        self.last = now
        if not self.body_begun:
            self.body_begun = True
            self._rearm()

    def answered(self, now: float) -> None:
        """The answer is whole; only the end of the body may still come, and not for long."""
        self.answered_at = now
        self._rearm()

    def expired(self) -> bool:
        """Whether the CancelledError just caught is this watch's own; takes the cancellation back then."""
        return self.fired is not None and self._task.uncancel() <= self._cancelling

    def close(self) -> None:
        self._timer.cancel()

    def _rearm(self) -> None:
        self._timer.cancel()
        self._timer = self._loop.call_at(self._next()[0], self._check)


def _stood_still(limit_s: float, late_s: float) -> RequestError:
    return RequestError(
        "client", "internal", f"the rig got no turn: a limit of {limit_s:g} s was noticed {late_s:.1f} s late"
    )


async def send(
    session: Session,
    target: Target,
    request: Request,
    *,
    t0: float,
    stream: bool,
    timeouts: Timeouts,
    retries: int = 0,
    on_submit: Callable[[str, Request, float], None] | None = None,
) -> RequestRecord:
    """Send one request and wait for its end; whatever happens becomes a record, a cancellation too.

    `t0` is the start of the record's clock, by the running loop's `time()`. `retries` are for connections
    that could not be opened, so before anything was sent; the clock starts again with each.
    The caller must look at `asyncio.current_task().cancelling()` to learn that it was cancelled itself.
    """
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None
    # The sample leads, so that logs and engines can be read by question; the rest makes it unique.
    request_id = f"{request.sample_id}-{uuid.uuid4().hex[:16]}"
    body = _body(target, request, stream)
    answer = Answer(target.default_leg)
    attempts = 0
    while True:
        attempts += 1
        submitted = loop.time()
        if on_submit and attempts == 1:
            on_submit(request_id, request, submitted - t0)
        exchange = _Exchange(session, target, timeouts, answer, Watch(timeouts, task))
        error = await exchange.run(request_id, body, stream)
        again = error is not None and error.leg != "client" and error.error_class in ("connect", "connect_timeout")
        if not again or attempts > retries:
            break
    if error and target.headers:
        error = RequestError(error.leg, error.error_class, _without_secrets(error.message, target.headers))
    first = answer.first_text if stream else None
    return RequestRecord(
        kind=request.kind,
        sample_id=request.sample_id,
        request_id=request_id,
        endpoint=target.endpoint,
        prompt_sha256=hashlib.sha256(request.prompt.encode()).hexdigest(),
        t_submit=round(submitted - t0, 6),
        t_end=round((exchange.watch.answered_at or loop.time()) - t0, 6),
        pass_=request.pass_,
        repeat=request.repeat,
        t_first_token=None if first is None else round(first - t0, 6),
        http_status=exchange.status,
        finish_reason=answer.finish_reason,
        text=answer.text,
        reasoning=answer.reasoning,
        token_ids=answer.token_ids,
        logprobs=answer.logprobs,
        prompt_tokens=answer.prompt_tokens,
        completion_tokens=answer.completion_tokens,
        cached_tokens=answer.cached_tokens,
        response_id=answer.response_id,
        itl_ms=tuple(round(gap * 1000, 3) for gap in answer.gaps) if stream and first is not None else None,
        error=error,
        attempts=attempts,
    )


class _Exchange:
    """One attempt: request out, answer in."""

    def __init__(self, session: Session, target: Target, timeouts: Timeouts, answer: Answer, watch: Watch) -> None:
        self._session = session
        self._target = target
        self._leg = target.default_leg
        self._timeouts = timeouts
        self._answer = answer
        self.watch = watch
        self.status: int | None = None

    async def run(self, request_id: str, body: bytes, stream: bool) -> RequestError | None:
        """None for a usable answer, else the one reason why there is none."""
        try:
            await self._exchange(request_id, body, stream)
            self._answer.check(stream)
        except BadAnswer as bad:
            return bad.error
        except asyncio.CancelledError:
            if not self.watch.expired():
                return RequestError("client", "cancelled", "the run was stopped")
            if self.watch.answered_at is None:
                return self._timed_out()
            return self._checked(stream)
        except Lost as lost:
            return self._checked(stream) if self.watch.answered_at is not None else self._broken(lost)
        except NotHttp as error:
            return RequestError(self._leg, "bad_response", f"not HTTP: {one_line(str(error))}")
        except Exception as error:
            # Nothing the server does should end here: what does is a fault of the rig, and a record all the same.
            return RequestError("client", "internal", f"{type(error).__name__}: {one_line(str(error))}")
        finally:
            self.watch.close()
        return None

    def _checked(self, stream: bool) -> RequestError | None:
        try:
            self._answer.check(stream)
        except BadAnswer as bad:
            return bad.error
        return None

    async def _exchange(self, request_id: str, body: bytes, stream: bool) -> None:
        head = request_head(self._target.url, {**self._target.headers, "X-Request-Id": request_id}, len(body))
        pool = self._session.pool(self._target.base_url)
        connection = pool.idle() or await self._connected(pool)
        try:
            connection.send(head + body)
            await self._read_answer(connection, stream)
        finally:
            self.status = connection.status or None
            pool.give_back(connection)

    async def _connected(self, pool: Pool) -> Connection:
        """Raises BadAnswer: without a connection there is none."""
        now = asyncio.get_running_loop().time
        start = now()
        try:
            return await pool.connect(self._timeouts.connect)
        except OSError as error:
            raise BadAnswer(self._not_connected(error, now() - start - self._timeouts.connect)) from None

    async def _read_answer(self, connection: Connection, stream: bool) -> None:
        first = await connection.read()
        if connection.status != 200:
            await self._refused(connection, first)
        if header(connection, DECODE_HEADER) is not None:
            self._answer.leg = "decode"
        kind = (header(connection, "content-type") or "").partition(";")[0].strip().lower()
        if stream and kind != "application/json":
            await self._read_stream(connection, first, kind)
            return
        whole = await self._read_all(connection, first)
        self.watch.answered(asyncio.get_running_loop().time())
        self._answer.add_body(whole)
        if stream:
            raise BadAnswer(RequestError(self._leg, "bad_response", "asked for a stream, got one JSON object"))

    async def _read_stream(self, connection: Connection, chunk: bytes, kind: str) -> None:
        answer, watch, now = self._answer, self.watch, asyncio.get_running_loop().time
        feed = SseParser().feed
        first, begun = b"", False
        while chunk:
            moment = now()
            watch.arrived(moment)
            events = feed(chunk)
            if not begun:
                first, begun = (first + chunk)[:FIRST_BYTES], bool(events)
            for data in events:
                if not answer.done:
                    answer.add_event(data, moment)
            if answer.done and watch.answered_at is None:
                watch.answered(moment)
            chunk = await connection.read()
        if not begun and not begins_as_events(first):
            raise answer.no_events(first, kind)

    async def _read_all(self, connection: Connection, chunk: bytes) -> bytes:
        parts = []
        while chunk:
            self.watch.arrived(asyncio.get_running_loop().time())
            parts.append(chunk)
            chunk = await connection.read()
        return b"".join(parts)

    async def _refused(self, connection: Connection, first: bytes) -> None:
        """Raises BadAnswer with what the status, the body and the proxy's headers say."""
        body = await self._read_all(connection, first)
        status = connection.status
        error_class: ErrorClass = "http_status" if status >= 400 else "bad_response"
        reason = HTTPStatus(status).phrase if status in _STATUSES else "no reason given"
        try:
            stated = error_from(orjson.loads(body), self._leg, error_class, reason)
        except orjson.JSONDecodeError:
            stated = RequestError(self._leg, error_class, one_line(body.decode(errors="replace")) or reason)
        raise BadAnswer(
            RequestError(
                known_leg(header(connection, LEG_HEADER), stated.leg),
                known_class(header(connection, CLASS_HEADER), stated.error_class),
                f"{status}: {stated.message}",
            )
        )

    def _timed_out(self) -> RequestError:
        assert self.watch.fired is not None
        limit, what = {
            "first_byte_timeout": (self._timeouts.first_byte, "no byte of an answer"),
            "idle_timeout": (self._timeouts.idle, "nothing more of an answer"),
        }.get(self.watch.fired, (self._timeouts.total, "no end of the answer"))
        if self.watch.late_s >= STOOD_STILL_S:
            return _stood_still(limit, self.watch.late_s)
        return RequestError(self._leg, self.watch.fired, f"{what} within {limit:g} s")

    def _not_connected(self, error: OSError, late_s: float) -> RequestError:
        # What takes no connection is what was asked, whoever stands behind it.
        leg = "proxy" if self._leg == "unknown" else self._leg
        if isinstance(error, TimeoutError) and error.errno is None:
            if late_s >= STOOD_STILL_S:
                return _stood_still(self._timeouts.connect, late_s)
            return RequestError(leg, "connect_timeout", f"no connection within {self._timeouts.connect:g} s")
        if error.errno in OWN_LIMITS:
            return RequestError("client", "internal", f"this machine gave no socket: {one_line(str(error))}")
        return RequestError(leg, "connect", one_line(str(error)))

    def _broken(self, lost: Lost) -> RequestError:
        if self.status and not lost.broken:
            return RequestError(self._leg, "stream_cut", "the connection closed within the answer")
        where = "within its answer" if lost.begun else "without an answer"
        return RequestError(self._leg, "reset", f"the server {'broke' if lost.broken else 'closed'} it {where}")


def _body(target: Target, request: Request, stream: bool) -> bytes:
    prompt: dict[str, Any] = (
        {"messages": [{"role": "user", "content": request.prompt}]}
        if target.endpoint == "chat"
        else {"prompt": request.prompt}
    )
    extra = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    return orjson.dumps({"model": target.model, **prompt, **request.params, **extra})


def _without_secrets(message: str, headers: Mapping[str, str]) -> str:
    for value in headers.values():
        for secret in (value, value.rpartition(" ")[2]):
            # Shorter values are words and digits that any message may hold.
            if len(secret) >= 4:
                message = message.replace(secret, "***")
    return message
