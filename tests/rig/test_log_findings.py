"""Lines of the engines' logs become findings, and taints of the answers that they speak against."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rig.log_findings import LogFindings, findings_in, rig_id

HEX8, HEX16, HEX32 = "0a1b2c3d", "0123456789abcdef", "0123456789abcdef0123456789abcdef"
WARN = "(EngineCore pid=7) WARNING 11-30 01:02:03 [base_worker.py:3032] "
INFO = "(APIServer pid=7) INFO 11-30 01:02:03 [async_llm.py:1049] "


def engine_id(sample: str) -> str:
    return f"cmpl-{sample}-{HEX16}-{HEX32}-0-{HEX8}"


def expired(sample: str, readers: str = "0 remote worker(s) before lease expired.") -> str:
    return f"{WARN}Releasing expired KV blocks for request {engine_id(sample)} which were retrieved by {readers}"


def late(sample: str) -> str:
    return (
        f"{WARN}Potentially invalid KV blocks for unrecognized request {engine_id(sample)} were retrieved by "
        "a decode worker. They may have expired."
    )


def found(*lines: str, instance: str = "prefill-0") -> LogFindings:
    return findings_in((instance, line) for line in lines)


def mine(sample: str) -> str:
    return f"{sample}-{HEX16}"


samples = st.from_regex(r"[a-z0-9][a-z0-9_-]{0,20}", fullmatch=True)
hexes = st.text("0123456789abcdef", min_size=32, max_size=32)


@given(sample=samples, digits=hexes, ours=st.booleans(), chat=st.booleans())
def test_an_engines_id_leads_back_to_the_rigs(sample: str, digits: str, ours: bool, chat: bool) -> None:
    sent = f"{sample}-{digits[:16]}"
    upstream = f"{sent}-{digits}" if ours else sent
    made = f"chatcmpl-{upstream}-{digits[:8]}" if chat else f"cmpl-{upstream}-0-{digits[:8]}"
    assert rig_id(made) == sent


@pytest.mark.parametrize("other", ["cmpl-3da205a6-1c3c-41b5-aeaa-b8421e81fd5c-0", f"cmpl-{HEX32}-0-{HEX8}", "", "x"])
def test_an_id_that_is_not_the_rigs_leads_nowhere(other: str) -> None:
    assert rig_id(other) is None


def test_a_read_after_the_lease_ran_out_taints_the_answer() -> None:
    seen = found(expired("q1"), late("q1"))
    assert seen.taints == {mine("q1"): ("expired_lease", "stale_blocks")}
    damage, note = seen.findings
    assert (damage.channel, damage.severity, note.severity) == ("transfer", "damage", "note")
    assert "1 request, first, request q1-" in damage.text and "after their lease had run out" in damage.text


@pytest.mark.parametrize(
    "readers", ["0 remote worker(s) before lease expired.", "1 decode worker(s) within 480 seconds."]
)
def test_a_lease_that_nobody_used_is_no_taint(readers: str) -> None:
    seen = found(expired("q1", readers))
    assert seen.taints == {}
    [note] = seen.findings
    assert note.severity == "note" and "1 line" in note.text and mine("q1") in note.text


def test_a_lease_that_runs_out_taints_nobody_elses_answer() -> None:
    assert found(expired("q1"), expired("q2"), late("q2")).taints == {mine("q2"): ("expired_lease", "stale_blocks")}


def test_a_read_that_prefill_cannot_match_is_not_vouched_for() -> None:
    seen = found(late("q1"))
    assert seen.taints == {mine("q1"): ("stale_blocks",)}
    assert [f.severity for f in seen.findings] == ["damage"]


def test_blocks_that_were_held_until_after_the_read_taint_nothing() -> None:
    seen = found(late("q1"), expired("q1"))
    assert seen.taints == {}
    assert {f.severity for f in seen.findings} == {"note"}


def test_a_rank_that_reads_after_the_end_taints_though_another_read_before() -> None:
    assert found(late("q1"), expired("q1"), late("q1")).taints == {mine("q1"): ("expired_lease", "stale_blocks")}


def test_leases_of_one_instance_say_nothing_of_another() -> None:
    lines = [("prefill-0", expired("q1")), ("prefill-1", late("q1"))]
    assert findings_in(lines).taints == {mine("q1"): ("stale_blocks",)}


def test_parameters_that_lead_nowhere_mean_that_decode_prefilled() -> None:
    line = (
        f"{WARN}Got invalid KVTransferParams: {{'do_remote_prefill': True, 'remote_engine_id': None, "
        f"'remote_request_id': '{engine_id('q1')}'}}. This request will not utilize KVTransfer"
    )
    assert found(line, instance="decode-0").taints == {mine("q1"): ("decode_prefilled",)}
    bare = found(f"{WARN}Got invalid KVTransferParams: {{}}. This request will not utilize KVTransfer")
    assert bare.taints == {} and len(bare.findings) == 1


ID = engine_id("q1")
LINES = [
    (f"Unrecognized request {ID} notif (may have expired).", True),
    (f"NIXL transfer failure: handshake_failed | Context: {{'failure_type': 'x', 'request_id': '{ID}'}}", True),
    ("NIXL transfer failure: handshake_setup_failed | Context: {'failure_type': 'x', 'request_id': None}", False),
    (f"Declining expired remote read for {ID} from engine abc.", True),
    (f"NixlPushConnector: registration for request {ID} timed out after 480.0s without a push completion", True),
    (f"No remote agents for engine abc; cannot send registration for {ID}", True),
    (f"No local blocks to push for request {ID}", True),
    (f"No blocks to push for request {ID}", True),
    ("Got kv_transfer_params, but no KVConnector found. Disabling KVTransfer for this request.", False),
    ("Local NIXL metadata for remote engine abc was invalidated; re-handshaking after reads drain.", False),
    (f"Failing 1 request(s) due to KV load failure (failure_policy=fail, 9 tokens). Request IDs: {{'{ID}'}}", True),
    ("Recovered from KV load failure: 2 request(s) rescheduled (9 tokens affected).", False),
    (f"Request {ID} failed with an internal error during generation", True),
    (f"Request {ID} aborted.", True),
    (f"Aborted request(s) {ID},{ID}.", True),
]  # fmt: skip


@pytest.mark.parametrize(("line", "named"), LINES, ids=[line[:30] for line, _ in LINES])
def test_a_failure_is_noted_and_taints_nothing(line: str, named: bool) -> None:
    seen = found(WARN + line, WARN + line)
    [note] = seen.findings
    assert note.severity == "note" and "2 lines" in note.text and note.text.startswith("prefill-0: ")
    assert (f"request {mine('q1')}" in note.text) is named
    assert seen.taints == {}


def test_a_message_within_a_logged_prompt_is_not_the_engines() -> None:
    prompt = late("q1").removeprefix(WARN)
    assert found(f"{INFO}Received request x: prompt: '{prompt}'") == LogFindings()
    assert len(found(f"{INFO}Request {ID} aborted.").findings) == 1


def test_secrets_in_a_quoted_line_are_masked() -> None:
    line = f"NIXL transfer failure: transfer_failed | Context: {{'request_id': '{ID}', 'api_key': 'abcd1234'}}"
    [note] = found(WARN + line).findings
    assert "abcd1234" not in note.text and "***" in note.text


def test_a_long_log_is_read_as_a_stream() -> None:
    read = 0

    def lines() -> Iterator[tuple[str, str]]:
        nonlocal read
        for read in range(1, 5001):
            yield "prefill-0", expired("q1") if read % 2 else f"{INFO}Avg prompt throughput: {read}"

    [note] = findings_in(lines()).findings
    assert "2500 lines" in note.text and len(note.text) < 800 and read == 5000
