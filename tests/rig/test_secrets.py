"""What counts as a secret is masked wherever an environment is shown."""

from __future__ import annotations

import pytest

from rig.secrets import MASK, is_secret, masked


@pytest.mark.parametrize("name", ["HF_TOKEN", "OPENAI_API_KEY", "MY_SECRET", "db_password", "AWS_CREDENTIALS"])
def test_secret_names(name: str) -> None:
    assert is_secret(name)


@pytest.mark.parametrize("name", ["VLLM_LOGGING_LEVEL", "TOKENIZERS_PARALLELISM", "MAX_TOKENS", "UCX_TLS"])
def test_other_names(name: str) -> None:
    assert not is_secret(name)


def test_values_are_masked_and_so_are_passwords_in_urls() -> None:
    env = {"HF_TOKEN": "hf_abc", "PROXY": "http://me:pw@host:1/x", "UCX_TLS": "tcp"}
    assert masked(env) == {"HF_TOKEN": MASK, "PROXY": f"http://{MASK}@host:1/x", "UCX_TLS": "tcp"}
