"""Arrays larger than memory: NumPy arrays (`np.memmap` too) in slabs, Dask arrays in chunks of rows.

Dask is imported only when a Dask array is passed. Chunks that split the features are joined first.
"""

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

_SLAB = 32 * 2**20  # bytes of a NumPy array, as float64, that are converted and checked at a time


def is_dask(X: object) -> bool:
    """Whether X is a two-dimensional Dask array, judged by its attributes."""
    return all(hasattr(X, name) for name in ("to_delayed", "rechunk", "map_blocks")) and getattr(X, "ndim", 0) == 2


def in_order(X: Any) -> Iterator[Any]:
    """Pieces of X in the order of its rows, one in memory at a time; X itself if it is small or not an array."""
    if is_dask(X):
        yield from (piece for block in _row_blocks(X) if len(piece := block.compute()))
    elif isinstance(X, np.ndarray) and X.ndim == 2 and X.size * 8 > _SLAB:
        rows = max(1, _SLAB // (8 * X.shape[1]))
        yield from (X[start : start + rows] for start in range(0, len(X), rows))
    else:
        yield X


def in_parallel(X: Any, function: Callable[[NDArray[Any]], Any]) -> list[Any]:
    """Apply the function to every row chunk of a Dask array that is not empty, in parallel; results in order."""
    dask: Any = import_module("dask")  # installed, since X is one of its arrays

    def unless_empty(V: NDArray[Any]) -> Any:
        return function(V) if len(V) else None

    later = dask.delayed(unless_empty, pure=False)
    return [result for result in dask.compute(*(later(block) for block in _row_blocks(X))) if result is not None]


def mapped(X: Any, function: Callable[[NDArray[Any]], NDArray[Any]], columns: int) -> Any:
    """Apply the function lazily to every row chunk: a Dask array (n, columns)."""

    def unless_empty(V: NDArray[Any]) -> NDArray[Any]:
        return function(V) if len(V) else np.empty((0, columns))

    chunks = (X.chunks[0], (columns,))
    return X.rechunk({1: -1}).map_blocks(unless_empty, chunks=chunks, dtype=np.float64, meta=np.empty((0, 0)))


def _row_blocks(X: Any) -> list[Any]:
    return list(X.rechunk({1: -1}).to_delayed()[:, 0])
