"""The paper's data sets, from a folder with `mnist.npz` and `cifar10.npz`, else from OpenML; and their batch PCA."""

import os
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from experiments.baselines.batch import Batch
from streampca.pca.arrays import F64

Indices = NDArray[np.int64]
Pixels = NDArray[np.uint8]

NAMES = ("mnist", "cifar10")
CACHE = Path.home() / ".cache" / "streampca" / "experiments"  # covariances: minutes of work, and 75 MB for CIFAR-10
_OPENML = {"mnist": "mnist_784", "cifar10": "CIFAR_10"}


def default_folder() -> Path | None:
    """The folder that STREAMPCA_DATA names, if it is set."""
    return Path(named) if (named := os.environ.get("STREAMPCA_DATA")) else None


def load(name: str, folder: Path | None) -> tuple[Pixels, Indices]:
    """Pixels (n, d), 0 to 255, and labels (n,)."""
    if folder is not None:
        with np.load(folder / f"{name}.npz") as file:
            X, y = file["X"], file["y"]
    else:
        from sklearn.datasets import fetch_openml  # only needed, and only slow, where there is no folder

        X, y = fetch_openml(_OPENML[name], version=1, as_frame=False, return_X_y=True)
    return X.reshape(len(X), -1).astype(np.uint8), y.astype(np.int64).ravel()


@dataclass(frozen=True, eq=False)
class Data:
    """Pictures, their labels and their batch solution."""

    X: Pixels  # (n, d)
    y: Indices  # (n,)
    batch: Batch

    @classmethod
    def of(cls, X: Pixels, y: Indices) -> "Data":
        """The batch solution is computed here."""
        return cls(X, y, Batch.of(lambda: (X[i : i + 4096] / 255 for i in range(0, len(X), 4096))))

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

    def pixels(self, index: Indices) -> F64:
        """Pixels/255, as the paper has them."""
        return self.X[index] / 255

    def centred(self, index: Indices) -> F64:
        """The same about the mean of all."""
        return self.pixels(index) - self.batch.mean

    def losses(self, bases: F64) -> F64:
        """Compression losses over all pictures of orthonormal columns (n, d, k), eq. 2, with one product with Σ."""
        columns = np.moveaxis(bases, 0, 1).reshape(self.d, -1)
        kept = np.sum(columns * (self.batch.covariance @ columns), axis=0).reshape(len(bases), -1).sum(axis=1)
        return np.asarray(self.batch.variances.sum() - kept, np.float64)

    def loss(self, basis: F64) -> float:
        """That of one basis (d, k)."""
        return float(self.losses(basis[None])[0])

    def excess(self, basis: F64) -> float:
        """Percent by which that is more than the least loss."""
        return self.batch.excess(basis.T, self.batch.mean)
