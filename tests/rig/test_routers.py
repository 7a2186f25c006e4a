"""A router's command, filled in; and what the ids of a router's answers tell."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evals.records import RequestRecord
from rig.log_findings import findings_in
from rig.routers import served, under_rig_ids
from rig.routers_command import filled, filled_once, has, problem

MakeRecord = Callable[..., RequestRecord]
PREFILL = ("http://127.0.0.1:8100", "http://127.0.0.1:8101")
DECODE = ("http://node-b:8200",)
HEX = "3df76ad0091643d88f3c2920d1dd1729"


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (
            ["r", "--prefill", "{prefill}", "--decode", "{decode}"],
            ["r", "--prefill", PREFILL[0], "--prefill", PREFILL[1], "--decode", DECODE[0]],
        ),
        (["r", "--prefill={prefill}"], ["r", f"--prefill={PREFILL[0]}", f"--prefill={PREFILL[1]}"]),
        (["r", "{prefill}", "{decode}"], ["r", *PREFILL, *DECODE]),
        (["r", "--hosts", "{prefill_host...}"], ["r", "--hosts", "127.0.0.1", "127.0.0.1"]),
        (["r", "--ports", "{prefill_port...}", "-v"], ["r", "--ports", "8100", "8101", "-v"]),
        (["r", "--prefill", "{prefill,}"], ["r", "--prefill", ",".join(PREFILL)]),
        (["sh", "-c", "exec r {prefill_host}:{prefill_port}"], ["sh", "-c", "exec r 127.0.0.1:8100"]),
        (["r", "-p", "{decode_host}:{decode_port}"], ["r", "-p", "node-b:8200"]),
        (["r", "--listen=127.0.0.1:{port}", '{"a": {}}'], ["r", "--listen=127.0.0.1:8000", '{"a": {}}']),
    ],
)
def test_a_command_filled_in(command: list[str], expected: list[str]) -> None:
    prefill = PREFILL if command[0] != "sh" else PREFILL[:1]
    assert list(filled(command, prefill, DECODE, {"port": "8000"})) == expected


def test_an_option_before_a_place_is_repeated_with_it() -> None:
    """So does `-c` before a script that names single servers: `{prefill,}` is for those."""
    assert filled(["sh", "-c", "r {prefill}"], PREFILL, DECODE, {}) == (
        *("sh", "-c", f"r {PREFILL[0]}"),
        *("-c", f"r {PREFILL[1]}"),
    )


GOOD = ["r", "{prefill}", "{decode}", "{port}"]


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (GOOD, None),
        (
            ["{rig_python}", "-m", "r", "{prefill,}", "{decode_host}:{decode_port}", "{host}:{port}", "{metrics_port}"],
            None,
        ),
        ([*GOOD, '{"no": "place"}', "{}", "{A}"], None),
        (
            [*GOOD, "{prefil}"],
            "no placeholder {prefil}; known: {host}, {port}, {metrics_port}, {rig_python}, {prefill}",
        ),
        ([*GOOD, "{port,}"], "{port,} is one value; write {port}"),
        ([*GOOD, "{prefill}->{decode}"], "holds places of both sides or of two kinds"),
        ([*GOOD, "{prefill_host...}:{prefill_port}"], "holds places of both sides or of two kinds"),
        (["r"], "say where {prefill} and {decode} and {port} belong in it"),
        (["r", "{prefill}", "{decode}"], "say where {port} belongs in it"),
        ([*GOOD, "--api-key", "sk-1"], "so it holds no secrets"),
        ([*GOOD, "--hf-token=sk-1"], "so it holds no secrets"),
        (["env", "API_KEY=sk-1", *GOOD], "so it holds no secrets"),
        ([*GOOD, "--header", "Authorization: Bearer abcdefgh"], "so it holds no secrets"),
        (["sh", "-c", "API_KEY=sk-1 r {prefill} {decode} {port}"], "so it holds no secrets"),
        (["sh", "-c", 'exec r --api-key "$KEY" "$@"', *GOOD], None),
        (["", *GOOD], "the first word is the program, and it is empty"),
        ([*GOOD, "--prefix", ""], None),
    ],
)
def test_what_is_wrong_with_a_command(command: list[str], told: str | None) -> None:
    found = problem(command)
    assert found == told if told is None else told in str(found)


WORD = st.text(st.sampled_from("ab{}-=:,. "), max_size=6)
URLS = st.lists(st.sampled_from(["http://a:1", "http://b:2", "http://c"]), min_size=1, max_size=4)


@given(words=st.lists(WORD, max_size=5), prefill=URLS, decode=URLS, port=st.integers(1, 65535))
def test_words_without_places_stay_and_every_server_is_named(
    words: list[str], prefill: list[str], decode: list[str], port: int
) -> None:
    command = [*words, "--to", "{prefill}", "{decode...}", "--port", "{port}"]
    found = list(filled(command, prefill, decode, {"port": str(port)}))
    assert found[: len(words)] == words
    rest = found[len(words) :]
    assert rest == [w for url in prefill for w in ("--to", url)] + [*decode, "--port", str(port)]
    once = filled_once(command, {"port": str(port)})
    assert filled(once, prefill, decode, {}) == tuple(found), "ports first or servers first, it is the same"
    assert has(command, "port") and not has(once, "port")


def test_an_address_without_a_port_has_that_of_its_scheme() -> None:
    urls = ["http://a", "https://b", "http://[::1]:7"]
    assert filled(["{prefill_host}:{prefill_port}"], urls, DECODE, {}) == ("a:80", "b:443", "::1:7")


def test_answers_of_vllm_router_name_both_servers(make_record: MakeRecord) -> None:
    """An id as vllm-router 0.1.17 makes them, and as the answer has it."""
    name = f"___prefill_addr_127.0.0.1:8101___decode_addr_node-b:8200_{HEX}"
    records = [
        make_record("q", request_id="q-1", response_id=f"cmpl-{name}"),
        make_record("chat", request_id="c-1", response_id=f"chatcmpl-{name}"),
        make_record("elsewhere", request_id="e-1", response_id=f"cmpl-{name.replace(':8200', ':9')}"),
        make_record("own", request_id="o-1", response_id="cmpl-own-0123456789abcdef"),
        make_record("failed", request_id="f-1", response_id=None),
    ]
    urls = {"prefill-0": PREFILL[0], "prefill-1": PREFILL[1], "decode-0": DECODE[0]}
    assert served(records, urls) == {
        **{("q-1", "prefill"): "prefill-1", ("q-1", "decode"): "decode-0"},
        **{("c-1", "prefill"): "prefill-1", ("c-1", "decode"): "decode-0"},
        ("e-1", "prefill"): "prefill-1",
    }


@pytest.mark.parametrize(
    ("response_id", "in_log"),
    [
        (f"cmpl-{HEX}", f"cmpl-{HEX}-0-852fed3f"),
        (f"chatcmpl-{HEX}", f"chatcmpl-{HEX}-852fed3f"),
        (
            f"cmpl-___prefill_addr_a:1___decode_addr_b:2_{HEX}",
            f"cmpl-___prefill_addr_a:1___decode_addr_b:2_{HEX}-0-852fed3f",
        ),
    ],
)
def test_what_a_log_says_of_a_request_finds_its_answer(make_record: MakeRecord, response_id: str, in_log: str) -> None:
    """Prefill's log names the engine's id; the answer bore what it is made of."""
    line = f"WARNING 11-29 20:00:00 [pull_worker.py:1] Potentially invalid KV blocks for unrecognized request {in_log} "
    logged = findings_in([("prefill-0", line + "were retrieved by 1 decode worker(s). They may have expired.")])
    record = make_record("q", request_id="q-0123456789abcdef", response_id=response_id)
    other = make_record("x", request_id="x-0123456789abcdef", response_id="cmpl-other")
    assert under_rig_ids(logged.taints, [other, record]) == {"q-0123456789abcdef": ("stale_blocks",)}
    assert under_rig_ids(logged.taints, [other]) == logged.taints, "of whom nothing is known keeps the engine's name"
    assert under_rig_ids({"q-0123456789abcdef": ("x",)}, [record]) == {"q-0123456789abcdef": ("x",)}
