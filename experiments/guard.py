"""What the guard keeps out of a model, on MNIST with foreign pictures: `python -m experiments.guard [--data FOLDER]`.

The streams of anomalies.py are learned as one partition. Each model is compared with batch PCA of the stream's digits.
Writes docs/anomalies.md.
"""

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.batch import Batch
from benchmarks.report import write_part
from experiments.anomalies import COMPONENTS, PAGE, STREAMS, Pixels, split_of
from experiments.plan import FOLDER, Plan, command
from experiments.results import Results
from streampca.pca.axes import model_of
from streampca.pca.learning import LearningConfig
from streampca.stream import screening
from streampca.stream.decoded import Decoded
from streampca.stream.events import Vectors
from streampca.stream.fold import Fold, FoldConfig
from streampca.stream.record import PlainRecord
from streampca.stream.screening import Screening

LEVELS = (0.0, 0.001, 0.002, 0.005)  # outlier_p; 0: on_outlier=learn
_BATCH = 2000


def results(plan: Plan) -> Results:
    """A row for each stream and outlier_p."""
    return Results(plan.folder / "guard.csv", ("stream", "outlier_p"), ("digits", "foreign", "of", "excess"))


def run(plan: Plan) -> None:
    """All rows that are missing."""
    clean = split_of(plan.data["mnist"], plan.data["cifar10"], 0.0).learned
    for stream, share in STREAMS.items():
        missing = [p for p in LEVELS if not results(plan).rows(stream=stream, outlier_p=p)]
        if missing:
            X = split_of(plan.data["mnist"], plan.data["cifar10"], share).learned
            foreign = (clean != X).any(axis=1)
            batch = Batch.of_images(clean[~foreign])
            for p in missing:
                fold, refused = learned(X, p)
                model = model_of(fold.state, COMPONENTS)
                components, mean = (each.astype(np.float64) for each in (model.components, model.mean))
                excess = round(batch.excess(components, mean), 4)
                of_foreign = int(foreign[refused].sum())
                results(plan).append((stream, p), (len(refused) - of_foreign, of_foreign, int(foreign.sum()), excess))


def learned(X: Pixels, outlier_p: float) -> tuple[Fold, list[int]]:
    """The fold of the pictures X (n, d), and those that were refused."""
    fold_config = FoldConfig(LearningConfig(X.shape[1], COMPONENTS))
    fold, refused = Fold.empty(fold_config.learning), list[int]()
    with threadpool_limits(1):
        for start in range(0, len(X), _BATCH):
            V = X[start : start + _BATCH] / 255
            n, end = len(V), start + len(V)
            decoded = Decoded(V, np.arange(n), [], np.ones(n, np.int64))
            records = [PlainRecord(offset, None) for offset in range(start, end)]
            event = Vectors(0, decoded, np.full(n, -1), records, end, end)
            fold, _, rejects = screening.learn(fold, event, fold_config, Screening(outlier_p=outlier_p))
            refused += [start + reject.place for reject in rejects]
    return fold, refused


def section(plan: Plan) -> list[str]:
    """The table, from the results in the plan's folder."""
    lines = ["| stream | `outlier_p` | digits refused | foreign refused | excess |", "|---|---|---|---|---|"]
    for row in results(plan).rows():
        p = row["outlier_p"] if float(row["outlier_p"]) else "– (`learn`)"
        lines.append(
            f"| {row['stream']} | {p} | {row['digits']} | {row['foreign']} of {row['of']} | {row['excess']} % |"
        )
    return lines


def main(plan: Plan) -> None:
    """Run, and write the page between its markers."""
    run(plan)
    if plan.folder == FOLDER:
        write_part(PAGE, "guard", section(plan))


if __name__ == "__main__":
    command(main, __doc__)
