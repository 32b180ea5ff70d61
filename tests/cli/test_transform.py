"""`streampca transform` as a process: its signals."""

import gc
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from structlog.typing import EventDict

from streampca.cli import transform
from streampca.cli.transform_start import create_codec
from streampca.cli.worker_config import create_worker_config
from streampca.settings.commands import TransformSettings, WorkerSettings
from tests.example_models import TOPIC, D, numbered


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


def test_transform_knows_missing_values_from_the_model_that_a_worker_learned() -> None:
    model = {"dimensions": D, "components": 2, "missing": "impute", "missing_values": "-9999.9", "dtype": "float32"}
    worker = create_worker_config(WorkerSettings(topic=TOPIC, **model))  # type: ignore[arg-type]
    published = replace(numbered(1), settings=worker.fold.as_dict())
    transform_settings = TransformSettings(topic=TOPIC, output_topic="projected")  # type: ignore[call-arg]
    value = b"[1.0, -9999.9, 2.0, 3.0, 4.0]"
    for codec in (worker.codec, create_codec(transform_settings, published)):
        assert np.isnan(codec.decode([value]).vectors).tolist() == [[False, True, False, False, False]]
