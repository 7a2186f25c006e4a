"""The simulated engine itself: admission, the hand-off, what is answered, and the counters and ledger of it."""

from __future__ import annotations

import asyncio
import hashlib
import time
import uuid
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rig.faults.control import Fault as ControlFault
from rig.sim import answers, log, tokens
from rig.sim.answers import Question, Told
from rig.sim.config import Settings
from rig.sim.control import KINDS, Controlled
from rig.sim.faults import Fault, Moment, Planted, Side
from rig.sim.kv import Reader, Tickets
from rig.sim.ledger import Entry, Ledger
from rig.sim.metrics import Metrics
from rig.sim.options import Options
from rig.sim.prefix import PrefixCache
from rig.sim.protocol import Ask, Prompt, Refused
from rig.sim.replies import Choice

_REASONING = " I read the question again and work it out step by step."
_RUNS_ON = "\n\nQuestion: Tom has 3 pens and buys 4 more. How many pens?\nAnswer: 3 + 4 = 7.\n#### 7"
_DEFAULT_SEQS = 256
DEAD = "EngineCore encountered an issue. See stack trace (above) for the root cause."


@dataclass(eq=False)
class Job:
    """One request on its way through the engine; `donor` is whose answer it gets. Times are monotonic seconds."""

    ask: Ask
    request_id: str
    side: Side
    entry: Entry
    struck: dict[str, Fault]
    questions: tuple[Question | None, ...]
    started: float
    damage: set[str] = field(default_factory=set)
    donor: Question | None = None
    first_token: float | None = None
    blocks: int = 0


