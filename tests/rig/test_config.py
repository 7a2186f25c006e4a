"""Sweep files: what is read, and the one line that each mistake gives."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from rig.config import Config, load_config, parse_config
from rig.errors import ConfigError
from rig.yaml_source import parse_yaml

BASE = """\
name: s
models:
  m: {path: model}
engines:
  e: {command: [vllm, serve], device: cpu}
cell:
  model: m
  engine: e
  kv_transfer_config: {kv_connector: NixlConnector}
  prefill: {port: 8100}
  decode:
    tp: 1
  task: t
tasks:
  t: {task: gsm-tiny}
"""


def parse(text: str) -> Config:
    return parse_config(text, "configs/x.yaml", Path("/sweeps"))


def problem(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse(text)
    assert "\n" not in str(caught.value)
    return str(caught.value).removeprefix("configs/x.yaml: ")


def test_defaults_are_filled_in() -> None:
    config = parse(BASE)
    assert len(config.cells) == 1
    cell = config.cells[0].settings
    assert cell.async_scheduling is True
    assert (cell.prefill.port, cell.decode.port, cell.proxy.port) == (8100, 8200, 8000)
    assert config.sweep.gates.max_accuracy_drop == 0.02
    assert config.sweep.baseline[0].monolithic is not None


def test_paths_are_taken_from_the_folder_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "configs").mkdir()
    file = tmp_path / "configs" / "x.yaml"
    text = BASE.replace("path: model", "path: ../model").replace("command: [vllm, serve]", "venv: ../engine")
    file.write_text(text, encoding="utf-8")
    sweep = load_config(file).sweep
    assert sweep.models["m"].path == str(tmp_path / "model")
    assert sweep.engines["e"].venv == str(tmp_path / "engine")


REFUSED = [
    ("    tp: 1", '    tp: "two"', 'cell.decode.tp: expected a whole number from 1 to 1024, got "two" (line 12)'),
    ("    tp: 1", "    tp: 0", "cell.decode.tp: expected a whole number from 1 to 1024, got 0 (line 12)"),
    ("    tp: 1", "    tp: 1.5", "cell.decode.tp: expected a whole number from 1 to 1024, got 1.5 (line 12)"),
    ("    tp: 1", "    tp: true", "cell.decode.tp: expected a whole number from 1 to 1024, got true (line 12)"),
    ("    tp: 1", "    ttp: 1", 'cell.decode.ttp: unknown key; did you mean "tp"? (line 12)'),
    ("    tp: 1", "    tp: 1\n    tp: 2", "cell.decode.tp: given twice, first on line 12; keep one (line 13)"),
    ("port: 8100", "port: 0", "cell.prefill.port: expected a whole number from 1 to 65535, got 0 (line 10)"),
    ("name: s", "nam: s", 'nam: unknown key; did you mean "name"? (line 1)'),
    ("name: s\n", "", "name: is required"),
    (
        "name: s",
        "name: a/b",
        'name: expected a name of letters, digits, dots, dashes and underscores, got "a/b" (line 1)',
    ),
    ("  model: m\n", "", "cell.model: is required (line 6)"),
    ("  model: m\n", "  model: x\n", 'cell.model: no model "x" under models; known: m (line 7)'),
    ("  engine: e\n", "  engine: f\n", 'cell.engine: no engine "f" under engines; known: e (line 8)'),
    ("  task: t\n", "  task: tt\n", 'cell.task: no task "tt" under tasks; did you mean "t"? (line 13)'),
    ("port: 8100", "host: a", 'cell.prefill.host: no host "a" under hosts; none is defined (line 10)'),
    ("{path: model}", "{}", "models.m: give either `path`, a local folder, or `id`, a name on the hub (line 3)"),
    (
        "{path: model}",
        "{path: model, id: a/b}",
        "models.m: give either `path`, a local folder, or `id`, a name on the hub (line 3)",
    ),
    (
        "{command: [vllm, serve], device: cpu}",
        "{command: vllm serve}",
        'engines.e.command: expected a list, got "vllm serve" (line 5)',
    ),
    ("command: [vllm, serve]", "command: []", "engines.e.command: must not be empty (line 5)"),
    ("device: cpu", "device: tpu", "engines.e.device: expected 'gpu' or 'cpu', got \"tpu\" (line 5)"),
    ("models:\n  m: {path: model}", "models: {}", "models: must not be empty (line 2)"),
    ("kv_connector: NixlConnector", "kv_role: kv_both", "cell.kv_transfer_config.kv_connector: is required (line 9)"),
    ("{task: gsm-tiny}", "{task: gsm-tiny, concurrency: 0}", "a whole number from 1 to 100000, got 0 (line 15)"),
    (
        "{task: gsm-tiny}",
        "{task: gsm-tiny, stream: yes}",
        'tasks.t.stream: expected true or false, got "yes" (line 15)',
    ),
    (
        "port: 8100",
        "args: {port: 1}",
        "cell.prefill.args.port: pdrig writes this option itself; set `port` of prefill and decode instead (line 10)",
    ),
    (
        "port: 8100",
        "args: {no-async_scheduling: true}",
        "this option itself; set `async_scheduling` of the cell instead (line 10)",
    ),
    ("port: 8100", "args: {dp: 2}", "cell.prefill.args.dp: write the long name, data-parallel-size (line 10)"),
    ("port: 8100", "args: {--x: 2}", "an option's name without dashes in front, such as max-model-len, is expected"),
    ("port: 8100", "args: {lora-modules: []}", "an empty list; null drops an inherited option (line 10)"),
    ("port: 8100", "args: {x: .nan}", "cell.prefill.args.x: expected a finite number, got nan (line 10)"),
    (
        "port: 8100",
        "args: {enable-x: true, no-enable_x: true}",
        "cell.prefill.args: enable-x and no-enable_x are the same option; keep one (line 10)",
    ),
    (
        "port: 8100",
        "env: {A: true}",
        "cell.prefill.env.A: expected text or a number, got true; write true as 1 or in quotes (line 10)",
    ),
    ("port: 8100", "env: {A: [1]}", "cell.prefill.env.A: expected text or a number, got [1]; write true as 1"),
    ("port: 8100", "env: {a-b: 1}", "cell.prefill.env.a-b: not a name for an environment variable (line 10)"),
    ("port: 8100", "env: {CUDA_VISIBLE_DEVICES: 1}", "GPUs are assigned by the plan; narrow them"),
    ("port: 8100", "env: {VLLM_NIXL_SIDE_CHANNEL_PORT: 1}", "set `side_channel_port` of prefill and decode instead"),
    ("port: 8100", "env: [1]", "cell.prefill.env: expected `key: value` lines, got [1] (line 10)"),
    *(
        (
            "port: 8100",
            f"{key}: {value}",
            f"cell.prefill.{key}: expected a host's name or address, such as 10.0.0.11 or {{hostname}}, got {told} ",
        )
        for key in ("side_channel_host", "listen")
        for value, told in [
            ('""', '""'),
            ("a b", '"a b"'),
            ("-x", '"-x"'),
            ("http://x", '"http://x"'),
            ('"{host}"', '"{host}"'),
            ('"x\\n"', '"x\\n"'),
        ]
    ),
    *(
        (
            "{path: model}",
            f"{{id: {value}}}",
            f"models.m.id: expected a model's name on the hub, such as Qwen/Qwen3-0.6B, got {value}; a folder is a "
            "`path` (line 3)",
        )
        for value in ('""', '" "', '"a b"', '"-x"', '"--port"', '"./model"', '"/model"')
    ),
    *(
        (
            "{path: model}",
            f"{{path: model, served_name: {value}}}",
            "models.m.served_name: expected a name without spaces that does not begin with a dash, got "
            f"{value} (line 3)",
        )
        for value in ('""', '" "', '"a b"', '"-x"')
    ),
    ("{path: model}", '{path: ""}', "models.m.path: must not be empty (line 3)"),
    ("command: [vllm, serve]", 'venv: ""', "engines.e.venv: must not be empty (line 5)"),
    ("command: [vllm, serve]", 'command: [vllm, ""]', "engines.e.command[1]: must not be empty (line 5)"),
    ("  task: t\n", '  task: t\n  proxy: {host: ""}\n', "cell.proxy.host: expected a host's name or address, such as"),
    ("    tp: 1", "    tp: 1025", "cell.decode.tp: expected a whole number from 1 to 1024, got 1025 (line 12)"),
    ("port: 8100", "port: 65536", "cell.prefill.port: expected a whole number from 1 to 65535, got 65536 (line 10)"),
    ("port: 8100", "instances: 1025", "cell.prefill.instances: expected a whole number from 0 to 1024, got 1025"),
    (
        "name: s",
        'name: s\nhosts: {h: {address: "{node0}"}}',
        "hosts.h: {node0} is a node of a Slurm allocation; set `launcher: slurm`",
    ),
]

ALLOWED = [
    *(
        ("port: 8100", f'{key}: "{value}"')
        for key in ("side_channel_host", "listen")
        for value in (
            "10.0.0.1",
            "::1",
            "fe80::1%eth0",
            "{hostname}",
            "{hostname}.cluster",
            "node-1.example.org",
            "0.0.0.0",
        )
    ),
    *(
        ("{path: model}", f'{{id: "{value}", served_name: "{value}"}}')
        for value in ("org/name-1.5_B", "gpt2", "s3://bucket/model", "org/name:Q4")
    ),
    ("    tp: 1", "    tp: 1024"),
]


@pytest.mark.parametrize(("old", "new"), ALLOWED)
def test_odd_names_and_large_numbers_that_make_sense_are_taken(old: str, new: str) -> None:
    assert parse(BASE.replace(old, new, 1)).cells


@pytest.mark.parametrize(("old", "new", "message"), REFUSED, ids=[f"{i}" for i in range(len(REFUSED))])
def test_a_mistake_is_one_line_with_key_and_line(old: str, new: str, message: str) -> None:
    assert old in BASE
    found = problem(BASE.replace(old, new, 1))
    assert message in found if message[0] == " " or "." not in message.split(":")[0] else found.startswith(message), (
        found
    )


ADDED_REFUSED = [
    (
        "matrix: {decode.tp: []}",
        "matrix.decode.tp: an empty list leaves no cell; give a value or drop the axis (line 16)",
    ),
    ("matrix: {decode.tp: 1}", "matrix.decode.tp: expected a list, got 1 (line 16)"),
    (
        "matrix: {decode.tpp: [1]}",
        'matrix.decode.tpp: unknown axis: no "tpp" in cell.decode; did you mean "tp"? (line 16)',
    ),
    ("matrix: {decode.tp.x: [1]}", 'matrix.decode.tp.x: unknown axis: "decode.tp" has no keys below it (line 16)'),
    ("matrix: {decode: [1]}", "matrix.decode: unknown axis: name one key of it, such as decode.tp (line 16)"),
    ("matrix: {both.env: [1]}", "matrix.both.env: unknown axis: name one entry, such as both.env.UCX_TLS (line 16)"),
    ('matrix: {decode.tp: [1, "x"]}', 'matrix.decode.tp[1]: expected a whole number from 1 to 1024, got "x" (line 16)'),
    (
        'matrix: {"prefill.tp, decode.tp": [[1, 1], 2]}',
        'matrix."prefill.tp, decode.tp"[1]: expected a list of 2 values, one for each path, got 2 (line 16)',
    ),
    (
        'matrix: {decode.tp: [1], "prefill.tp, decode.tp": [[1, 1]]}',
        'matrix."prefill.tp, decode.tp": decode.tp is already set by matrix.decode.tp (line 16)',
    ),
    ("matrix: {model: [m, x]}", 'matrix.model[1]: no model "x" under models; known: m (line 16)'),
    (
        "matrix: {both.env.HF_TOKEN: [a, b]}",
        "matrix.both.env.HF_TOKEN[0]: labels are stored, so a secret cannot be an axis; set it in `cell`",
    ),
    ("include: [{}]", "include[0]: an empty entry; say what differs from `cell` (line 16)"),
    (
        "include: [{decode: {tpp: 1}}]",
        'include[0].decode.tpp: unknown key: no "tpp" in cell.decode; did you mean "tp"?',
    ),
    ("include: [{decode: 1}]", "include[0].decode: unknown key: name one key of it, such as decode.tp (line 16)"),
    ("include: [{decode.tp: x}]", 'include[0].decode.tp: expected a whole number from 1 to 1024, got "x" (line 16)'),
    (
        "include: [{decode.tp: 1, decode: {tp: 2}}]",
        "include[0].decode.tp: decode.tp is set twice in this entry (line 16)",
    ),
    ("baseline: mono", 'baseline: expected monolithic, stored, none, or `cell:` with labels, got "mono" (line 16)'),
    (
        "baseline: {monolithic: {tp: 0}}",
        "baseline.monolithic.tp: expected a whole number from 1 to 1024, got 0 (line 16)",
    ),
    ("baseline: [none, monolithic]", "baseline[0]: `none` stands alone; drop it or the others (line 16)"),
    ("baseline: [stored, {stored: b}]", "baseline: one folder of stored baselines is read; keep one (line 16)"),
    ("baseline: [{monolithic: {tp: 0}}]", "baseline[0].monolithic.tp: expected a whole number from 1 to 1024, got 0"),
    (
        "baseline: {monolithic: {engine: f}}",
        'baseline.monolithic.engine: no engine "f" under engines; known: e (line 16)',
    ),
    (
        "baseline: {monolithic: {}, cell: {decode_tp: 1}}",
        "baseline: give one of `monolithic`, `cell` and `stored`; several baselines are a list (line 16)",
    ),
    ("gates: {alpha: 1}", "gates.alpha: expected a number above 0 and below 1, got 1 (line 16)"),
    ("limits: {start_s: 0}", "limits.start_s: expected a number above 0, got 0 (line 16)"),
    ("launcher: pbs", "launcher: expected 'local', 'attach', 'slurm' or 'ssh', got \"pbs\" (line 16)"),
    ("slurm: {allocate: [-N2]}", "`slurm` is for `launcher: slurm`; set that, or drop `slurm`"),
    ("launcher: attach", "`launcher: attach` and the servers under `attach` belong together; give both or neither"),
    (
        "launcher: attach\nattach: {prefill: [{url: host}], decode: [{url: 'http://h:1'}]}",
        'attach.prefill[0].url: expected a URL such as http://127.0.0.1:8100, got "host" (line 17)',
    ),
    ("expect: [{match: {decode_tp: 1}}]", "expect[0].xfail: is required (line 16)"),
    ("expect: [{match: {}, xfail: {reason: r}}]", "expect[0].match: must not be empty (line 16)"),
]


@pytest.mark.parametrize(("added", "message"), ADDED_REFUSED, ids=[a for a, _ in ADDED_REFUSED])
def test_a_mistake_beside_the_cell(added: str, message: str) -> None:
    assert problem(BASE + added + "\n").startswith(message)


NOT_YAML = [
    ("", "is empty"),
    ("- a\n", "expected `key: value` lines at the top"),
    ("a: [1\n", "not YAML: expected ',' or ']', but got '<stream end>' (line 2)"),
    ("a: b: c\n", "not YAML: mapping values are not allowed here (line 1)"),
    ("a: 1\n---\nb: 1\n", "not YAML: but found another document (line 2)"),
    ("? [a]\n: 1\n", "a key must be plain text (line 1)"),
    ("a: !!python/name:os.system\n", "a: the tag tag:yaml.org,2002:python/name:os.system is not supported (line 1)"),
    ("a: &x [*x]\n", "a[0]: an alias that contains itself (line 1)"),
    ("a: {<<: 1}\n", "a: << takes a mapping or a list of mappings (line 1)"),
    ("a: \x07\n", "not YAML:"),
]


@pytest.mark.parametrize(("text", "message"), NOT_YAML)
def test_what_is_not_yaml_is_refused(text: str, message: str) -> None:
    assert problem(text).startswith(message)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    cases = [(tmp_path / "no.yaml", "no such file"), (tmp_path, "cannot be read: Is a directory")]
    binary = tmp_path / "b.yaml"
    binary.write_bytes(b"\xff\xfe\x00")
    for path, message in [*cases, (binary, "not a UTF-8 text file")]:
        with pytest.raises(ConfigError) as caught:
            load_config(path)
        assert str(caught.value) == f"{path}: {message}"
        assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("on", "on"),
        ("12:30", "12:30"),
        ("2024-01-01", "2024-01-01"),
        ("1e-3", 1e-3),
        ("010", "010"),
        ("08", "08"),
        ("-0.25", -0.25),
        ("1.5e+3", 1500.0),
        ("1234e56", "1234e56"),
        ("0x10", "0x10"),
        ("true", True),
        ("~", None),
        ("", None),
        (".5", 0.5),
        ("1_000", "1_000"),
        ("'7'", "7"),
    ],
)
def test_scalars_are_those_of_yaml_1_2_and_no_name_becomes_a_number(text: str, value: Any) -> None:
    found = parse_yaml(f"a: {text}\n", "x").data["a"]
    assert found == value
    assert type(found) is type(value)


def test_merge_keys_and_anchors() -> None:
    data = parse_yaml("a: &a {x: 1, y: 2}\nb: {<<: *a, y: 3}\nc: *a\n", "x").data
    assert data["b"] == {"x": 1, "y": 3}
    assert data["c"] == {"x": 1, "y": 2}


def test_matrix_include_and_zipped_axes() -> None:
    config = parse(
        BASE
        + 'matrix:\n  "prefill.tp, decode.tp": [[1, 1], [1, 2]]\n  async_scheduling: [true, false]\n'
        + "include:\n  - decode: {tp: 4, args: {block-size: 64}}\n"
        + "    kv_transfer_config.kv_load_failure_policy: recompute\n"
    )
    shapes = [(c.settings.prefill.tp, c.settings.decode.tp, c.settings.async_scheduling) for c in config.cells]
    assert shapes == [(1, 1, True), (1, 1, False), (1, 2, True), (1, 2, False), (1, 4, True)]
    last = config.cells[-1].settings
    assert last.decode.args == {"block-size": 64}
    assert last.kv_transfer_config.model_dump() == {
        "kv_connector": "NixlConnector",
        "kv_load_failure_policy": "recompute",
    }


def test_include_alone_lists_the_cells() -> None:
    config = parse(BASE + "include: [{decode.tp: 2}, {kv_transfer_config: {kv_connector: Other}}]\n")
    assert [c.settings.decode.tp for c in config.cells] == [2, 1]
    assert config.cells[1].settings.kv_transfer_config.model_dump() == {"kv_connector": "Other"}


def test_the_base_cell_is_not_changed_by_its_cells() -> None:
    config = parse(BASE + "matrix: {decode.args.x: [1, 2], decode.env.Y: [a, b]}\n")
    assert [(c.settings.decode.args["x"], c.settings.decode.env["Y"]) for c in config.cells] == [
        *((1, "a"), (1, "b"), (2, "a"), (2, "b"))
    ]
    assert config.sweep.cell["decode"] == {"tp": 1}


# What PyYAML writes for the text 1e-3 is the number to people, and here.
PRINTABLE = st.text(st.characters(exclude_categories=["Cc", "Cf", "Cs"])).filter(
    lambda text: not re.fullmatch(r"[-+]?[0-9]+[eE]-[0-9]+", text)
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | PRINTABLE,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(PRINTABLE, inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(PRINTABLE, JSON, max_size=4))
def test_what_yaml_writers_write_comes_back(data: dict[str, Any]) -> None:
    text = yaml.safe_dump({"a": data})
    assert parse_yaml(text, "x").data == {"a": data}


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused_in_one_line(text: str) -> None:
    try:
        parse(text)
    except ConfigError as error:
        assert "\n" not in str(error)
