"""26 synthetic streams that are hard for one pass: each makes n rows (n, d), and says how many components to learn."""

from collections.abc import Callable

import numpy as np

from experiments.datasets import Indices
from streampca.pca.arrays import F64
from streampca.pca.learning import LearningConfig

Rng = np.random.Generator
Made = tuple[F64, int]  # rows (n, d), k


def with_factor(d: int, k: int) -> LearningConfig:
    """Settings with which a factor is learned, though the stream is narrow enough for a covariance."""
    return LearningConfig(d, k, factor=True)


def basis(rng: Rng, d: int, k: int) -> F64:
    """Orthonormal columns (d, k)."""
    return np.linalg.qr(rng.standard_normal((d, k)))[0]


def normal(rng: Rng, n: int, strengths: F64) -> F64:
    """Rows (n, k) of independent coordinates with these standard deviations."""
    return rng.standard_normal((n, len(strengths))) * strengths


def pieces(n: int, number: int) -> Indices:
    """For each of n messages the number of its piece, 0 …, in equal pieces."""
    return (np.arange(n) * number // n).astype(np.int64)


def other_directions(rng: Rng, n: int) -> Made:
    B, half = basis(rng, 400, 120), n // 2
    coordinates = normal(rng, n, np.tile(np.linspace(3, 1, 60), 2))
    coordinates[:half, 60:] = coordinates[half:, :60] = 0
    return coordinates @ B.T + 0.3 * rng.standard_normal((n, 400)), 20


def new_sensors(rng: Rng, n: int) -> Made:
    X = normal(rng, n, np.concatenate([np.full(280, 0.5), np.linspace(3, 1, 20)]))
    X[:, 280:] *= np.arange(n)[:, None] >= n * np.arange(20) / 21  # one begins after the other
    return X, 10


def drifting_mixture(rng: Rng, n: int) -> Made:
    d, kinds, t = 384, 25, np.linspace(0, 1, n)[:, None]
    (begin, end), kind = 2 * rng.standard_normal((2, kinds, d)), rng.integers(kinds, size=n)
    return (1 - t) * begin[kind] + t * end[kind] + rng.standard_normal((n, d)), 20


def returning_regimes(rng: Rng, n: int) -> Made:
    B, regime = basis(rng, 300, 120), pieces(n, 24) % 6
    coordinates = normal(rng, n, np.tile(np.linspace(3, 1, 20), 6)) * (np.arange(120) // 20 == regime[:, None])
    return coordinates @ B.T + 0.2 * rng.standard_normal((n, 300)), 20


def one_hot(rng: Rng, n: int) -> F64:
    share = 1 / np.arange(3, 303)
    return np.eye(300)[np.sort(rng.choice(300, n, p=share / share.sum()))]


def scaled_one_hot(rng: Rng, n: int) -> Made:
    share = np.concatenate([np.full(8, 0.08), np.full(392, 0.36 / 392)])
    category = rng.choice(400, n, p=share)
    return np.eye(400)[category] * rng.lognormal(0, 0.5, 400)[category, None], 10


def outliers(rng: Rng, n: int) -> Made:
    X = normal(rng, n, np.linspace(3, 0.5, 300))
    X[rng.random(n) < 0.001] *= 20
    return X, 10


def rotating_planes(rng: Rng, n: int) -> Made:
    B, angle = basis(rng, 300, 40), np.linspace(0, np.pi / 2, n)[:, None]
    a = normal(rng, n, np.linspace(4, 2, 20))
    X = a * np.cos(angle) @ B[:, :20].T + a * np.sin(angle) @ B[:, 20:].T
    return X + 0.5 * rng.standard_normal((n, 300)), 10


def autocorrelated(rng: Rng, n: int) -> Made:
    X = normal(rng, n, np.arange(1.0, 601) ** -0.4)
    for t in range(1, n):
        X[t] = 0.99 * X[t - 1] + np.sqrt(1 - 0.99**2) * X[t]
    return X @ basis(rng, 600, 600).T, 20


def devices(rng: Rng, n: int) -> Made:
    device, X = pieces(n, 40), np.zeros((n, 400))
    for i in range(40):
        own = normal(rng, int(np.sum(device == i)), np.ones(10))
        X[device == i, 10 * i : 10 * i + 10] = own @ rng.standard_normal((10, 10))
    return X, 10


def shot_noise(rng: Rng, n: int) -> Made:
    shots, d = rng.random((n, 300)) < 0.002, 300
    X = 10 * shots * rng.exponential(1, (n, d))
    for t in range(1, n):
        X[t] += 0.8 * X[t - 1]
    return X + 0.1 * rng.standard_normal((n, d)), 10


def hashed(rng: Rng, n: int) -> Made:
    X, token = np.zeros((n, 512)), rng.integers(512, size=5000)
    for _ in range(12):
        word = np.minimum(rng.zipf(1.3, n), 5000) - 1
        np.add.at(X, (np.arange(n), token[word]), np.where(word % 2, 1.0, -1.0))
    return X, 20


def bursts(rng: Rng, n: int) -> Made:
    B, X = basis(rng, 300, 60), 0.3 * normal(rng, n, np.linspace(3, 1, 300))
    for i, begin in enumerate(rng.integers(n - 100, size=60)):
        X[begin : begin + 100] += 4 * rng.standard_normal((100, 1)) * B[:, i]
    return X, 10


def comes_and_goes(rng: Rng, n: int) -> Made:
    B, session = basis(rng, 300, 105), pieces(n, 100)
    X = normal(rng, n, np.linspace(1.5, 1, 5)) @ B[:, :5].T + 0.1 * rng.standard_normal((n, 300))
    return X + 5 * rng.standard_normal((n, 1)) * B[:, 5 + session].T, 5


def gains(rng: Rng, n: int) -> Made:
    gain = 10 ** rng.uniform(-1, 1, 20)[pieces(n, 20), None]
    return normal(rng, n, np.linspace(2, 0.3, 300)) * gain @ basis(rng, 300, 300).T, 10


def topics(rng: Rng, n: int) -> Made:
    words, mixture = rng.dirichlet(np.full(400, 0.05), 30), rng.dirichlet(np.full(30, 0.1), n)
    order = np.argsort(mixture.argmax(axis=1), kind="stable")  # topic after topic
    return rng.poisson(80 * mixture[order] @ words).astype(float), 10


def windows(rng: Rng, n: int) -> Made:
    """Windows of a signal whose frequency rises."""
    t = np.arange(n + 300)
    signal = np.sin(np.cumsum(np.linspace(0.02, 0.5, len(t)))) + np.cumsum(0.02 * rng.standard_normal(len(t)))
    noisy = signal + 0.3 * rng.standard_normal(len(t))
    return np.lib.stride_tricks.sliding_window_view(noisy, 300)[:n].copy(), 20


def blobs(rng: Rng, n: int) -> Made:
    """Pictures of one bright spot, which wanders from the left to the right."""
    x, y = np.linspace(2, 18, n) + rng.normal(0, 2, n), rng.uniform(0, 20, n)
    grid = np.arange(20)
    across, down = (np.exp(-0.2 * (grid - centre[:, None]) ** 2) for centre in (x, y))
    return (down[:, :, None] * across[:, None]).reshape(n, 400) + 0.05 * rng.standard_normal((n, 400)), 20


def rare_binary(rng: Rng, n: int) -> Made:
    share = 10 ** rng.uniform(-3, -0.5, 300)
    return (rng.random((n, 300)) < share) / np.sqrt(share * (1 - share)), 20


STREAMS: dict[str, Callable[[Rng, int], Made]] = {
    "low rank plus noise": lambda rng, n: (
        normal(rng, n, np.linspace(6, 1, 30)) @ basis(rng, 300, 30).T + 0.3 * rng.standard_normal((n, 300)),
        10,
    ),
    "power-law spectrum": lambda rng, n: (normal(rng, n, np.arange(1.0, 401) ** -0.5) @ basis(rng, 400, 400).T, 20),
    "almost flat spectrum": lambda rng, n: (normal(rng, n, np.linspace(1.5, 1, 300)) @ basis(rng, 300, 300).T, 10),
    "60 other directions half way": other_directions,
    "a new sensor now and then": new_sensors,
    "drifting mixture": drifting_mixture,
    "regimes that return": returning_regimes,
    "one-hot, sorted": lambda rng, n: (one_hot(rng, n), 20),
    "one-hot, shuffled": lambda rng, n: (rng.permutation(one_hot(rng, n)), 20),
    "scaled one-hot, few frequent": scaled_one_hot,
    "Student's t, 3 degrees of freedom": lambda rng, n: (rng.standard_t(3, (n, 300)) * np.linspace(3, 0.3, 300), 10),
    "lognormal lengths": lambda rng, n: (
        normal(rng, n, np.linspace(3, 0.3, 300)) * rng.lognormal(0, 1.2, (n, 1)) @ basis(rng, 300, 300).T,
        10,
    ),
    "1 in 1,000 is 20 times as long": outliers,
    "rotating planes": rotating_planes,
    "autocorrelated": autocorrelated,
    "walking mean": lambda rng, n: (
        np.cumsum(0.02 * rng.standard_normal((n, 300)), axis=0) + normal(rng, n, np.linspace(2, 0.5, 300)),
        10,
    ),
    "devices in sequence": devices,
    "shot noise": shot_noise,
    "hashed words, sparse": hashed,
    "bursts": bursts,
    "5 weak directions, 100 strong that come and go": comes_and_goes,
    "gain that changes 20 times": gains,
    "word counts, topic after topic": topics,
    "windows of a chirp": windows,
    "pictures of a wandering spot": blobs,
    "rare binary features, standardised": rare_binary,
}
