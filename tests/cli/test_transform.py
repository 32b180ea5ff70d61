"""`streampca transform` as a process: its signals."""

import gc
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from streampca.cli import transform
from streampca.settings.commands import TransformSettings
from tests.example_models import TOPIC, models_in, numbered


@pytest.fixture
def restored_process() -> Iterator[None]:
    """Undo what the command does to its process."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)
    gc.unfreeze()


@pytest.mark.usefixtures("restored_process", "restored_logging")
def test_a_signal_while_it_connects_to_brokers_stops_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models_in(tmp_path).save(numbered(7))
    causes: list[str] = []

    def build(*arguments: object) -> SimpleNamespace:
        signal.raise_signal(signal.SIGTERM)
        return SimpleNamespace(stop=causes.append, run=lambda: None)

    monkeypatch.setattr(transform, "_build", build)
    settings = TransformSettings(topic=TOPIC, output_topic="projected", store=tmp_path, metrics_port=0)  # type: ignore[call-arg]
    transform.run(settings)
    assert causes == ["SIGTERM"]
