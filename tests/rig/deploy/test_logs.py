"""What is read out of logs: shapes of real vLLM output, of shells and of the C++ runtime."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rig.deploy import logs
from rig.deploy.logs import LogTail, decisive_line, engine_dead, progress, read_between, size


def logged(source: str, body: str, level: str = "ERROR") -> str:
    return "\n".join(f"({source} pid=7) {level} 11-29 19:49:43 [core.py:1512] {line}" for line in body.split("\n"))


CAUSE = "The above exception was the direct cause of the following exception:"
HANDLING = "During handling of the above exception, another exception occurred:"
FRAMES = 'Traceback (most recent call last):\n  File "x.py", line 1, in f\n    f()\n    ^^^\n'


def traceback(*exceptions: str, link: str = CAUSE) -> str:
    parts = [f"{FRAMES}{exception}" for exception in exceptions]
    return f"\n\n{link}\n\n".join(parts)


DEAD = "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above)."
BF16 = "AssertionError: CPU GDN attention requires BF16."
WORKER_SAID = "RuntimeError: Worker failed with error 'CPU GDN attention requires BF16.', please check the stack trace"
FIRST_REQUEST = "\n".join(
    [
        logged("APIServer", "Found ulimit of 20000, errors like `OSError: [Errno 24] Too many`.", "WARNING"),
        logged("Worker", "WorkerProc hit an exception.\n" + traceback(BF16) + "\n" + traceback(BF16)),
        logged("EngineCore", "Dumping input data for V1 LLM engine"),
        logged("EngineCore", "EngineCore encountered a fatal error.\n" + traceback(WORKER_SAID)),
        logged("APIServer", "AsyncLLM output_handler failed.\n" + traceback(DEAD)),
        'INFO:     127.0.0.1:51970 - "POST /v1/completions HTTP/1.1" 500 Internal Server Error',
        "nanobind: leaked 4 instances!",
        "  warnings.warn('resource_tracker: There appear to be %d '",
    ]
)
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
TWO_RANKS = "\n".join(
    f"(Worker_TP{rank} pid={rank}) ERROR 11-29 19:49:43 [multiproc_executor.py:1063] {line}"
    for lines in zip(
        ["WorkerProc hit an exception.", *traceback(OOM).split("\n")],
        ["WorkerProc hit an exception.", *traceback("RuntimeError: Connection closed by peer").split("\n")],
        strict=True,
    )
    for rank, line in enumerate(lines)
)
PYDANTIC = (
    "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig\n"
    "  Value error, Invalid repository ID or local directory specified: '/x'.\n"
    "Please verify the following requirements:"
)

CASES = [
    ("the engine dies at its first request", FIRST_REQUEST, BF16),
    ("interleaved ranks, the first is the cause", TWO_RANKS, OOM),
    ("start failure in the engine, then in the launcher",
     logged("EngineCore", "EngineCore failed to start.\n" + traceback("ValueError: No available memory"))
     + "\n(EngineCore pid=7) Process EngineCore:\n(EngineCore pid=7) " + "\n(EngineCore pid=7) ".join(
         traceback("ValueError: No available memory").split("\n"))
     + "\n" + traceback("RuntimeError: Engine core initialization failed. Failed core proc(s): {}"),
     "ValueError: No available memory"),
    ("port taken",
     traceback("OSError: [Errno 98] Address already in use"), "OSError: [Errno 98] Address already in use"),
    ("a harmless report, later the failure",
     logged("APIServer", traceback("ValueError: prompt too long")) + "\n"
     + logged("EngineCore", "EngineCore encountered a fatal error.\n" + traceback(OOM)), OOM),
    ("a warning with a traceback is no cause",
     traceback("OSError: no such model") + "\n" + logged("APIServer", traceback("ImportError: no triton"), "WARNING"),
     "OSError: no such model"),
    ("raised from", traceback("KeyError: 'a'", "ValueError: bad config"), "KeyError: 'a'"),
    ("raised while handling", traceback(OOM, DEAD, link=HANDLING), OOM),
    ("a consequence first", traceback(DEAD, "ValueError: late", link=HANDLING), "ValueError: late"),
    ("pydantic's second line", traceback(PYDANTIC),
     "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig: "
     "Value error, Invalid repository ID or local directory specified: '/x'."),
    ("a worker killed from outside",
     logged("EngineCore", "Worker proc VllmWorker-0 died unexpectedly (exit code: -9), shutting down executor.") + "\n"
     + logged("APIServer", traceback(DEAD)),
     "Worker proc VllmWorker-0 died unexpectedly (exit code: -9), shutting down executor."),
    ("only what the engine heard from its worker",
     logged("EngineCore", "EngineCore encountered a fatal error.\n" + traceback(WORKER_SAID)), WORKER_SAID),
    ("only a consequence", traceback(DEAD), DEAD),
    ("assert without a message", traceback("AssertionError"), "AssertionError"),
    ("torch's rank prefix", "[rank0]: " + "\n[rank0]: ".join(traceback(OOM).split("\n")), OOM),
    ("argparse", "usage: vllm serve\nvllm serve: error: unrecognized arguments: --foo",
     "vllm serve: error: unrecognized arguments: --foo"),
    ("no command", "/opt/vllm: No such file or directory", "/opt/vllm: No such file or directory"),
    ("C++", "terminate called after throwing an instance of 'std::runtime_error'\n  what():  no device\n",
     "what():  no device"),
    ("an import that fails",
     "ModuleNotFoundError: No module named 'vllm'", "ModuleNotFoundError: No module named 'vllm'"),
    ("a step of Slurm's that ended by itself",
     "slurmstepd: error: execve(): python3: No such file or directory\nsrun: error: n: task 0: Exited with exit code 2",
     "slurmstepd: error: execve(): python3: No such file or directory"),
    ("a node of Slurm's that is lost", "Application startup complete.\nsrun: error: Node failure on n2",
     "srun: error: Node failure on n2"),
    ("an error line alone", logged("APIServer", "boom") + "\nbye", "boom"),
    ("colours", "\x1b[31m" + logged("APIServer", "boom") + "\x1b[0m", "boom"),
    ("nothing tells", logged("APIServer", "Starting vLLM server", "INFO") + "\nbye", None),
    ("empty", "", None),
]  # fmt: skip


@pytest.mark.parametrize(("text", "line"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_decisive_line(text: str, line: str | None) -> None:
    assert decisive_line(text) == line


@given(st.text())
def test_any_text_can_be_read(text: str) -> None:
    decisive_line(text)
    engine_dead(text)
    progress(text)


DEATHS = [
    ("(EngineCore pid=7) ERROR 11-29 19:49:43 [core.py:1512] EngineCore encountered a fatal error.", True),
    ("(EngineCore pid=7) ERROR 11-29 19:49:43 [core.py:1510] EngineCore failed to start.", True),
    ("(EngineCore pid=7) Process EngineCore:", True),
    ("Process EngineCore_DP0:", True),
    (
        "WARNING 11-29 19:49:43 [core_client.py:817] [shutdown] MPClient: engine core exited unexpectedly; starting",
        True,
    ),
    ("ERROR 11-29 19:49:43 [x.py:1] Worker proc VllmWorker-1 died unexpectedly (exit code: -9), shutting", True),
    ("RuntimeError: Engine core process EngineCore died unexpectedly.", True),
    ("ERROR 11-29 19:49:43 [x.py:1] RayWorkerProc rank=3 died unexpectedly, shutting down executor.", True),
    (DEAD, True),
    ("RuntimeError: Engine core initialization failed. See root cause above.", True),
    ("Fatal Python error: Segmentation fault", True),
    ("INFO 11-29 19:49:43 [logger.py:1] Received request: prompt: 'What is an EngineDeadError?'", False),
    ("(Worker pid=7) ERROR 11-29 19:49:43 [multiproc_executor.py:1063] WorkerProc hit an exception.", False),
    ("ERROR 11-29 19:49:43 [serving.py:1] ValueError: prompt too long", False),
    ("Process SpawnProcess-1 is ready", False),
    ("", False),
]


@pytest.mark.parametrize(("line", "dead"), DEATHS)
def test_engine_dead(line: str, dead: bool) -> None:
    assert (engine_dead(line) is not None) is dead


PROGRESS = [
    ("Loading safetensors checkpoint shards:  50% Completed | 1/2 [00:00<00:00, 19.47it/s]", "loading weights 50%"),
    ("Capturing CUDA graphs (mixed prefill-decode, PIECEWISE):  40%|####", "capturing CUDA graphs 40%"),
    ("(Worker pid=7) INFO 11-29 19:49:35 [cpu_model_runner.py:68] Starting to load model /m...", "loading the model"),
    ("INFO:     Application startup complete.", "HTTP server up"),
    ("INFO:     Started server process [7]", None),
]


@pytest.mark.parametrize(("line", "text"), PROGRESS)
def test_progress(line: str, text: str | None) -> None:
    assert progress(line) == text


def test_a_growing_log_is_read_once(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    tail = LogTail(log)
    assert tail.read_new() == []
    with log.open("ab", buffering=0) as file:
        file.write(b"one\ntw")
        assert tail.read_new() == ["one"]
        file.write(b"o 50%\rtwo 100%\r\n\nthree")
        assert tail.read_new() == ["two 50%", "two 100%"]
        assert tail.read_new() == []
        assert tail.text() == "one\ntwo 50%\ntwo 100%\nthree"
    os.truncate(log, 0)
    log.write_bytes(b"new\n")
    assert tail.read_new() == ["new"]
    assert LogTail(log, from_end=True).read_new() == []


@given(
    lines=st.lists(st.text("abcä☃ ", max_size=30), max_size=20),
    cut=st.tuples(st.integers(0, 20), st.integers(0, 20)),
    chunk=st.integers(100, 160),
)
def test_a_log_is_read_between_two_sizes(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], cut: tuple[int, int], chunk: int
) -> None:
    path = tmp_path_factory.mktemp("log") / "log"
    path.write_text("".join(f"{line}\n" for line in lines))
    first, last = sorted(min(at, len(lines)) for at in cut)
    start, end = (len("".join(f"{line}\n" for line in lines[:at]).encode()) for at in (first, last))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logs, "READ_BYTES", chunk)
        found = list(read_between(path, start, end))
    assert found == [line for line in lines[first:last] if line]


def test_an_unfinished_line_a_new_log_and_no_log_at_all(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("one\r\ntwo\rthree")
    assert list(read_between(path, 0, size(path))) == ["one", "two", "three"]
    assert list(read_between(path, size(path), size(path))) == []
    assert list(read_between(path, 1000, size(path))) == ["one", "two", "three"], "it was begun anew"
    assert list(read_between(tmp_path / "none", 0, 10)) == [] and size(tmp_path / "none") == 0
