"""Endless streams of random vectors: with a low-rank structure, or of the sensors of a machine."""

import itertools
import time
from collections.abc import Sequence

import numpy as np

from streampca.files.rows import Rows, batch_of_vectors, rows_of_batch
from streampca.pca.angles import principal_angles
from streampca.pca.arrays import F32, F64, Array

_NOISE = 0.5  # standard deviation in every direction
_FAULT, _FAULT_EVERY = 5.0, 101  # standard deviations; readings: prime, so that every partition has faults

# Mean, standard deviation, and correlations with the causes: load, heat and demand.
MACHINE = {
    "temperature": (62.0, 6.0, (0.75, 0.6, 0.0)),  # °C
    "humidity": (45.0, 8.0, (-0.2, -0.9, 0.0)),  # %
    "pressure": (640.0, 25.0, (-0.5, 0.0, 0.8)),  # kPa
    "vibration": (2.4, 0.3, (0.8, 0.0, 0.5)),  # mm/s
    "current": (18.0, 2.5, (0.95, 0.1, 0.0)),  # A
    "speed": (1450.0, 60.0, (0.9, 0.0, 0.3)),  # 1/min
    "flow": (210.0, 18.0, (0.3, 0.0, 0.9)),  # l/min
    "power": (7.5, 1.1, (0.95, 0.0, 0.2)),  # kW
}


class LowRank:
    """y = mean + Σ σᵢ zᵢ uᵢ + noise: k directions of decreasing variance in d dimensions of white noise.

    It takes thousands of messages to distinguish the weakest direction from the noise, so learning can be watched.
    """

    def __init__(self, dimensions: int = 128, components: int = 8, seed: int = 0) -> None:
        self._random = np.random.default_rng(seed)
        Q, _ = np.linalg.qr(self._random.standard_normal((dimensions, components)))
        self.basis: F64 = Q.T  # (k, d), orthonormal rows
        self.deviations = np.geomspace(4.0, 1.0, components)  # σ
        self.mean = 3.0 * self._random.standard_normal(dimensions)

    @property
    def loss_ratio(self) -> float:
        """Share of the variance that lies outside the subspace: the loss of the best model."""
        k, d = self.basis.shape
        noise = _NOISE**2
        return float((d - k) * noise / (d * noise + (self.deviations**2).sum()))

    def coverage(self, components: Array) -> float:
        """Share of the subspace that the components (k, d) cover: the mean squared cosine of the angles between."""
        return float(np.square(np.cos(self._angles(components))).mean())

    def largest_angle(self, components: Array) -> float:
        """The largest angle between the two subspaces, in degrees."""
        return float(np.degrees(self._angles(components)[-1]))

    def _angles(self, components: Array) -> F64:
        return principal_angles(self.basis, np.asarray(components, np.float64))

    def draw(self, n: int) -> F32:
        k, d = self.basis.shape
        signal = (self._random.standard_normal((n, k)) * self.deviations) @ self.basis
        return (self.mean + signal + _NOISE * self._random.standard_normal((n, d))).astype(np.float32)

    def rows(self) -> Rows:
        """The stream as the rows of a file that does not end."""
        d = self.basis.shape[1]
        batches = (batch_of_vectors(self.draw(min(256, rows_of_batch(d))), 0.0) for _ in itertools.count())
        return Rows("synthetic", d, lambda: batches)


def generated(names: Sequence[str] | None, dimensions: int | None) -> Rows:
    """Readings where the dimensions have names, else vectors of 128 dimensions unless they are given."""
    d = dimensions or 128
    return Sensors(names).rows() if names else LowRank(d, min(d, 8)).rows()


class Sensors:
    """Readings of a machine's sensors, which follow three causes; every 101st of the fourth sensor is a fault.

    A fault is 5 standard deviations too high, which no cause explains. Names that are not in `MACHINE` get the figures
    of its sensors, in turn.
    """

    def __init__(self, names: Sequence[str] = tuple(MACHINE)) -> None:
        in_turn = zip(names, itertools.cycle(MACHINE.values()))
        mean, deviation, causes = zip(*(MACHINE.get(name, figures) for name, figures in in_turn), strict=True)
        self.names, self._random = tuple(names), np.random.default_rng(0)
        self._mean, self._deviation, self._causes = np.array(mean), np.array(deviation), np.array(causes)  # (d, 3)

    def draw(self, n: int) -> F64:
        """Readings (n, d), of which the last is a fault."""
        d, causes = self._causes.shape
        noise = np.sqrt(1 - (self._causes**2).sum(axis=1)) * self._random.standard_normal((n, d))
        readings = self._random.standard_normal((n, causes)) @ self._causes.T + noise
        readings[-1, min(3, d - 1)] += _FAULT
        return np.asarray((self._mean + self._deviation * readings).round(3))

    def rows(self) -> Rows:
        """The readings as the rows of a file that does not end."""
        n, machine = _FAULT_EVERY, np.full(_FAULT_EVERY, "pump-1")
        batches = (
            batch_of_vectors(self.draw(n), 0.0)._replace(
                columns={"machine": machine, "at": np.full(n, time.time_ns() // 1_000_000)}
            )
            for _ in itertools.count()
        )
        return Rows("synthetic", len(self.names), lambda: batches, names=list(self.names))
