"""A plan that takes seconds: two small data sets under the names of the paper's."""

from pathlib import Path

import numpy as np
import pytest

from experiments import anomalies, figure1, gaps, methods, partitions, passes
from experiments.datasets import Data
from experiments.plan import Plan

SMALL_TIMES = {  # they mean nothing here
    "ROUNDS": 2, "MESSAGES": 50, "BEFORE": 400, "REPETITIONS": 2, "OWN": {"sklearn": 100, "default": 300},
    "DIMENSIONS": (40,), "D": {"mnist": 40, "cifar10": 40}, "KS": (2, 5, 10, 20), "SIZES": (1, 50),
}  # fmt: skip


def small_data(seed: int, d: int = 40) -> Data:
    """Images of ten classes, as bytes."""
    rng = np.random.default_rng(seed)
    y = rng.integers(10, size=1200)
    centres = rng.normal(128, 30, size=(10, d))
    noise = (rng.standard_normal((len(y), d)) * np.linspace(40, 4, d)) @ np.linalg.qr(rng.standard_normal((d, d)))[0]
    return Data.of(np.clip(centres[y] + noise, 0, 255).astype(np.uint8), y)


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    """One run of every method on the small data."""
    monkeypatch.setattr(passes, "GRID", (0.1, 1.0, 10.0))
    monkeypatch.setattr(passes, "BEYOND", (100.0,))
    for name, small in SMALL_TIMES.items():
        monkeypatch.setattr(figure1, name, small)
    monkeypatch.setattr(partitions, "PARTITIONS", (4, 10))
    monkeypatch.setattr(methods, "SKLEARN_BATCH", 100)
    monkeypatch.setattr(anomalies, "EVERY", 40)
    monkeypatch.setattr(gaps, "COMPONENTS", (2,))
    monkeypatch.setattr(gaps, "SHOWN", 2)
    data = {"mnist": small_data(0), "cifar10": small_data(1)}
    return Plan(data, tmp_path, runs=1, every=100)
