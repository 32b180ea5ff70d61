"""A process that has lost one of its threads ends with that thread's error."""

import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from streampca.cli import member
from streampca.consumer_group import health
from streampca.process import start
from streampca.process.start import ThreadFailures
from streampca.settings.worker import WorkerSettings
from streampca.worker.log import WorkerLog
from streampca.worker.metrics import WorkerMetrics

TIMEOUT_S = 20.0


def fail(*_: object) -> None:
    raise RuntimeError(f"injected into {threading.current_thread().name}")


def run_thread(name: str) -> None:
    thread = threading.Thread(target=fail, name=name)
    thread.start()
    thread.join(TIMEOUT_S)


def test_the_first_error_of_a_thread_is_raised_and_reported() -> None:
    before, notified = threading.excepthook, list[str]()
    with ThreadFailures() as threads:
        threads.notify = lambda: notified.append(threading.current_thread().name)
        threads.raise_first()
        for name in ("one", "two"):
            run_thread(name)
        with pytest.raises(RuntimeError, match="injected into one"):
            threads.raise_first()
    assert notified == ["one", "two"]
    assert threading.excepthook is before


@pytest.fixture
def _process_settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Keep what `member_process` sets for the whole process from this one."""
    monkeypatch.setattr(start, "keep_freed_memory", lambda: None)
    interval = sys.getswitchinterval()
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("_process_settings")
@pytest.mark.parametrize("name", ["client", "health"])
def test_a_member_ends_with_the_error_of_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A thread of a Kafka client, or the one that answers `/metrics`; those of prefetch and writer hand theirs over."""
    if name == "health":
        monkeypatch.setattr(health.HealthServer, "service_actions", fail)
    options = {"topic": "readings", "dimensions": 2, "components": 1, "store": str(tmp_path), "metrics_port": 0}
    settings = WorkerSettings.read(None, **options)

    def lose_the_thread() -> None:
        with member.member_process(settings, WorkerMetrics("readings"), WorkerLog()):
            if name == "client":
                run_thread(name)
            for thread in threading.enumerate():
                if thread.name == name:
                    thread.join(TIMEOUT_S)

    with pytest.raises(RuntimeError, match=f"injected into {name}"):
        lose_the_thread()
