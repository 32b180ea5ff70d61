"""Streams of `benchmarks.streams`: what one is, and synthetic ones that are hard for streaming PCA.

Each stream is a table of rows, the order in which they come, and numbers of components. Synthetic rows depend on the
seed. Real ones: `real_streams.py`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampca.pca.arrays import F64
from streampca.pca.blocked import ritz
from streampca.pca.learning import LearningConfig

Rows = NDArray[Any]
Indices = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Table:
    """Rows, kept as they are and scaled when they are read: (rows[index] − shift) · factor."""

    rows: Rows  # (n, d)
    shift: F64 | float = 0.0
    factor: F64 | float = 1.0

    def __len__(self) -> int:
        return len(self.rows)

    def read(self, index: Indices) -> F64:
        """Some rows (n, d)."""
        return (self.rows[index] - self.shift) * self.factor

    def standardised(self) -> "Table":
        """Columns with mean 0 and variance 1; constant columns stay 0."""
        mean, deviation = self.rows.mean(axis=0, dtype=np.float64), self.rows.std(axis=0, dtype=np.float64)
        return Table(self.rows, mean, 1 / np.where(deviation > 0, deviation, 1.0))


@dataclass(frozen=True, eq=False)
class Stream:
    """One stream and the numbers of components to learn from it."""

    name: str
    order: str
    table: Table
    index: Indices  # the rows in the order in which they come
    components: tuple[int, ...]
    center: bool = True


def held(d: int, k: int) -> int:
    """Columns that our state holds where it keeps a factor, K + ℓ, and so those of rivals."""
    return min(k + LearningConfig(d, k).beyond + ritz.SPARE, d)


def hard(seed: int, size: float = 1.0) -> Iterator[Stream]:
    """Synthetic streams: what a factor cannot see, heavy tails, changes."""
    for number, make in enumerate(_HARD):
        yield from make(np.random.default_rng([seed, number]), size)


def _synthetic(name: str, order: str, X: F64, *components: int, **more: bool) -> Stream:
    return Stream(name, order, Table(X), np.arange(len(X)), components, **more)


def _basis(rng: np.random.Generator, d: int, k: int) -> F64:
    return np.linalg.qr(rng.standard_normal((d, k)))[0]


def _spiked(rng: np.random.Generator, size: float) -> Iterator[Stream]:
    n, d = int(40_000 * size), 100
    X = rng.standard_normal((n, d))
    X += (rng.standard_normal((n, 10)) * np.linspace(8, 2, 10)) @ _basis(rng, d, 10).T
    yield _synthetic("10 factors in noise", "random", X, 5, 10)


def _power_law(rng: np.random.Generator, size: float) -> Iterator[Stream]:
    n, d = int(40_000 * size), 200
    X = (rng.standard_normal((n, d)) * np.arange(1, d + 1) ** -0.5) @ _basis(rng, d, d).T
    yield _synthetic("power-law spectrum", "random", X, 5, 20, 50)


def _categories(rng: np.random.Generator, size: float) -> Iterator[Stream]:
    each, late = int(5_000 * size), int(60_000 * size)
    first = rng.permutation(np.repeat(np.arange(30), each))
    then = rng.permutation(np.repeat(np.arange(30, 35), late))
    X = np.eye(35)[np.concatenate([first, then])]
    yield _synthetic("one-hot: 30 categories, then 5 new", "old, then new", X, 5, 10)


def _devices(rng: np.random.Generator, size: float) -> Iterator[Stream]:
    kinds, sensors, each = 20, 10, int(4_000 * size)
    X = np.zeros((kinds * each, kinds * sensors))
    for kind in range(kinds):
        own = rng.standard_normal((each, sensors)) @ rng.standard_normal((sensors, sensors))
        X[kind * each : (kind + 1) * each, kind * sensors : (kind + 1) * sensors] = own
    yield _synthetic("20 kinds of device, own sensors", "kind after kind", X, 10)
    yield _synthetic("20 kinds of device, own sensors", "shuffled", rng.permutation(X), 10)


def _new_sensors(rng: np.random.Generator, size: float) -> Iterator[Stream]:
    before, after = 5_000, int(40_000 * size)
    X = np.zeros((before + after, 45))
    X[:before, :40] = rng.standard_normal((before, 40))
    X[before:, 40:] = rng.standard_normal((after, 5)) * np.linspace(3, 1, 5)
    yield _synthetic("40 sensors, then only 5 others", "old, then new", X, 5, center=False)


def _heavy_tails(rng: np.random.Generator, size: float) -> Iterator[Stream]:
    n, d = int(40_000 * size), 60
    scale = np.linspace(3, 0.5, d)
    yield _synthetic("Student's t, 3 degrees of freedom", "random", rng.standard_t(3, (n, d)) * scale, 5)
    radius = np.sqrt(3 / rng.chisquare(3, (n, 1)))
    rows = (rng.standard_normal((n, d)) * scale * radius) @ _basis(rng, d, d).T
    yield _synthetic("multivariate t, 3 degrees of freedom", "random", rows, 5)


def _rare(rng: np.random.Generator, size: float) -> Iterator[Stream]:
    n, d = int(40_000 * size), 80
    share = 10.0 ** rng.uniform(-3.5, -0.5, d)
    X = (rng.random((n, d)) < share) / np.sqrt(share * (1 - share))
    yield _synthetic("rare binary features, standardised", "random", X, 10, 20)


def _topics(rng: np.random.Generator, size: float) -> Iterator[Stream]:
    n, d, topics = int(20_000 * size), 300, 15
    words = rng.dirichlet(np.full(d, 0.05), topics)
    mixture = rng.dirichlet(np.full(topics, 0.2), n)
    yield _synthetic("word counts of 15 topics", "random", rng.poisson(60 * mixture @ words).astype(float), 10)


def _sessions(rng: np.random.Generator, size: float) -> Iterator[Stream]:
    """Strong directions that come and go beside a few weak ones that stay."""
    d, each, sessions = 200, int(500 * size), 100
    basis = _basis(rng, d, 105)
    X = 0.1 * rng.standard_normal((sessions * each, d))
    X += (rng.standard_normal((len(X), 5)) * np.linspace(1.5, 1, 5)) @ basis[:, :5].T
    for session in range(sessions):
        rows = slice(session * each, (session + 1) * each)
        X[rows] += 5 * rng.standard_normal((each, 1)) * basis[:, 5 + session]
    yield _synthetic("5 weak directions, 100 strong that come and go", "session after session", X, 5)


def _rotating(rng: np.random.Generator, size: float) -> Iterator[Stream]:
    n, d, k = int(40_000 * size), 60, 5
    start, end = _basis(rng, d, k), _basis(rng, d, k)
    coordinates, share = rng.standard_normal((n, k)) * np.linspace(5, 3, k), np.linspace(0, 1, n)[:, None]
    X = (1 - share) * (coordinates @ start.T) + share * (coordinates @ end.T)
    yield _synthetic("a subspace that turns slowly", "in time", X + 0.5 * rng.standard_normal((n, d)), 5, 10)


def _gains(rng: np.random.Generator, size: float) -> Iterator[Stream]:
    n, d = int(40_000 * size), 60
    X = (rng.standard_normal((n, d)) * np.linspace(2, 0.3, d)) @ _basis(rng, d, d).T
    X *= 10.0 ** np.repeat(rng.uniform(-1, 1, 20), -(-n // 20))[:n, None]
    yield _synthetic("gain that changes 20 times", "in time", X, 5)


def _units(rng: np.random.Generator, size: float) -> Iterator[Stream]:
    n, d = int(40_000 * size), 40
    X = rng.standard_normal((n, 8)) @ rng.standard_normal((8, d)) + 0.3 * rng.standard_normal((n, d))
    yield _synthetic(
        "sensors in units from 1e-3 to 1e3, far offsets", "random", (X + 50) * 10.0 ** rng.uniform(-3, 3, d), 5
    )


def _outliers(rng: np.random.Generator, size: float) -> Iterator[Stream]:
    n, d = int(40_000 * size), 60
    X = rng.standard_normal((n, d)) * np.linspace(3, 0.5, d)
    X[rng.random(n) < 0.001] *= 50
    yield _synthetic("1 in 1000 is 50 times as long", "random", X, 5)


_HARD: tuple[Callable[[np.random.Generator, float], Iterator[Stream]], ...] = (
    _spiked,
    _power_law,
    _categories,
    _devices,
    _new_sensors,
    _heavy_tails,
    _rare,
    _topics,
    _sessions,
    _rotating,
    _gains,
    _units,
    _outliers,
)
