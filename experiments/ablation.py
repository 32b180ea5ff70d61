"""What each part of the learning step adds: `python -m experiments.ablation [--data FOLDER]`.

Percent by which the loss after one pass exceeds that of batch PCA, in random order and sorted by label: of MNIST with
k = 20, without single parts of the step and with other numbers ℓ of columns beside C; of CIFAR-10 with k = 100, with
other numbers of oversampling columns. Writes two tables into docs/mathematics.md.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from threadpoolctl import threadpool_limits

from experiments.datasets import Data, Indices, default_folder
from experiments.report import DOCS, table, write_block
from streampca.pca import axes, learning
from streampca.pca.arrays import Array
from streampca.pca.blocked import block, ritz
from streampca.pca.blocked.ritz import Limits
from streampca.pca.learning import LearningConfig, learn
from streampca.pca.state import State

_ROWS = 4096  # read at a time: whole blocks of a stream that is not young
_PAGE = DOCS / "mathematics.md"
Patches = Sequence[tuple[Any, str, Any]]

_learn, _on_rows = block.learn, ritz.on_rows


def _unmoved(V: Array, C: Array, *others: Any) -> block.Learned:
    return _learn(V, C, *others)._replace(C=C)


def _by_covariance(A: Array, C: Array, F: Array, sketch: Array, limits: Limits) -> Array:
    before = A[: C.shape[1]].T  # the first rows are those of the past
    return _on_rows(A, ritz.orthonormal(A.T @ (A @ before)), F, sketch, limits)


def _gauge(A: Array, C: Array, F: Array, sketch: Array, limits: Limits) -> Array:
    Q = ritz.orthonormal(C)
    variance, U = np.linalg.eigh(ritz.within(A, Q))
    return np.asarray(Q @ (U * np.sqrt(variance))[:, ::-1])


PARTS: dict[str, Patches] = {
    "the whole step": (),
    "without Algorithm 1: C is not moved": ((block, "learn", _unmoved),),
    "a step C ← ΣC instead of Algorithm 1": ((ritz, "on_rows", _by_covariance),),
    "Algorithm 1 and the gauge alone": ((ritz, "on_rows", _gauge), (learning, "SPARE", 0)),
}
SPARE: dict[str, Patches] = {f"ℓ = {spare}": ((learning, "SPARE", spare),) for spare in (0, 20, 40, 80)}
OVERSAMPLING = (20, 60, 100)


def excess(data: Data, config: LearningConfig, order: Indices, patches: Patches = ()) -> float:
    """The excess of one pass over the pictures in this order, percent."""
    state, start = State.empty(config.dimensions), 0
    with ExitStack() as patched:
        for module, name, value in patches:
            patched.enter_context(patch.object(module, name, value))
        while start < len(order):
            end = start + (_ROWS if state.count >= config.start + learning.YOUNG else config.next_block(state.count))
            V = data.X[order[start:end]] / 255
            state, start = learn(state, V, np.ones(len(V)), config)[0], end
        return data.batch.excess(axes.principal(state, config.components)[0], state.mean)


def cells(of_order: Callable[[Indices], float], data: Data) -> Iterator[str]:
    """The excess in both orders."""
    for order in (np.random.default_rng(0).permutation(len(data.X)), np.argsort(data.y, kind="stable")):
        yield f"{of_order(order):.2g}"


def main() -> None:
    """Run, print and write."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--data", type=Path, default=default_folder(), help="folder with mnist.npz and cifar10.npz")
    data, rows = options.parse_args().data, dict[str, list[list[str]]]()
    with threadpool_limits(1):
        mnist, config = Data.cached("mnist", data), LearningConfig(784, 20)
        for name, variants in (("ablation", PARTS), ("columns", SPARE)):
            rows[name] = [
                [label, *cells(lambda order, p=patches: excess(mnist, config, order, p), mnist)]  # type: ignore[misc]
                for label, patches in variants.items()
            ]
        cifar = Data.cached("cifar10", data)
        for over in OVERSAMPLING:
            config = LearningConfig(3072, 100, over)
            rows["columns"].append(
                [f"CIFAR-10, k = 100, oversampling {over}", *cells(lambda o, c=config: excess(cifar, c, o), cifar)]  # type: ignore[misc]
            )
    for name, lines in rows.items():
        text = table(["", "random order", "sorted by label"], lines)
        write_block(_PAGE, name, text)


if __name__ == "__main__":
    main()
