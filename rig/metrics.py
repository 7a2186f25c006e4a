"""Counts, accuracy, latencies and throughput of one evaluation, from its records; pure.

Only questions count: warm-up and preflight requests are left out. Latencies are those of requests that
succeeded. What was not measured is None or absent, never 0. Definitions equal vLLM's `vllm bench serve`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from evals.records import RequestRecord
from evals.shapes import Task
from rig.records import Accuracy, Counts, Group, Groups, Judged, Leg, Percentiles, Throughput
from rig.stats import percentile, wilson

METRIC_FORMULAS: Mapping[str, str] = {
    "accuracy": "correct / (correct + wrong + unparsed + truncated); errors are outside it. Interval: Wilson, 95 %",
    "invalid": "unparsed + truncated: an answer in which no number was found, and one cut by length before any",
    "errors": "questions without a usable answer; judged apart from accuracy",
    "canaries lost": "canaries that did not come back with the code of their own prompt / canaries answered; crossed: "
    "with another canary's",
    "same output": "answers whose text is the baseline's / pairs; of a baseline, its own second answers",
    "cache hits": "prompt tokens that the servers which prefill found in their prefix cache or loaded through a "
    "connector / all their prompt tokens, by vLLM's prompt_tokens_by_source",
    "requests/s": "questions that succeeded / (last end - first submit)",
    "output tokens/s": "output tokens of questions that succeeded / (last end - first submit)",
    "total tokens/s": "prompt and output tokens of questions that succeeded / (last end - first submit)",
    "E2E": "end of the answer - submit, in ms",
    "TTFT": "first token - submit, in ms; only where answers are streamed",
    "TPOT": "(E2E - TTFT) / (output tokens - 1), in ms; one value a request of two tokens or more",
    "ITL": "time between one chunk of output and the next, in ms; one value a gap",
    "prefill": "end - start of the prefill leg, in ms, seen by the proxy",
    "handoff": "start of the decode leg - end of the prefill leg, in ms; the KV transfer is within the decode leg",
    "decode": "end - start of the decode leg, in ms, seen by the proxy",
    "change": "(questions only the cell got right - questions only its baseline got right) / questions both "
    "answered. Interval: Tango's score interval, 95 %",
}
"""Every figure that a report shows, as it is computed."""

RIGS_OWN = frozenset({"internal", "cancelled"})
"""Classes of errors that are the rig's own fault; `Counts.error` keeps them apart from the deployment's."""


def counts(judged: Iterable[Judged], records: Iterable[RequestRecord]) -> Counts:
    """How many questions ended in each outcome; errors by class, and by leg and class.

    `empty` is a success without any text. A tainted answer counts under the name of its first taint, and names no
    leg. Errors of the rig's own making are those in RIGS_OWN.
    """
    scored = list(judged)
    outcomes = Counter(j.outcome for j in scored)
    tainted = {j.request_id: j.tainted[0] for j in scored if j.tainted}
    classes: Counter[str] = Counter()
    legs: dict[str, Counter[str]] = {}
    for record in _questions(records):
        if record.error is not None or record.text is None:
            classes[_error_class(record)] += 1
        elif record.request_id in tainted:
            classes[tainted[record.request_id]] += 1
        if record.error is not None:
            legs.setdefault(record.error.leg, Counter())[_error_class(record)] += 1
    return Counts(
        correct=outcomes["correct"],
        wrong=outcomes["wrong"],
        unparsed=outcomes["unparsed"],
        truncated=outcomes["truncated"],
        unscored=outcomes["unscored"],
        error=dict(sorted(classes.items())),
        error_by_leg={leg: dict(sorted(found.items())) for leg, found in sorted(legs.items())},
    )


def groups(judged: Iterable[Judged], task: Task) -> Groups | None:
    """Accuracy by what the task's samples say of themselves, in their order; None for a task that does not group."""
    if task.group_by is None:
        return None
    of = {s.sample_id: str(s.meta[task.group_by]) for s in task.samples if task.group_by in s.meta}
    found: dict[str, list[str]] = {name: [] for name in of.values()}
    for j in judged:
        if j.sample_id in of:
            found[of[j.sample_id]].append(j.outcome)
    scored = [Group(name, *_score(outcomes)) for name, outcomes in found.items()]
    return Groups(task.group_by, tuple(scored))


def retried(records: Iterable[RequestRecord]) -> int:
    """How many questions took more than one attempt to connect."""
    return sum(r.attempts > 1 for r in _questions(records))


def accuracy(judged: Sequence[Judged], deciding: str, scorers: Iterable[str] = ()) -> Accuracy:
    """Share of right answers by the deciding scorer with its interval, and by each of `scorers` beside it."""
    right, scored = _score([j.outcome for j in judged])
    by_scorer = {}
    for name in scorers:
        k, n = _score([j.by_scorer.get(name, "error") for j in judged])
        by_scorer[name] = k / n if n else None
    return Accuracy(deciding, right / scored if scored else None, wilson(right, scored), by_scorer)


