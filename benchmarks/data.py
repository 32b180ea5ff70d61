"""The data sets of the paper: from a folder with `mnist.npz` and `cifar10.npz`, else from OpenML by scikit-learn."""

import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

NAMES = ("mnist", "cifar10")
_OPENML = {"mnist": "mnist_784", "cifar10": "CIFAR_10"}


def load(name: str, folder: Path | None) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Pixels (n, d), 0 to 255, and labels (n,)."""
    if folder is not None:
        with np.load(folder / f"{name}.npz") as file:
            X, y = file["X"], file["y"]
    else:
        X, y = _fetch(name)
    return X.reshape(len(X), -1), y.astype(np.int64).ravel()


def digits() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """scikit-learn's digits, which it ships: 1,797 images of 8 × 8 pixels, as `load` returns them."""
    from sklearn.datasets import load_digits

    X, y = load_digits(return_X_y=True)
    return (X * 15).astype(np.uint8), y.astype(np.int64)


def default_folder() -> Path | None:
    """The folder that STREAMPCA_DATA names, if it is set."""
    named = os.environ.get("STREAMPCA_DATA")
    return Path(named) if named else None


def _fetch(name: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    from sklearn.datasets import fetch_openml  # only needed, and only slow, where there is no folder

    X, y = fetch_openml(_OPENML[name], version=1, as_frame=False, return_X_y=True)
    return X.astype(np.uint8), y.astype(np.int64)
