"""Arrays that are larger than memory: NumPy arrays slab by slab (`np.memmap` among them), Dask arrays chunk by chunk.

Dask is never imported before someone hands in one of its arrays. Messages are rows; a chunk that has not all features
of its rows is joined with its neighbours.
"""

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

_SLAB = 32 * 2**20  # bytes of a NumPy array that are converted and checked at a time, counted as float64


def is_dask(X: object) -> bool:
    """Whether X is a two-dimensional Dask array, by what it can do."""
    return all(hasattr(X, name) for name in ("to_delayed", "rechunk", "map_blocks")) and getattr(X, "ndim", 0) == 2


def in_order(X: Any) -> Iterator[Any]:
    """Pieces of X from first row to last, one in memory at a time; X itself where it is no array, or a small one."""
    if is_dask(X):
        yield from (piece for block in _row_blocks(X) if len(piece := block.compute()))
    elif isinstance(X, np.ndarray) and X.ndim == 2 and X.size * 8 > _SLAB:
        rows = max(1, _SLAB // (8 * X.shape[1]))
        yield from (X[start : start + rows] for start in range(0, len(X), rows))
    else:
        yield X


def side_by_side(X: Any, function: Callable[[NDArray[Any]], Any]) -> list[Any]:
    """The function of every row chunk of a Dask array that is not empty, in order, by Dask's own scheduler."""
    dask: Any = import_module("dask")  # whoever has such an array has it

    def unless_empty(V: NDArray[Any]) -> Any:
        return function(V) if len(V) else None

    later = dask.delayed(unless_empty, pure=False)
    return [result for result in dask.compute(*(later(block) for block in _row_blocks(X))) if result is not None]


def mapped(X: Any, function: Callable[[NDArray[Any]], NDArray[Any]], columns: int) -> Any:
    """A Dask array (n, columns): the function of every row chunk, worked out when it is asked for."""

    def unless_empty(V: NDArray[Any]) -> NDArray[Any]:
        return function(V) if len(V) else np.empty((0, columns))

    chunks = (X.chunks[0], (columns,))
    return X.rechunk({1: -1}).map_blocks(unless_empty, chunks=chunks, dtype=np.float64, meta=np.empty((0, 0)))


def _row_blocks(X: Any) -> list[Any]:
    return list(X.rechunk({1: -1}).to_delayed()[:, 0])
