"""Runs the command line, and checks its errors."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.forked import ForkedProcess


def variables(settings: Mapping[str, object]) -> dict[str, str]:
    """The variables of the environment that stand for settings."""
    return {f"STREAMPCA_{name.upper()}": str(value) for name, value in settings.items()}


def run(*arguments: object, timeout: float = 60, **environment: str) -> subprocess.CompletedProcess[str]:
    """The outcome of `streampca` with these arguments and environment variables, in a forked process."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("STREAMPCA_")}
    inherited["STREAMPCA_KAFKA_CLIENT"] = os.environ.get("STREAMPCA_KAFKA_CLIENT", "kafka-python")
    if arguments[0] in ("worker", "transform", "doctor"):
        inherited["STREAMPCA_METRICS_PORT"] = "0"  # others may listen on the default one
    with tempfile.TemporaryDirectory() as folder:
        output, errors = Path(folder) / "output", Path(folder) / "errors"
        process = ForkedProcess([str(a) for a in arguments], {**inherited, **environment}, output, errors)
        try:
            code = process.wait(timeout)
        finally:
            process.kill()
        return subprocess.CompletedProcess(arguments, code, output.read_text(), errors.read_text())


def printed(*arguments: object, **environment: str) -> str:
    """What `streampca` prints with these arguments and variables. It must succeed."""
    outcome = run(*arguments, **environment)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    return outcome.stdout


def succeeded(*command: object, timeout: float = 300, **options: Any) -> str:
    """What another program than `streampca` prints. It must succeed; the options are those of `subprocess.run`."""
    words = [str(word) for word in command]
    outcome: subprocess.CompletedProcess[str] = subprocess.run(
        words, capture_output=True, text=True, timeout=timeout, check=False, **options
    )
    assert outcome.returncode == 0, f"{words}\n{outcome.stdout[-4000:]}\n{outcome.stderr[-4000:]}"
    return outcome.stdout


def output_of(program: str, *arguments: str, **environment: str) -> str:
    """What a Python program prints, without whitespace around it; it must succeed."""
    return succeeded(sys.executable, "-c", program, *arguments, env=os.environ | environment).strip()


def doctor(*words: object, **environment: str) -> tuple[int, dict[str, str]]:
    """Run `doctor`; return its exit code and, by the name of the check, its line."""
    outcome = run("doctor", *words, **environment)
    assert outcome.stderr == ""
    lines = [line.partition(": ") for line in outcome.stdout.splitlines() if ": " in line]
    return outcome.returncode, {head[2:]: head[0] + " " + text for head, _, text in lines}


def assert_one_line(outcome: subprocess.CompletedProcess[str], needle: str, code: int = 1) -> None:
    assert outcome.returncode == code, outcome.stderr
    lines = outcome.stderr.strip().splitlines()
    assert len(lines) == 1, outcome.stderr
    assert lines[0].startswith("streampca: ")
    assert needle in lines[0]


def assert_fatal(outcome: subprocess.CompletedProcess[str], needle: str, code: int = 1) -> None:
    """The last line of the log is the error, in the log's format, and there is no traceback."""
    assert outcome.returncode == code, outcome.stderr
    events = [json.loads(line) for line in outcome.stderr.splitlines()]
    assert [event["event"] for event in events if event["level"] == "error"] == ["fatal error"], events
    assert needle in events[-1]["error"]
    assert (events[-1]["exit_code"], "exception" in events[-1]) == (code, False)
