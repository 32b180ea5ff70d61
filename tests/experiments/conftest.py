"""A plan that takes seconds: two small data sets under the names of the paper's."""

from pathlib import Path

import numpy as np
import pytest

from experiments import ablation, anomalies, figure1, gaps, methods, partitions, passes, rate
from experiments.datasets import Data
from experiments.plan import Plan

SMALL = {  # the times mean nothing here
    anomalies: {"EVERY": 40, "READINGS": 900},
    ablation: {
        "STREAMS": dict(list(ablation.STREAMS.items())[:2]), "MESSAGES": 300, "BEFORE": 300,
        "HALF_LIVES": ("none", "100"), "COLUMNS": {"mnist": (0, 20), "cifar10": (2,)}, "WIDE": 8,
    },
    figure1: {
        "ROUNDS": 2, "MESSAGES": 50, "BEFORE": 400, "REPETITIONS": 2, "OWN": {"sklearn": 100, "default": 300},
        "DIMENSIONS": (40,), "D": {"mnist": 40, "cifar10": 40}, "KS": (2, 5, 10, 20), "SIZES": (1, 50),
    },
    gaps: {"COMPONENTS": (2,), "SHOWN": 2},
    methods: {"SKLEARN_BATCH": 100},
    partitions: {"PARTITIONS": (4, 10)},
    passes: {"GRID": (1.0, 10.0), "BEYOND": (100.0,), "FINALISTS": 1},
    rate: {"RUNS": 2, "MESSAGES": 3200, "RATIOS": (0.25, 0.75)},
}  # fmt: skip


def small_data(seed: int, d: int = 40) -> Data:
    """Images of ten classes, as bytes."""
    rng = np.random.default_rng(seed)
    y = rng.integers(10, size=800)
    centres = rng.normal(128, 30, size=(10, d))
    noise = (rng.standard_normal((len(y), d)) * np.linspace(40, 4, d)) @ np.linalg.qr(rng.standard_normal((d, d)))[0]
    return Data.of(np.clip(centres[y] + noise, 0, 255).astype(np.uint8), y)


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    """One run of every method on the small data."""
    for module, constants in SMALL.items():
        for name, value in constants.items():
            monkeypatch.setattr(module, name, value)
    data = {"mnist": small_data(0), "cifar10": small_data(1)}
    return Plan(data, tmp_path, runs=1, every=100)
