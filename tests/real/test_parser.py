"""Every command that the shipped sweeps plan, read by the engine's own parser: a renamed option shows here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rig.plan_rules_connectors import CONNECTORS, WITHOUT_HMA
from rig.plan_rules_models import HIDDEN_STATE_METHODS

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]

ASK = """\
import json, sys
from vllm import envs
from vllm.config.speculative import SpeculativeConfig
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
from vllm.utils.argparse_utils import FlexibleArgumentParser

class Parser(FlexibleArgumentParser):
    def error(self, message):
        raise ValueError(message)

def read(server):
    argv = server["argv"]
    parser = make_arg_parser(Parser(prog="vllm serve"))
    names = {word.split("=")[0].split(".")[0] for word in argv if word.startswith("--")}
    # argparse takes a beginning for the whole name, which another option may share tomorrow.
    if unknown := sorted(names - set(parser._option_string_actions)):
        return {"error": f"no option {', '.join(unknown)}"}
    if unknown := sorted(n for n in server["env"] if n.startswith("VLLM_") and n not in envs.environment_variables):
        return {"error": f"no variable {', '.join(unknown)}"}
    try:
        args = parser.parse_args(argv)
        validate_parsed_serve_args(args)
    except (ValueError, TypeError, SystemExit) as error:
        return {"error": f"{type(error).__name__}: {error}"}
    kv = args.kv_transfer_config
    return {
        "error": None,
        "tp": args.tensor_parallel_size,
        "port": args.port,
        "async": args.async_scheduling,
        "caching": args.enable_prefix_caching,
        "dp": args.data_parallel_size,
        "connector": kv and kv.kv_connector,
        "policy": kv and kv.kv_load_failure_policy,
    }

def supports(name):
    from vllm.distributed.kv_transfer.kv_connector.v1.base import supports_hma
    try:
        return supports_hma(KVConnectorFactory._registry[name]())
    except ImportError:
        return None

answers = [read(server) for server in json.load(sys.stdin)]
methods = ("eagle", "eagle3", "mtp", "dflash", "dspark", "ngram", "medusa", "draft_model", "suffix")
print(json.dumps({
    "answers": answers,
    "connectors": sorted(KVConnectorFactory._registry),
    "without_hma": [n for n in KVConnectorFactory._registry if supports(n) is False],
    "hma_unknown": [n for n in KVConnectorFactory._registry if supports(n) is None],
    "methods": [m for m in methods if SpeculativeConfig.use_eagle(type("S", (), {"method": m})())],
}))
"""

WRONG: list[tuple[list[str], dict[str, str], str]] = [
    (["m", "--enable-prefix-cacheing"], {}, "no option --enable-prefix-cacheing"),
    (["m", "--enable-prefix-cachin"], {}, "no option --enable-prefix-cachin"),
    (["m", "--max-model-len", "many"], {}, "max-model-len"),
    (["m", "--kv-transfer-config", '{"kv_conector":"NixlConnector"}'], {}, "kv_conector"),
    (["m"], {"VLLM_SSM_CONV_LAYOUT": "DS"}, "no variable VLLM_SSM_CONV_LAYOUT"),
]
"""Commands that the parser must refuse: it is the check that is checked."""


def planned(path: Path) -> list[dict[str, Any]]:
    """The servers of a sweep file, as `pdrig plan` prints them; none of the simulated engine."""
    command = [sys.executable, "-m", "rig", "plan", str(path), "--format", "json", "--gpus", "64"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr
    servers = [s for d in json.loads(done.stdout)["deployments"] for s in d["servers"]]
    return [s for s in servers if "rig.sim" not in s["argv"]]


@pytest.fixture(scope="module")
def servers() -> list[tuple[str, dict[str, Any]]]:
    return [(path.name, server) for path in CONFIGS for server in planned(path)]


@pytest.fixture(scope="module")
def said(engine: Path, servers: list[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    """What the engine's environment says to all of it, in one process: importing vLLM takes most of the time."""
    asked = [{"argv": s["argv"][s["argv"].index("serve") + 1 :], "env": s["env"]} for _, s in servers]
    asked += [{"argv": argv, "env": env} for argv, env, _ in WRONG]
    done = subprocess.run(
        [str(engine / "bin" / "python"), "-c", ASK],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin", "VLLM_TARGET_DEVICE": "cpu", "VLLM_LOGGING_LEVEL": "ERROR", "HOME": "/tmp"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def test_every_planned_command_is_taken(servers: list[tuple[str, dict[str, Any]]], said: dict[str, Any]) -> None:
    answers = said["answers"][: len(servers)]
    assert len({name for name, _ in servers}) >= 10
    refused = {(name, server["name"], answer["error"]) for (name, server), answer in zip(servers, answers, strict=True)}
    assert not {entry for entry in refused if entry[2] is not None}
    for (_, server), answer in zip(servers, answers, strict=True):
        argv = server["argv"]
        assert (answer["tp"], answer["port"]) == (server["tp"], server["port"])
        assert answer["async"] is ("--async-scheduling" in argv)
        assert answer["caching"] is ("--enable-prefix-caching" in argv)
        kv = json.loads(argv[argv.index("--kv-transfer-config") + 1]) if "--kv-transfer-config" in argv else None
        assert answer["connector"] == (kv and kv["kv_connector"])


def test_a_wrong_command_is_refused(said: dict[str, Any]) -> None:
    for (_, _, expected), answer in zip(WRONG, said["answers"][-len(WRONG) :], strict=True):
        assert answer["error"] is not None
        assert expected in answer["error"]


def test_the_planners_tables_are_the_engines(said: dict[str, Any]) -> None:
    assert said["connectors"] == sorted(CONNECTORS)
    assert set(said["without_hma"]) | set(said["hma_unknown"]) >= set(WITHOUT_HMA) >= set(said["without_hma"])
    assert tuple(said["methods"]) == HIDDEN_STATE_METHODS
