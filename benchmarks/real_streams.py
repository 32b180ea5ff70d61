"""Real streams of `benchmarks.streams`: what scikit-learn, Matplotlib and Python ship, and MNIST and CIFAR-10.

Tables, images, texts, prices and signals, in random order and in their own.
"""

import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.datasets import Indices, load
from streampca.pca.arrays import F64

Rows = NDArray[Any]
LINES, WORDS, PIECES = 40, 400, 20_000  # of a text: lines in a piece, commonest words, pieces


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


def real(seed: int, folder: Path | None) -> Iterator[Stream]:
    """Each table as it is and standardised, in random order and in its own."""
    yield from tables(seed)
    for name, own, table, ks in _shipped():
        yield Stream(name, own, table, np.arange(len(table)), ks)
        yield Stream(name, "shuffled", table, _shuffled(len(table), seed), ks[-1:])
        yield Stream(f"{name}, standardised", own, table.standardised(), np.arange(len(table)), ks[-1:])
    if folder is not None:
        yield from _images(seed, folder)


def tables(seed: int) -> Iterator[Stream]:
    """The small ones, of scikit-learn."""
    for name, table, y, ks in _scikit_learn():
        for how, scaled in (("raw", table), ("standardised", table.standardised())):
            yield Stream(f"{name}, {how}", "shuffled", scaled, _shuffled(len(table), seed), ks)
            yield Stream(f"{name}, {how}", "sorted by target", scaled, np.argsort(y, kind="stable"), ks[-1:])


def _images(seed: int, folder: Path) -> Iterator[Stream]:
    for name in ("mnist", "cifar10"):
        X, y = load(name, folder)
        table, mixed = Table(X, 0.0, 1 / 255), _shuffled(len(X), seed)
        for count in (400, 1000, 3000):
            part = Table(X[mixed[:count]], 0.0, 1 / 255)
            yield Stream(f"{count} images of {name}", "shuffled", part, np.arange(count), (20, 50))
            yield Stream(
                f"{count} images of {name}, standardised", "shuffled", part.standardised(), np.arange(count), (20,)
            )
        patches = _patches_of(X, name)
        yield Stream(f"patches of {name}", "image after image", patches, np.arange(len(patches)), (1, 10, 30))
        yield Stream(name, "shuffled", table, mixed, (5, 20, 100))
        yield Stream(name, "sorted by label", table, np.argsort(y, kind="stable"), (5, 20, 100))
        if name == "mnist":
            yield Stream("mnist, standardised", "shuffled", table.standardised(), mixed, (20,))
            by_weight = np.argsort(X.sum(axis=1), kind="stable")
            yield Stream(name, "sorted by brightness", table, by_weight, (20,))


def _patches_of(X: Rows, name: str) -> Table:
    """Patches of 7 × 7 or 8 × 8 pixels of the first 2,000 images."""
    side, shape = (7, (1, 28, 28)) if name == "mnist" else (8, (3, 32, 32))
    images = np.moveaxis(X[:2000].reshape(-1, *shape), 1, 3)
    return Table(np.concatenate([_patches(image, side) for image in images]), 0.0, 1 / 255)


def _scikit_learn() -> Iterator[tuple[str, Table, Rows, tuple[int, ...]]]:
    from sklearn import datasets

    sizes: dict[str, tuple[int, ...]] = {
        "digits": (1, 5, 20, 40),
        "breast_cancer": (2, 10),
        "wine": (2, 5),
        "iris": (2,),
        "diabetes": (2, 5),
        "linnerud": (1,),
    }
    for name, ks in sizes.items():
        X, y = getattr(datasets, f"load_{name}")(return_X_y=True)
        yield name, Table(X), y if y.ndim == 1 else y[:, 0], ks


def _shipped() -> Iterator[tuple[str, str, Table, tuple[int, ...]]]:
    """Name, the rows' own order, rows, numbers of components."""
    from sklearn.datasets import load_sample_images

    photos = load_sample_images().images
    patches = Table(np.concatenate([_patches(photo, 8) for photo in photos]), 0.0, 1 / 255)
    yield "patches of photos, 8 × 8 × 3", "row by row", patches, (1, 5, 20, 100)
    yield "pixel rows of photos", "top to bottom", Table(np.concatenate([p.reshape(len(p), -1) for p in photos])), (10,)
    library = _library()
    yield "words in Python's library", "file by file", _words(library), (5, 20, 100)
    words = _words(library).rows
    unit = Table(words / np.maximum(np.linalg.norm(words, axis=1, keepdims=True), 1.0))
    yield "words in Python's library, unit length", "file by file", unit, (20,)
    yield "bytes in Python's library", "file by file", _bytes(library), (5, 30)
    yield "words in Python's manual", "page by page", _words(_manual()), (5, 20)
    yield from _matplotlib()


def _matplotlib() -> Iterator[tuple[str, str, Table, tuple[int, ...]]]:
    from matplotlib.cbook import get_sample_data

    elevation = np.load(str(get_sample_data("jacksboro_fault_dem.npz", asfileobj=False)))["elevation"][..., None]
    yield "patches of an elevation map, 8 × 8", "row by row", Table(_patches(elevation, 8)), (3, 10)
    prices = np.genfromtxt(get_sample_data("Stocks.csv"), delimiter=",", skip_header=2)[:, 1:]
    prices = prices[:, np.isnan(prices).mean(axis=0) < 0.5]
    yield "stock prices", "by date", Table(prices[~np.isnan(prices).any(axis=1)]), (2,)
    voltage = np.fromfile(get_sample_data("eeg.dat", asfileobj=False)).reshape(-1, 4)
    windows = np.lib.stride_tricks.sliding_window_view(voltage, 16, axis=0).reshape(-1, 64)
    yield "windows of an EEG, 4 × 16", "in time", Table(windows), (3, 10)


def _patches(image: Rows, side: int) -> Rows:
    """An image (height, width, channels) cut into squares, each a row."""
    height, width = (size // side for size in image.shape[:2])
    cut = image[: height * side, : width * side].reshape(height, side, width, side, -1)
    return cut.swapaxes(1, 2).reshape(height * width, -1)


@cache
def _library() -> list[str]:
    """Python's standard library in pieces of 40 lines."""
    pieces: list[str] = []
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("**/*.py")):
        if "site-packages" not in path.parts and len(pieces) < PIECES:
            pieces += _cut(path.read_text(encoding="utf-8", errors="replace"), LINES)
    return pieces[:PIECES]


def _manual() -> list[str]:
    """The pages of Python's manual that `help` shows, in pieces of 10 lines."""
    from pydoc_data.topics import topics

    return [piece for _, text in sorted(topics.items()) for piece in _cut(text, 10)]


def _cut(text: str, lines: int) -> list[str]:
    every = text.splitlines()
    return ["\n".join(every[i : i + lines]) for i in range(0, len(every), lines)]


def _words(pieces: list[str]) -> Table:
    """Counts of the commonest words."""
    from sklearn.feature_extraction.text import CountVectorizer

    return Table(CountVectorizer(max_features=WORDS).fit_transform(pieces).toarray().astype(np.uint16))


def _bytes(pieces: list[str]) -> Table:
    """Counts of each ASCII character."""
    codes = (np.frombuffer(piece.encode("ascii", "ignore"), np.uint8) for piece in pieces)
    return Table(np.array([np.bincount(of_piece, minlength=128) for of_piece in codes]))


def _shuffled(n: int, seed: int) -> Indices:
    return np.random.default_rng(seed).permutation(n)
