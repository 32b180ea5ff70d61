"""A command that ends because of an error: its last line of the log, in the format that was asked for."""

import json
from pathlib import Path

import pytest
import structlog

from streampca.cli.options import settings_of
from streampca.demo.processes import ChildProcess
from streampca.errors import SettingsError, StreampcaError

pytestmark = pytest.mark.usefixtures("restored_logging")


def ended_by(error: Exception, capture: pytest.CaptureFixture[str], **options: str) -> tuple[object, str]:
    """The exit code and the log of a command that raises the error."""

    def command() -> None:
        with settings_of("LogSettings", {}, logs_errors=True):
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
    exit_code, text = ended_by(error, capsys)
    last = json.loads(text.splitlines()[-1])
    assert (exit_code, last["exit_code"]) == (code, code)
    assert (last["level"], last["event"], last["error"]) == ("error", "fatal error", "no broker")
    assert "Traceback" not in text


def test_an_unexpected_error_is_one_line_with_its_traceback_in_a_field(capsys: pytest.CaptureFixture[str]) -> None:
    code, text = ended_by(TypeError("bad\ncall"), capsys)
    last = json.loads(text.splitlines()[-1])
    assert (code, last["level"], last["event"]) == (1, "error", "unexpected error")
    assert last["error"] == "TypeError: bad\ncall"
    assert last["exception"].startswith("Traceback")
    assert "raise error" in last["exception"]


def test_a_mistake_in_the_settings_of_the_log_is_logged_too(capsys: pytest.CaptureFixture[str]) -> None:
    code, text = ended_by(StreampcaError("not reached"), capsys, log_level="loud")
    assert code == 2
    assert json.loads(text.splitlines()[-1])["error"].startswith("log_level: ")


@pytest.mark.slow  # a process
def test_the_demo_shows_the_error_of_a_process_that_has_ended(tmp_path: Path) -> None:
    child = ChildProcess(["serve"], {"topic": "a/b"}, tmp_path / "log")
    assert child.wait(30) == 2
    with pytest.raises(StreampcaError, match=r"serve exited with code 2: topic: "):
        child.verify()
