"""Makes endless streams of random vectors: vectors of low rank, or readings of the sensors of a machine."""

import itertools
import time
from collections.abc import Iterator, Sequence

import numpy as np

from streampca.files.rows import FileBatch, Rows, batch_of_vectors, choose_batch_size
from streampca.pca.angles import principal_angles
from streampca.pca.arrays import F32, F64, Array

_NOISE = 0.5  # standard deviation of the noise in every direction
_FAULT = 5.0  # by how many standard deviations a faulty reading is too high
_READINGS_PER_FAULT = 101  # of these, the last one is a fault; a prime number, so that every partition has faults

# Of each sensor: mean, standard deviation, and correlations with the three causes that move all sensors: load, heat and
# demand.
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
    """Vectors with k directions of decreasing variance in white noise: mean + Σ σᵢ zᵢ uᵢ + noise.

    It takes thousands of messages to distinguish the weakest direction from the noise, so learning can be watched.
    """

    def __init__(self, dimensions: int = 128, components: int = 8, seed: int = 0) -> None:
        """Draw the directions uᵢ and the mean at random. The deviations σᵢ fall from 4 to 1."""
        self._random = np.random.default_rng(seed)
        Q, _ = np.linalg.qr(self._random.standard_normal((dimensions, components)))
        self.basis: F64 = Q.T  # (k, d), orthonormal rows
        self.deviations = np.geomspace(4.0, 1.0, components)  # σ
        self.mean = 3.0 * self._random.standard_normal(dimensions)

    @property
    def loss_ratio(self) -> float:
        """Share of the variance that lies outside the subspace: the loss of the best model."""
        k, d = self.basis.shape
        noise_variance = _NOISE**2  # in each of the d directions, of which k are in the subspace
        total_variance = d * noise_variance + (self.deviations**2).sum()
        return float((d - k) * noise_variance / total_variance)

    def coverage(self, components: Array) -> float:
        """Return the share of the subspace that components (k, d) cover: the mean squared cosine of the angles."""
        return float(np.square(np.cos(self._angles(components))).mean())

    def largest_angle(self, components: Array) -> float:
        """Return the largest angle between the subspace and the span of components (k, d), in degrees."""
        return float(np.degrees(self._angles(components)[-1]))

    def _angles(self, components: Array) -> F64:
        """Return the angles between the subspace and the span of components (k, d), in ascending order."""
        return principal_angles(self.basis, np.asarray(components, np.float64))

    def draw(self, n: int) -> F32:
        """Return the next vectors (n, d)."""
        k, d = self.basis.shape
        coordinates = self._random.standard_normal((n, k)) * self.deviations
        noise = _NOISE * self._random.standard_normal((n, d))
        return (self.mean + coordinates @ self.basis + noise).astype(np.float32)

    def rows(self) -> Rows:
        """Return the stream as the rows of a file that does not end."""
        d = self.basis.shape[1]
        batch_size = min(256, choose_batch_size(d))
        # All readers share one iterator, so no vector is read twice. It is endless, so its progress stays 0.
        batches = (batch_of_vectors(self.draw(batch_size), progress=0.0) for _ in itertools.count())
        return Rows("synthetic", d, batches=lambda: batches)


def generate_rows(names: Sequence[str] | None, dimensions: int | None) -> Rows:
    """Return an endless stream: readings of sensors if there are names, otherwise vectors of low rank."""
    if names:
        return Sensors(names).rows()
    d = dimensions or 128
    return LowRank(d, min(d, 8)).rows()


class Sensors:
    """Readings of a machine's sensors, which follow three causes.

    Every 101st reading of the fourth sensor is a fault: 5 standard deviations too high, which no cause explains. A
    sensor whose name is not in `MACHINE` behaves like one of the sensors there.
    """

    def __init__(self, names: Sequence[str] = tuple(MACHINE)) -> None:
        """Prepare to draw readings of sensors with these names."""
        self.names = tuple(names)
        self._random = np.random.default_rng(0)
        # If the i-th name is not in `MACHINE`, its sensor behaves like the i-th sensor there. After the last sensor of
        # `MACHINE`, the first one follows again.
        default_behaviours = itertools.cycle(MACHINE.values())
        behaviours = [MACHINE.get(name, default) for name, default in zip(names, default_behaviours, strict=False)]
        self._mean = np.array([mean for mean, _, _ in behaviours])
        self._deviation = np.array([deviation for _, deviation, _ in behaviours])
        # (d, 3): of each sensor with each of the three causes.
        self._correlations = np.array([correlations for _, _, correlations in behaviours])

    def draw(self, n: int) -> F64:
        """Return readings (n, d); the last one has a fault."""
        d, cause_count = self._correlations.shape
        noise_deviations = np.sqrt(1 - (self._correlations**2).sum(axis=1))  # (d,)
        noise = noise_deviations * self._random.standard_normal((n, d))
        causes = self._random.standard_normal((n, cause_count))
        readings = causes @ self._correlations.T + noise  # mean 0, standard deviation 1
        faulty_sensor = min(3, d - 1)  # the fourth, or the last of fewer
        readings[-1, faulty_sensor] += _FAULT
        return np.asarray((self._mean + self._deviation * readings).round(3))

    def rows(self) -> Rows:
        """Return the readings as the rows of a file that does not end."""
        return Rows("synthetic", len(self.names), self._batches, names=list(self.names))

    def _batches(self) -> Iterator[FileBatch]:
        """Yield batches of readings without end."""
        n = _READINGS_PER_FAULT  # in each batch; `draw` makes the last reading a fault
        while True:
            now_ms = time.time_ns() // 1_000_000
            columns = {"machine": np.full(n, "pump-1"), "at": np.full(n, now_ms)}
            yield batch_of_vectors(self.draw(n), progress=0.0)._replace(other_columns=columns)
