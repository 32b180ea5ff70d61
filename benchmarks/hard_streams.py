"""Accuracy on 26 synthetic streams that are hard for one pass: `python -m benchmarks.hard_streams`.

Percent by which the loss of the k components, after 20,000 messages, exceeds batch PCA's on the same rows: ours and
IncrementalPCA's (by Gram matrices) with the number of columns of our state, in batches of 256. A factor is
tested, though these streams are narrow enough for a covariance.

Two bars: on at least 22 of the 26 streams ours is at most 1.25 × IncrementalPCA's or 0.1 %; and nowhere above 0.5 %
unless IncrementalPCA's is as well. Rows depend on `--seed`. All are written into docs/hard_streams.csv, and some of
them into docs/accuracy.md; the exit code is 1 if a bar is missed.

Where a few messages hold most of the variance, batch PCA of the rows is far from the true axes as well: three streams
of Gaussian directions with heavy-tailed lengths are compared with the true axes, with default settings.
"""

import sys
import textwrap
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from benchmarks.report import page_of, parser, printed, write_csv
from experiments.baselines.batch import Batch
from experiments.baselines.incremental_gram import held, incremental
from experiments.hard_streams import STREAMS, Rng, normal, with_factor
from experiments.report import DOCS, table, write_block
from streampca.pca import axes
from streampca.pca.arrays import F64
from streampca.pca.learning import LearningConfig, learn
from streampca.pca.state import State

MESSAGES, BATCH = 20_000, 256
RATIO, SMALL, LARGE, ENOUGH = 1.25, 0.1, 0.5, 22  # the rule; percent

HEAD = ("stream", "d × k", "streampca", "IncrementalPCA(K + ℓ), 256", "ratio", "within the rule")
SHOWN = ("60 other directions half way", "drifting mixture", "autocorrelated", "1 in 1,000 is 20 times as long")


class Row(NamedTuple):
    """The excess on one stream, in percent."""

    name: str
    d: int
    k: int
    ours: float
    incremental: float

    @property
    def good(self) -> bool:
        """As good as IncrementalPCA, or good enough."""
        return self.ours <= max(RATIO * self.incremental, SMALL)

    @property
    def bad(self) -> bool:
        """Too large to be noise, where IncrementalPCA is better."""
        return self.ours > LARGE >= self.incremental

    def cells(self) -> list[str]:
        """One line of the table."""
        ratio = f"{self.ours / self.incremental:.2f}" if max(self.ours, self.incremental) > 1e-6 else "–"
        verdict = "yes" if self.good else "no"
        return [self.name, f"{self.d} × {self.k}", f"{self.ours:.2g}", f"{self.incremental:.2g}", ratio, verdict]


def main() -> int:
    """Run, print, write; the exit code says whether the rule holds."""
    arguments = parser(__doc__)
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--only", default="", help="only streams whose name contains this; writes nothing")
    options = arguments.parse_args()
    n = MESSAGES // 10 if options.smallest else MESSAGES
    rows: list[Row] = printed(measured(options.seed, n, options.only))
    good, bad = sum(row.good for row in rows), [row.name for row in rows if row.bad]
    note = f"{good} of {len(rows)} streams meet the first bar. "
    note += f"These streams miss the second bar: {'; '.join(bad) or 'none'}. Seed {options.seed}."
    print(note)
    if page := None if options.only else page_of(options, DOCS / "accuracy.md"):
        write_csv(page.with_name("hard_streams.csv"), HEAD, [row.cells() for row in rows])
        shown = table(HEAD[:-1], [row.cells()[:-1] for row in rows if row.name in SHOWN])
        write_block(page, "hard", [*shown, "", *textwrap.wrap(note, 150)])
        excess = [[name, *(f"{percent:.2g}" for percent in row)] for name, *row in tails(options.seed, n)]
        write_block(page, "tails", table(("lengths", "streampca", "batch PCA"), excess))
    return 0 if options.smallest or options.only or (good >= ENOUGH and not bad) else 1


def measured(seed: int, n: int, only: str = "") -> Iterator[Row]:
    """Each stream's row."""
    for number, (name, make) in enumerate(STREAMS.items()):
        if only in name:
            X, k = make(np.random.default_rng([seed, number]), n)
            batch = Batch.of(lambda X=X: [X])  # type: ignore[misc]
            d, batches = X.shape[1], (X[i : i + BATCH] for i in range(0, n, BATCH))
            own, other = ours(X, k, with_factor(d, k)), incremental(batches, d, held(d, k), k)
            yield Row(name, d, k, batch.excess(*own), batch.excess(*other))


def tails(seed: int, n: int) -> Iterator[tuple[str, float, float]]:
    """Name, and the percent by which our loss and batch PCA's exceed the true axes' loss."""
    d, k = 300, 10
    strengths = np.concatenate([np.linspace(3, 1, k), np.full(d - k, 0.5)])
    truth = Batch(np.diag(strengths**2), np.zeros(d), strengths**2)
    for number, (name, lengths) in enumerate(LENGTHS.items()):
        rng = np.random.default_rng([seed, number])
        X = normal(rng, n, strengths) * lengths(rng, (n, 1))
        batch = np.linalg.eigh(Batch.of(lambda X=X: [X]).covariance)[1][:, : -k - 1 : -1].T  # type: ignore[misc, arg-type]
        one_pass, _ = ours(X, k, LearningConfig(d, k))
        yield name, truth.excess(one_pass, truth.mean), truth.excess(batch, truth.mean)


def ours(X: F64, k: int, config: LearningConfig) -> tuple[F64, F64]:
    """Components and mean after one pass."""
    state, _ = learn(State.empty(X.shape[1]), X, np.ones(len(X)), config)
    return axes.find_principal_axes(state, k)[0], state.mean


LENGTHS: dict[str, Callable[[Rng, tuple[int, int]], F64]] = {
    "equal": lambda rng, shape: np.ones(shape),
    "Student's t, 3 degrees of freedom": lambda rng, shape: 1 / np.sqrt(rng.chisquare(3, shape) / 3),
    "log-normal, σ = 1.2": lambda rng, shape: rng.lognormal(0, 1.2, shape),
    "Cauchy": lambda rng, shape: 1 / np.sqrt(rng.chisquare(1, shape)),
}

if __name__ == "__main__":
    sys.exit(main())
