"""What counts as a secret is masked wherever an environment is shown."""

from __future__ import annotations

import pytest

from rig.secrets import MASK, holds_secret, is_secret, masked, masked_argv, masked_line, masked_yaml


@pytest.mark.parametrize(
    "name", ["HF_TOKEN", "OPENAI_API_KEY", "APIKEY", "MY_SECRET", "db_password", "AWS_CREDENTIALS", "DB_PASS"]
)
def test_secret_names(name: str) -> None:
    assert is_secret(name)


@pytest.mark.parametrize(
    "name", ["VLLM_LOGGING_LEVEL", "TOKENIZERS_PARALLELISM", "max_tokens", "tokenizer", "author", "UCX_TLS", "BYPASS"]
)
def test_other_names(name: str) -> None:
    assert not is_secret(name)


def test_values_are_masked_and_so_are_passwords_in_urls() -> None:
    env = {"HF_TOKEN": "hf_abc", "PROXY": "http://me:pw@host:1/x", "UCX_TLS": "tcp"}
    assert masked(env) == {"HF_TOKEN": MASK, "PROXY": f"http://{MASK}@host:1/x", "UCX_TLS": "tcp"}


def test_secrets_within_values_are_masked() -> None:
    env = {
        "CONF": '{"api_key": "sk-1", "ms_per_token": 0.5}',
        "HEADER": "Basic dXNlcjpwdw==",
        "REDIS": "redis://:pw@h:1/0",
        "ARGS": '{"name": "x"}',
    }
    assert masked(env) == {
        "CONF": f'{{"api_key": "{MASK}", "ms_per_token": 0.5}}',
        "HEADER": f"Basic {MASK}",
        "REDIS": f"redis://{MASK}@h:1/0",
        "ARGS": '{"name": "x"}',
    }
    shown = masked_yaml('env:\n  CONF: \'{"api_key": "sk-1"}\'\n  HEADER: Basic dXNlcjpwdw==\n')
    assert "sk-1" not in shown and "dXNl" not in shown and "HEADER: Basic" in shown


@pytest.mark.parametrize(
    ("word", "holds"),
    [
        ("API_KEY=sk-1", True),
        ("HF_TOKEN='sk-1' exec r", True),
        ("Authorization: Bearer abcdefgh", True),
        ("redis://:pw@h", True),
        ("/health?token=abc", True),
        ('{"api_key": "sk-1"}', True),
        ('exec r --api-key "$KEY" "$@"', False),
        ('API_KEY="$KEY" exec r', False),
        ("API_KEY=${KEY} exec r", False),
        ("--max-tokens=5", False),
        ("A=1", False),
        ("/health?full=1", False),
        ('{"block": 16}', False),
        ("", False),
    ],
)
def test_which_words_hold_secrets(word: str, holds: bool) -> None:
    assert holds_secret(word) is holds


def test_a_sweep_file_is_stored_without_its_secrets_and_otherwise_as_it_is() -> None:
    text = """\
name: x  # token: in a comment stays a comment
both:
  env: {HF_TOKEN: hf_abc, UCX_TLS: tcp}
  "MY_KEY": "a, b"
  max_tokens: 5
  VLLM_API_KEY:   s3cret value   # why
url: http://me:pw@host/
"""
    shown = masked_yaml(text)
    for secret in ("hf_abc", "a, b", "s3cret", "me:pw"):
        assert secret not in shown
    for kept in ("UCX_TLS: tcp}", "max_tokens: 5", "# why", "name: x", "url: http://***@host/"):
        assert kept in shown


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("{'api_key': ['abc'], 'max_tokens': 3}", "{'api_key': ***, 'max_tokens': 3}"),
        ("HF_TOKEN=hf_abc x", "HF_TOKEN=*** x"),
        ("--api-key sk-1 --port 3", "--api-key *** --port 3"),
        ("sent Bearer abcdefgh", "sent Bearer ***"),
        ("from http://u:p@h/", "from http://***@h/"),
        ("it said s3cr3t twice: s3cr3t", "it said *** twice: ***"),
        (
            "the token is 5, max_tokens=7, KeyError: 'foo', no key 5",
            "the token is 5, max_tokens=7, KeyError: 'foo', no key 5",
        ),
        ("api_key=None", "api_key=None"),
    ],
)
def test_a_log_line_is_shown_without_its_secrets(line: str, shown: str) -> None:
    assert masked_line(line, ["s3cr3t"]) == shown


@pytest.mark.parametrize(
    "line",
    [
        "error: --api-key hush-hush",
        "unrecognized arguments: --api-key=hush-hush",
        "started with HF_TOKEN=hush-hush",
        "errors: it ended: --api-key hush-hush; HF_TOKEN=hush-hush",
    ],
)
def test_a_secret_after_another_name_is_masked(line: str) -> None:
    assert masked_line(line) == line.replace("hush-hush", "***")


ARGV = [
    (
        ["vllm", "serve", "m", "--api-key", "hush", "--port", "1"],
        ["vllm", "serve", "m", "--api-key", "***", "--port", "1"],
    ),
    (["x", "--hf-token=hush", "--max-tokens", "5"], ["x", "--hf-token=***", "--max-tokens", "5"]),
    (["x", "--tokenizer", "t", "--api-key"], ["x", "--tokenizer", "t", "--api-key"]),
]


@pytest.mark.parametrize(("argv", "shown"), ARGV)
def test_secret_flags_are_masked(argv: list[str], shown: list[str]) -> None:
    assert masked_argv(argv) == shown
