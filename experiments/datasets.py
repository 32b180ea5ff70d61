"""A data set with what batch PCA knows of it, and blocks of it as the experiments take them."""

import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.batch import Batch
from benchmarks.data import load
from streampca.pca.arrays import F64

Indices = NDArray[np.int64]

CACHE = Path.home() / ".cache" / "streampca" / "experiments"  # covariances: minutes of work, and 75 MB for CIFAR-10


@dataclass(frozen=True, eq=False)
class Data:
    """Pictures, their labels and their batch solution."""

    X: NDArray[np.uint8]  # (n, d)
    y: Indices  # (n,)
    batch: Batch

    @classmethod
    def of(cls, X: NDArray[np.uint8], y: Indices) -> "Data":
        """The batch solution is computed here."""
        return cls(X, y, Batch.of_images(X))

    @classmethod
    def cached(cls, name: str, folder: Path | None) -> "Data":
        """A named data set; its batch solution is kept between runs."""
        X, y = load(name, folder)
        path = CACHE / f"{name}-{zlib.crc32(X.data):08x}.npz"
        if path.exists():
            with np.load(path) as file:
                return cls(X, y, Batch(file["covariance"], file["mean"], file["variances"]))
        data = cls.of(X, y)
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part.npz")
        np.savez(part, covariance=data.batch.covariance, mean=data.batch.mean, variances=data.batch.variances)
        part.replace(path)
        return data

    @property
    def d(self) -> int:
        """Dimensions."""
        return int(self.X.shape[1])

    def raw(self, index: Indices) -> F64:
        """Pixels/255."""
        return np.asarray(self.X[index] / 255)

    def centred(self, index: Indices) -> F64:
        """Pixels/255 about the mean of all, as the paper has them."""
        return self.raw(index) - self.batch.mean

    def loss(self, basis: F64) -> float:
        """Compression loss over all pictures, about their mean, of orthonormal columns (d, k); eq. 2."""
        return float(self.losses(basis[None])[0])

    def losses(self, bases: F64) -> F64:
        """The same of many bases (n, d, k), with one product with the covariance, which is what takes the time."""
        columns = np.moveaxis(bases, 0, 1).reshape(self.d, -1)
        kept = np.sum(columns * (self.batch.covariance @ columns), axis=0).reshape(len(bases), -1).sum(axis=1)
        return np.asarray(self.batch.variances.sum() - kept, np.float64)

    def excess(self, basis: F64) -> float:
        """Percent by which that is more than the least loss."""
        return 100 * (self.loss(basis) / self.batch.loss(basis.shape[1]) - 1)
