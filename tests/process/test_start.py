"""A command that ends because of an error, also of one of its threads: the last line of the log has it."""

import json
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import structlog
import uvicorn

from streampca.cli.options import read_settings
from streampca.consumer_group.process import member_process
from streampca.demo.processes import ChildProcess
from streampca.errors import SettingsError, StreampcaError
from streampca.process import start
from streampca.settings.commands import WorkerSettings
from streampca.stores.choice import open_store
from streampca.worker.log import WorkerLog
from streampca.worker.metrics import WorkerMetrics
from tests.errors import refusal
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.usefixtures("restored_logging")

TIMEOUT_S = 20.0


def run_failing_command(error: Exception, capture: pytest.CaptureFixture[str], **options: str) -> tuple[object, str]:
    """Run a command that raises the error, and return its exit code and its log."""

    def command() -> None:
        with read_settings("LogSettings", {}, logs_errors=True):
            structlog.get_logger().info("worker started")
            raise error

    with pytest.MonkeyPatch.context() as patch:
        for name, value in options.items():
            patch.setenv(f"STREAMPCA_{name.upper()}", value)
        with pytest.raises(SystemExit) as ended:
            command()
    return ended.value.code, capture.readouterr().err


@pytest.mark.parametrize(("error", "code"), [(StreampcaError("no\n  broker"), 1), (SettingsError("no\n  broker"), 2)])
def test_an_expected_error_is_the_last_line_without_a_traceback(
    error: Exception, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    exit_code, text = run_failing_command(error, capsys)
    last = json.loads(text.splitlines()[-1])
    assert (exit_code, last["exit_code"]) == (code, code)
    assert (last["level"], last["event"], last["error"]) == ("error", "fatal error", "no broker")
    assert "Traceback" not in text


def test_an_unexpected_error_is_one_line_with_its_traceback_in_a_field(capsys: pytest.CaptureFixture[str]) -> None:
    code, text = run_failing_command(TypeError("bad\ncall"), capsys)
    last = json.loads(text.splitlines()[-1])
    assert (code, last["level"], last["event"]) == (1, "error", "unexpected error")
    assert last["error"] == "TypeError: bad\ncall"
    assert last["exception"].startswith("Traceback")
    assert "raise error" in last["exception"]


def test_a_mistake_in_the_settings_of_the_log_is_logged_too(capsys: pytest.CaptureFixture[str]) -> None:
    code, text = run_failing_command(StreampcaError("not reached"), capsys, log_level="loud")
    assert code == 2
    assert json.loads(text.splitlines()[-1])["error"].startswith("log_level: ")


@pytest.mark.slow  # a process
def test_the_demo_raises_the_error_of_a_process_that_has_ended(tmp_path: Path) -> None:
    child = ChildProcess(["serve"], {"topic": "a/b"}, tmp_path / "log")
    assert child.wait(PATIENCE_S) == 2
    assert "serve exited with code 2: topic: " in refusal(StreampcaError, child.verify)


def fail(*_: object) -> None:
    raise RuntimeError(f"injected into {threading.current_thread().name}")


def fail_in_thread(name: str) -> None:
    thread = threading.Thread(target=fail, name=name)
    thread.start()
    thread.join(TIMEOUT_S)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_during_the_start_ends_the_process_although_c_code_calls_back(number: int) -> None:
    """Where Python code runs in a callback of C code, an exception is printed and dropped."""
    code = f"""
import ctypes, os, time
from streampca.process.start import prepare_process
def callback():
    os.kill(os.getpid(), {number})
    time.sleep(0.1)
with prepare_process():
    ctypes.CFUNCTYPE(None)(callback)()
    print("still here")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (128 + number, "", "")


def test_the_first_error_of_a_thread_is_raised_and_reported() -> None:
    before, notified = threading.excepthook, list[str]()
    with start.ThreadFailures() as threads:
        threads.notify = lambda: notified.append(threading.current_thread().name)
        threads.raise_first_error()
        for name in ("one", "two"):
            fail_in_thread(name)
        assert "injected into one" in refusal(RuntimeError, threads.raise_first_error)
    assert notified == ["one", "two"]
    assert threading.excepthook is before


@pytest.mark.parametrize("name", ["client", "health"])
def test_a_member_ends_with_the_error_of_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A thread of a Kafka client, or the one that answers `/metrics`; those of tasks and writer hand theirs over."""
    monkeypatch.setattr(start, "keep_freed_memory", lambda: None)  # both are of the whole process
    monkeypatch.setattr(sys, "setswitchinterval", lambda seconds: None)
    if name == "health":
        monkeypatch.setattr(uvicorn.Server, "main_loop", fail)
    settings = WorkerSettings.read(
        None, topic="readings", dimensions=2, components=1, store=str(tmp_path), metrics_port=0
    )

    def run_until_a_thread_has_failed() -> None:
        with member_process(
            settings, open_store(tmp_path), WorkerMetrics("readings"), WorkerLog(), {}, lambda _: True, 300.0
        ):
            if name == "client":
                fail_in_thread(name)
            for thread in threading.enumerate():
                if thread.name == name:
                    thread.join(TIMEOUT_S)

    assert f"injected into {name}" in refusal(RuntimeError, run_until_a_thread_has_failed)
