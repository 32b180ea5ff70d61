"""`streampca transform` as a process: its signals."""

import gc
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.typing import EventDict

from streampca.cli import transform
from streampca.settings.commands import TransformSettings
from tests.example_models import TOPIC


@pytest.fixture
def restored_process() -> Iterator[None]:
    """Undo what the command does to its process."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)
    gc.unfreeze()


@pytest.mark.usefixtures("restored_process", "restored_logging")
def test_a_signal_ends_transform_while_it_waits_for_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logs: list[EventDict]
) -> None:
    monkeypatch.setattr(time, "sleep", lambda seconds: signal.raise_signal(signal.SIGTERM))
    settings = TransformSettings(topic=TOPIC, output_topic="projected", store=tmp_path, metrics_port=0)  # type: ignore[call-arg]
    transform.run(settings)
    assert [line["event"] for line in logs][-2:] == ["waiting for model", "transform ended"]