def latency_ms(records: Iterable[RequestRecord]) -> dict[str, Percentiles]:
    """Percentiles of e2e, ttft, tpot and itl in ms; a latency that no request has is absent."""
    return _summaries(latency_values(records))


def latency_values(records: Iterable[RequestRecord]) -> dict[str, list[float]]:
    """Every e2e, ttft, tpot and itl in ms, of questions that succeeded."""
    values: dict[str, list[float]] = {"e2e": [], "ttft": [], "tpot": [], "itl": []}
    for r in _questions(records):
        if r.error is not None:
            continue
        e2e = (r.t_end - r.t_submit) * 1000
        values["e2e"].append(e2e)
        if r.t_first_token is None:
            continue
        ttft = (r.t_first_token - r.t_submit) * 1000
        values["ttft"].append(ttft)
        if r.completion_tokens is not None and r.completion_tokens > 1:
            values["tpot"].append((e2e - ttft) / (r.completion_tokens - 1))
        values["itl"] += r.itl_ms or ()
    return values


def legs_ms(legs: Iterable[Leg]) -> dict[str, Percentiles]:
    """Percentiles of prefill, handoff and decode in ms, over requests whose two legs both succeeded.

    `handoff` is negative where decode starts before prefill ends (push mode).
    """
    good: dict[str, dict[str, Leg]] = {}
    for leg in legs:
        if leg.error is None:
            good.setdefault(leg.request_id, {})[leg.leg] = leg
    values: dict[str, list[float]] = {"prefill": [], "handoff": [], "decode": []}
    for pair in good.values():
        if len(pair) == 2:
            prefill, decode = pair["prefill"], pair["decode"]
            values["prefill"].append((prefill.t_end - prefill.t_start) * 1000)
            values["handoff"].append((decode.t_start - prefill.t_end) * 1000)
            values["decode"].append((decode.t_end - decode.t_start) * 1000)
    return _summaries(values)


def throughput(records: Iterable[RequestRecord]) -> Throughput | None:
    """Rates from the first submit to the last end; None when no question was asked.

    A request that failed gives no tokens and no request, yet its time counts. Token rates are None when
    an answer did not say how many tokens it has.
    """
    asked = list(_questions(records))
    if not asked:
        return None
    duration = max(r.t_end for r in asked) - min(r.t_submit for r in asked)
    good = [r for r in asked if r.error is None]
    output = _total([r.completion_tokens for r in good])
    prompt = _total([r.prompt_tokens for r in good])
    both = None if output is None or prompt is None else output + prompt
    return Throughput(
        requests_per_s=_rate(len(good), duration),
        output_tokens_per_s=_rate(output, duration),
        total_tokens_per_s=_rate(both, duration),
        total_output_tokens=output,
        duration_s=duration,
    )


def error_texts(counts: Counts) -> list[str]:
    """Errors as `decode reset 3`, the most frequent first; without a leg where none is known."""
    by_leg = {leg: kinds for leg, kinds in counts.error_by_leg.items() if leg != "unknown"}
    named = {f"{leg} {kind}": k for leg, kinds in by_leg.items() for kind, k in kinds.items()}
    for kind, total in counts.error.items():
        if left := total - sum(kinds.get(kind, 0) for kinds in by_leg.values()):
            named[kind] = left
    return [f"{name} {k}" for name, k in sorted(named.items(), key=lambda item: (-item[1], item[0]))]


def _questions(records: Iterable[RequestRecord]) -> Iterable[RequestRecord]:
    return (r for r in records if r.kind == "question")


def _error_class(record: RequestRecord) -> str:
    if record.error is None:
        return "empty"
    own = record.error.leg == "client" and record.error.error_class not in RIGS_OWN
    return "internal" if own else record.error.error_class


def _score(outcomes: Sequence[str]) -> tuple[int, int]:
    """Right answers, and all that count."""
    return outcomes.count("correct"), len(outcomes) - outcomes.count("error") - outcomes.count("unscored")


def _summaries(values: Mapping[str, Sequence[float]]) -> dict[str, Percentiles]:
    return {
        name: Percentiles(
            p50=percentile(found, 50),
            p90=percentile(found, 90),
            p99=percentile(found, 99),
            mean=sum(found) / len(found),
        )
        for name, found in values.items()
        if found
    }


def _total(values: Sequence[int | None]) -> int | None:
    known = [v for v in values if v is not None]
    return sum(known) if len(known) == len(values) else None


def _rate(count: int | None, duration: float) -> float | None:
    return None if count is None or duration <= 0 else count / duration