class Engine:
    """One server's state."""

    def __init__(self, options: Options, settings: Settings, env: Mapping[str, str]) -> None:
        self.options, self.settings = options, settings
        self.planted = Planted(settings.faults)
        kv = options.kv
        self.controlled = Controlled(
            env, recompute=kv is not None and kv.policy == "recompute", push=kv is not None and kv.mode == "push"
        )
        self.metrics = Metrics(options.served_names[0], options.kv is not None, options.block_size, options.offloads)
        self.tickets: Tickets | None = None
        self.reader: Reader | None = None
        if options.kv:
            size = settings.kv_bytes_per_token
            self.tickets = Tickets(options, options.kv, settings.kv_groups, size, self.metrics)
            self.reader = Reader(options, options.kv, size, self.metrics)
        self.blocks = options.gpu_blocks or settings.kv_blocks
        self.prefix = PrefixCache(self.blocks, options.block_size) if options.prefix_caching else None
        self.storage = PrefixCache(settings.offload_blocks, options.block_size) if options.offloads else None
        self.dead = False
        self._book = answers.Book.read(Path(settings.data)) if settings.data else answers.EMPTY_BOOK
        self._ledger = Ledger(
            settings.ledger,
            port=options.port,
            model=options.served_names[0],
            engine_id=self.tickets.engine_id if self.tickets else None,
            async_scheduling=options.async_scheduling,
        )
        self._seats = asyncio.Semaphore(settings.max_num_seqs or options.max_num_seqs or _DEFAULT_SEQS)
        self._jobs: dict[Job, None] = {}
        self._ids_in_flight: Counter[str] = Counter()
        self._running = 0
        self._number = 0
        self._last_finish: float | None = None
        self._last_prompt: str | None = None
        self._ended: deque[tuple[str, Question]] = deque(maxlen=8)
        self._ended_codes: deque[tuple[str, Question]] = deque(maxlen=8)

    # Admission

    def begin(self, ask: Ask, header_id: str | None) -> Job:
        """Admit a request and draw its faults."""
        now = time.monotonic()
        self._number += 1
        prefix = "chatcmpl" if ask.endpoint == "chat" else "cmpl"
        name = f"{prefix}-{header_id or uuid.uuid4().hex}"
        request_id = f"{name}{'' if ask.endpoint == 'chat' else '-0'}-{uuid.uuid4().hex[:8]}"
        prompt = ask.prompts[0]
        questions = tuple(answers.recognise(prompt.text, self._book) for prompt in ask.prompts)
        side = self._side(ask)
        duplicate = header_id is not None and self._ids_in_flight[header_id] > 0
        moment = Moment(
            side=side,
            number=self._number,
            concurrency=len(self._jobs) + 1,
            prompt=prompt.text,
            prompt_tokens=len(prompt.token_ids),
            since_finish_ms=None if self._last_finish is None else (now - self._last_finish) * 1000,
            async_scheduling=self.options.async_scheduling,
            transferred=bool(self.reader and ask.kv_params and ask.kv_params.get("do_remote_prefill")),
            stream=ask.stream,
            predecessor=self._last_prompt,
            port=self.options.port,
        )
        struck = self.planted.strike(moment)
        question = questions[0]
        entry = Entry(
            request_id=header_id,
            engine_request_id=request_id,
            side=side,
            endpoint=ask.endpoint,
            stream=ask.stream,
            number=self._number,
            concurrency=moment.concurrency,
            prompt_sha256=hashlib.sha256(prompt.text.encode()).hexdigest(),
            prompt_tokens=moment.prompt_tokens,
            since_finish_ms=moment.since_finish_ms,
            question=question.text if question else None,
            target=question.target if question else None,
            faults=sorted(struck),
            duplicate_id=duplicate,
        )
        job = Job(ask, request_id, side, entry, struck, questions, now)
        job.blocks = -(-moment.prompt_tokens // self.options.block_size)
        self._jobs[job] = None
        if header_id is not None:
            self._ids_in_flight[header_id] += 1
        return job

    def _side(self, ask: Ask) -> Side:
        kv = self.options.kv
        if kv is None:
            return "monolithic"
        if ask.kv_params and ask.kv_params.get("do_remote_decode"):
            return "prefill"
        with_ticket = ask.kv_params and ask.kv_params.get("do_remote_prefill")
        return "prefill" if kv.role == "kv_producer" and not with_ticket else "decode"

    def end(self, job: Job, reason: str) -> None:
        """Count a request that is over and write its line; `reason` is a finish reason of vLLM."""
        self._jobs.pop(job, None)
        name = job.entry.request_id
        if name is not None:
            self._ids_in_flight[name] -= 1
            if not self._ids_in_flight[name]:
                del self._ids_in_flight[name]
        now = self._last_finish = time.monotonic()
        self.metrics.success.add(1, reason)
        self.metrics.e2e.observe(now - job.started)
        self._last_prompt = job.ask.prompts[0].text
        if question := job.questions[0]:
            (self._ended_codes if question.code else self._ended).append((job.request_id, question))
        self._ledger.write(job.entry)

    def note(self, job: Job) -> None:
        """Write a request's line before the process ends."""
        self._ledger.write(job.entry)

    def die(self, message: str) -> None:
        """The engine core ends; the server lives on and answers 500."""
        if not self.dead:
            self.dead = True
            log.engine_died(message)

    def gauges(self) -> None:
        """Bring the gauges up to date."""
        held = self.tickets.held_blocks if self.tickets else 0
        used = held + sum(job.blocks for job in self._jobs)
        self.metrics.kv_usage.values[None] = min(used / self.blocks, 1.0)
        self.metrics.running.values[None] = self._running
        self.metrics.waiting.values[None] = len(self._jobs) - self._running

    async def seat(self) -> None:
        """Wait until the request may be computed."""
        await self._seats.acquire()
        self._running += 1

    def leave(self) -> None:
        self._running -= 1
        self._seats.release()

    # The hand-off

    async def prefill(self, job: Job) -> None:
        """Get the prompt's KV: from the other side, or by computing it. Raises Refused."""
        count = job.entry.prompt_tokens
        external = await self._receive(job, count) if self.reader and job.ask.kv_params else 0
        known = self.prefix.use(job.ask.prompts[0].token_ids) if self.prefix and not external else 0
        stored = self.storage.use(job.ask.prompts[0].token_ids) if self.storage and not external else 0
        loaded = max(stored - known, 0)
        local = count - external - known - loaded
        slow = job.struck.get("slow_first_token")
        wait_ms = (self.settings.prefill_ms + local * self.settings.prefill_ms_per_token) if not external else 0.0
        wait_ms += float(slow.param("ms")) if slow else 0.0
        if wait_ms:
            await asyncio.sleep(wait_ms / 1000)
        job.entry.external_tokens, job.entry.local_tokens = external, local
        self.metrics.prompt_tokens.add(count)
        self.metrics.by_source.add(local, "local_compute")
        self.metrics.by_source.add(known, "local_cache_hit")
        self.metrics.by_source.add(external + loaded, "external_kv_transfer")
        self.metrics.loaded.add(loaded * self.settings.kv_bytes_per_token)
        job.first_token = time.monotonic()
        self.metrics.ttft.observe(job.first_token - job.started)

    async def _receive(self, job: Job, count: int) -> int:
        """How many prompt tokens came from the other side."""
        params = job.ask.kv_params or {}
        assert self.reader and self.options.kv
        if job.side != "decode" or "ignore_kv_params" in job.struck or not self.reader.usable(params):
            return 0
        control = self.controlled.striking(job.request_id, len(self._jobs), count)
        failing = next((name for name in ("failed_handshake", "recompute_unwritten") if name in control), None)
        if failing:
            outcome = self.reader.failed(
                job.request_id, params, "handshake_failed. Remote NIXL agent engine ID mismatch"
            )
            self.controlled.note(failing, job.request_id)
            if failing in KINDS:
                job.damage.add(failing)
        elif "transfer_failed" in job.struck:
            outcome = self.reader.failed(job.request_id, params, "transfer_failed. NIXL_ERR_REMOTE_DISCONNECT")
            if job.struck["transfer_failed"].param("neighbours"):
                self._damage_neighbours(job)
        elif "transfer_garbage" in job.struck:
            self.reader.failed(job.request_id, params, "transfer_failed. NIXL_ERR_REMOTE_DISCONNECT")
            job.damage.add("transfer_garbage")
            return count - 1
        else:
            wait_ms = self.settings.transfer_ms
            wait_ms += float(job.struck["slow_transfer"].param("ms")) if "slow_transfer" in job.struck else 0.0
            wait_ms += control["slow_transfer"].ms if "slow_transfer" in control else 0.0
            outcome = await self.reader.redeem(job.request_id, params, count, wait_ms / 1000)
            if outcome.reason is None:
                self._strike(job, control)
        if outcome.reason is None:
            if outcome.damage:
                job.damage.add(outcome.damage)
            return count - 1
        if self.options.kv.policy == "recompute":
            return 0
        log.line("ERROR", "serving.py:204", f"Request {job.request_id} failed with an internal error during generation")
        raise Refused(500, "Internal server error")

    def _strike(self, job: Job, struck: Mapping[str, ControlFault]) -> None:
        """Damage blocks that have arrived as the control file says, and write down what was done."""
        for name, fault in struck.items():
            detail: dict[str, Any] = {}
            if name == "slow_transfer":
                detail["ms"] = fault.ms
            elif KINDS[name] in ("swapped", "stale"):
                found = self._donor(job, in_flight=KINDS[name] == "swapped")
                if found is None:
                    continue
                detail["donor"], job.donor = found
            if name in KINDS:
                job.damage.add(name)
            self.controlled.note(name, job.request_id, **detail)

    def _damage_neighbours(self, job: Job) -> None:
        for other in self._jobs:
            if other is not job and other.side == "decode":
                other.damage.add("neighbour_of_failed_transfer")

    def ticket(self, job: Job) -> dict[str, Any] | None:
        """What the prefill leg's answer carries, or None."""
        if job.side != "prefill" or self.tickets is None or job.ask.kv_params is None or job.ask.stream:
            return None
        if "no_kv_params" in job.struck:
            return None
        damage = next((name for name in job.struck if name in ("wrong_answer", "garbage", "stale", "swapped")), None)
        return self.tickets.issue(
            job.request_id,
            job.entry.prompt_tokens,
            damage,
            expired="lease_expired" in job.struck,
            wrong_engine="wrong_engine_id" in job.struck,
        )

    # The answer

    def choices(self, job: Job) -> list[Choice]:
        """Each prompt's answer, `n` times; the ledger's line is about the first."""
        made = [
            self._choice(job, prompt, question)
            for prompt, question in zip(job.ask.prompts, job.questions, strict=True)
            for _ in range(job.ask.n)
        ]
        first, question = made[0], job.questions[0]
        entry = job.entry
        entry.faults = sorted({*job.struck, *job.damage})
        entry.finish_reason = first.finish_reason
        entry.completion_tokens = len(first.pieces) + len(first.reasoning)
        if question and job.side != "prefill":
            entry.answer = answers.answer_in(first.text)
            entry.right = answers.is_right(question, first.text)
        return made

    def _choice(self, job: Job, prompt: Prompt, question: Question | None) -> Choice:
        ask, struck = job.ask, job.struck
        chat = ask.endpoint == "chat"
        told = self._told(job, prompt, question)
        lead = "" if chat or prompt.text.endswith((" ", "\n")) else " "
        text = lead + told.text if told.text else ""
        limit = ask.max_tokens
        reasoning = tuple(tokens.split(_REASONING)[:limit]) if chat and self.options.reasoning else ()
        pieces = tokens.split(text)
        least = limit if ask.ignore_eos or "endless" in struck else ask.min_tokens
        if len(pieces) < least:
            pieces = tokens.split(text + tokens.babble(f"{prompt.text}/more", least))[:least]
        cut = pieces[: limit - len(reasoning)]
        finish, stop_reason = ("length", None) if len(pieces) >= limit - len(reasoning) else ("stop", None)
        kept = "".join(cut)
        ends = [(at, stop) for stop in ask.stop if (at := kept.find(stop)) >= 0]
        if ends:
            at, stop_reason = min(ends)
            cut, finish = tokens.split(kept[:at]), "stop"
        hidden = "reasoning_only" in struck
        if hidden:
            reasoning, cut = (tuple(cut) if chat else ()), []
        key = hashlib.sha256(prompt.text.encode()).hexdigest()
        tie = _first_difference(pieces, tokens.split(lead + told.rival)) if told.rival else None
        return Choice(tuple(cut), finish, stop_reason, key, 2.0 if told.damaged else 0.0, reasoning, hidden, tie)

    def _told(self, job: Job, prompt: Prompt, question: Question | None) -> Told:
        """What is answered, before any limit."""
        struck = job.struck
        kinds = {*struck, *(KINDS.get(name, name) for name in job.damage)}
        if "empty_text" in struck:
            return Told("", damaged=True)
        if "garbage" in kinds:
            return Told(str(struck["garbage"].param("piece") if "garbage" in struck else "!") * 24, damaged=True)
        if "endless" in struck:
            return Told(answers.unknown(prompt.text, "endless"), damaged=True)
        if "no_number" in struck:
            return Told("I do not know how to work this out.", damaged=True)
        if kinds & {"swapped", "stale"}:
            found = None if job.donor else self._donor(job, in_flight="swapped" in kinds)
            other = found[1] if found else job.donor
            if other is not None:
                return Told(other.solution, damaged=True)
        if job.damage or {"wrong_answer", "swapped", "stale"} & set(struck):
            fault = struck.get("wrong_answer")
            salt = f"damage{job.entry.number if fault and fault.by == 'request' else ''}"
            text = answers.wrong(question, salt) if question else answers.unknown(prompt.text, salt)
            return Told(text, damaged=True)
        if question is None:
            return Told(answers.unknown(prompt.text, ""))
        setting, asking = self.settings, (self.options.port, job.side, job.entry.number)
        told = answers.told(question, setting.accuracy, setting.noise, setting.seed, asking)
        return replace(told, text=told.text + _RUNS_ON) if "runs_on" in struck else told

    def _donor(self, job: Job, in_flight: bool) -> tuple[str, Question] | None:
        """The request whose answer this one gets: one in flight now, else the latest that ended."""
        flying = [(other.request_id, other.questions[0]) for other in self._jobs] if in_flight else []
        others = [(name, question) for name, question in flying if question is not None]
        return answers.donor(job.questions[0], [*others, *reversed(self._ended), *reversed(self._ended_codes)])


def _first_difference(pieces: Sequence[str], rival: Sequence[str]) -> tuple[int, str] | None:
    """The first token at which a rival differs, and the rival's there; None where they do not differ."""
    return next(((at, b) for at, (a, b) in enumerate(zip(pieces, rival, strict=False)) if a != b), None)
