"""Anomalies found by p-values and by rivals, on MNIST with foreign pictures and on correlated sensors.

Ten partitions, each one digit, are learned and published as a worker does it. In two of the streams one picture in a
hundred, or in twenty, is foreign. Held-out pictures of all kinds are then scored by the served model. The same with
sensors that follow a few common causes. The rivals (detectors.py) learn and score the same messages.
"""

import itertools
import time
from collections.abc import Callable

import numpy as np

from experiments.charts import picture
from experiments.datasets import Data, Pixels
from experiments.detectors import DETECTORS
from experiments.plan import Plan, Results, curve
from experiments.report import table
from streampca.fold.checkpoint import Checkpoint
from streampca.fold.fold import Fold, FoldConfig
from streampca.fold.model_file import PublishedModel
from streampca.formats.record import batch_of_rows
from streampca.pca.arrays import F64
from streampca.pca.learning import LearningConfig
from streampca.pca.projection import Scores
from streampca.stores.checkpoints import Checkpoints
from streampca.stores.memory import MemoryStore
from streampca.stores.models import Models
from streampca.worker.publisher import Publisher

COMPONENTS, PARTITIONS, HELD_OUT = 20, 10, 1 / 7
EVERY = 400  # messages of a partition between two publications
STREAMS = {"clean": 0.0, "1 % foreign": 0.01, "5 % foreign": 0.05}  # share of foreign pictures
SENSORS, READINGS, CAUSES = "sensors", 23_000, 5  # another stream of ten partitions; its messages, held-out included
LEVELS = (0.05, 0.01, 0.001)
SHOWN_LEVEL = 0.01  # in the table of the page; the results have all of LEVELS
ORDINARY = ("digits", "readings")
Row = list[float | str]
_GRID = np.logspace(-3.5, 0, 36)


def results(plan: Plan) -> Results:
    """A row for each stream, kind of message and statistic; rivals have the area alone."""
    values = ("auc", *(f"at {level}" for level in LEVELS), "curve")
    return Results(plan.folder / "anomalies.csv", ("stream", "kind", "statistic"), values)


def run(plan: Plan) -> None:
    """All streams, as far as they are missing, and the picture."""
    for stream in (*STREAMS, SENSORS):
        if not results(plan).rows(stream=stream):
            streams, held_out = messages(plan, stream)
            for (kind, statistic), row in (_ours(streams, held_out) | _rivals(streams, held_out)).items():
                results(plan).append((stream, kind, statistic), row)
    _draw(plan)


def messages(plan: Plan, stream: str) -> tuple[list[Pixels], dict[str, Pixels]]:
    """The learned messages of each partition; the held-out ones of each kind, ordinary ones first."""
    if stream == SENSORS:
        return sensors()
    return split(plan.data["mnist"], plan.data["cifar10"], STREAMS[stream])


def _ours(streams: list[Pixels], held_out: dict[str, Pixels]) -> dict[tuple[str, str], Row]:
    published = learned(streams)
    p = {kind: published.project(X / 255).p_values for kind, X in held_out.items()}
    ordinary = next(iter(p.values()))
    cases = itertools.product(held_out, Scores._fields)
    return {(kind, name): row_of(getattr(p[kind], name), getattr(ordinary, name)) for kind, name in cases}


def _rivals(streams: list[Pixels], held_out: dict[str, Pixels]) -> dict[tuple[str, str], Row]:
    rows: dict[tuple[str, str], Row] = {}
    X = np.random.default_rng(0).permutation(np.concatenate(streams))
    for name, detector in DETECTORS.items():
        score = detector(X)
        scores = {kind: score(Z) for kind, Z in held_out.items()}
        ordinary = next(iter(scores.values()))
        for kind, of_kind in scores.items():
            rows[kind, name] = [round(auc(-of_kind, -ordinary), 4), *[""] * (len(LEVELS) + 1)]
    return rows


def split(digits: Data, photographs: Data, share: float) -> tuple[list[Pixels], dict[str, Pixels]]:
    """The learned pictures of each partition, with this share of foreign ones, a third of each kind; the held-out."""
    rng = np.random.default_rng(0)
    order = rng.permutation(len(digits.X))
    cut = int(len(order) * (1 - HELD_OUT))
    learned, held_out = digits.X[order[:cut]].copy(), digits.X[order[cut:]]
    foreign: dict[str, Callable[[Pixels], Pixels]] = {
        "upside down": lambda X: X[:, ::-1],
        "two white lines": _with_lines,
        "photographs": lambda X: grey(photographs.X, X.shape[1])[rng.permutation(len(photographs.X))[: len(X)]],
    }
    chosen = np.array_split(rng.permutation(cut)[: int(share * cut)], len(foreign))
    for make, which in zip(foreign.values(), chosen, strict=True):
        learned[which] = make(learned[which])
    kinds = {ORDINARY[0]: held_out} | {kind: make(held_out) for kind, make in foreign.items()}
    return [learned[digits.y[order[:cut]] == p] for p in range(PARTITIONS)], kinds


def grey(X: Pixels, d: int) -> Pixels:
    """The middle 28 × 28 pixels of colour pictures of 32 × 32, in grey; of other pictures the first d numbers."""
    if X.shape[1] != 3072:
        return X[:, :d]
    middle: Pixels = X.reshape(-1, 32, 32, 3).mean(axis=3)[:, 2:30, 2:30].astype(np.uint8)
    return middle.reshape(len(X), -1)


def _with_lines(X: Pixels) -> Pixels:
    d = X.shape[1]
    return np.concatenate([X[:, : d // 2], np.full((len(X), d // 14), 255, np.uint8), X[:, d // 2 + d // 14 :]], axis=1)


def sensors() -> tuple[list[Pixels], dict[str, Pixels]]:
    """Readings (n, 60), bytes, of sensors that follow five common causes with a tenth of noise."""
    rng = np.random.default_rng(0)
    gains = 15 * rng.standard_normal((CAUSES, 60)) / np.sqrt(CAUSES)

    def readings(n: int, load: float = 1.0) -> Pixels:
        causes = load * rng.standard_normal((n, CAUSES))
        values: F64 = 128 + causes @ gains + 1.5 * rng.standard_normal((n, 60))
        return values.clip(0, 255).astype(np.uint8)

    held_out = int(READINGS * HELD_OUT)
    ordinary, stray = readings(held_out), readings(held_out)
    sensor, rows = rng.integers(60, size=held_out), np.arange(held_out)
    stray[rows, sensor] = ordinary[rows, sensor]
    kinds = {ORDINARY[1]: ordinary, "one sensor of another message": stray, "twice the load": readings(held_out, 2.0)}
    return np.array_split(readings(READINGS - held_out), PARTITIONS), kinds


def learned(streams: list[Pixels]) -> PublishedModel:
    """The last version of a worker that owns all partitions."""
    fold_config, store = FoldConfig(LearningConfig(streams[0].shape[1], COMPONENTS)), MemoryStore()
    checkpoints, models = Checkpoints(store, "pictures"), Models(store, "pictures")
    publisher = Publisher(models, fold_config, time.time)
    folds = [Fold.empty(fold_config.learning)] * PARTITIONS
    for start in range(0, max(map(len, streams)), EVERY):
        saved = []
        for p, pictures in enumerate(streams):
            if len(batch := pictures[start : start + EVERY] / 255):
                folds[p], _ = folds[p].take(batch_of_rows(batch, start + len(batch)), fold_config)
                saved.append(Checkpoint("pictures", "", p, folds[p], fold_config.as_dict()))
                checkpoints.save(saved[-1])
        publisher.publish(checkpoints, saved)
    newest = models.newest()
    if newest is None:
        raise ValueError("the stream is too short")
    return newest


def row_of(p: F64, ordinary: F64) -> Row:
    """The area under the curve, the share of pictures at or below each level, and that share as a curve."""
    shares = [round(float(np.mean(p <= level)), 5) for level in LEVELS]
    return [round(auc(p, ordinary), 4), *shares, curve([float(np.mean(p <= x)) for x in _GRID])]


def auc(foreign: F64, ordinary: F64) -> float:
    """The probability that a foreign picture has a smaller p than an ordinary one; ties count half."""
    ordered = np.sort(ordinary)
    left, right = (np.searchsorted(ordered, foreign, side) for side in ("left", "right"))
    return float(1 - (left + right).mean() / (2 * len(ordered)))


def _draw(plan: Plan) -> None:
    with picture(plan.folder / "anomalies.svg", 1, len(STREAMS)) as axes:
        for panel, stream in zip(axes.flat, STREAMS, strict=True):
            panel.plot(_GRID, _GRID, ":", color="gray", label="uniform")
            for row in results(plan).rows(stream=stream, statistic="score"):
                panel.plot(_GRID, list(map(float, row["curve"].split())), label=row["kind"])
            panel.set(xscale="log", yscale="log", ylim=(3e-4, 1.3), title=f"stream: {stream}",
                      xlabel="p of the score", ylabel="share of held-out pictures")  # fmt: skip


def blocks(plan: Plan) -> dict[str, list[str]]:
    """The share of pictures of each kind with a small p in each stream, and the areas beside the rivals'."""
    shares: dict[str, dict[str, str]] = {}
    for stream in STREAMS:
        for row in results(plan).rows(stream=stream, statistic="score"):
            shares.setdefault(row["kind"], {})[stream] = f"{float(row[f'at {SHOWN_LEVEL}']):.4f}"
    rows = [[kind, *(of_kind.get(stream, "–") for stream in STREAMS)] for kind, of_kind in shares.items()]
    lines = table(["pictures", *(f"stream: {stream}" for stream in STREAMS)], rows)
    file = "![Share of held-out pictures by p, for each stream](../experiments/results/anomalies.svg)"
    return {"anomalies": [*lines, "", file], "rivals": _beside_rivals(plan)}


def _beside_rivals(plan: Plan) -> list[str]:
    areas: dict[tuple[str, str], dict[str, str]] = {}
    for row in results(plan).rows():
        if row["kind"] not in ORDINARY:
            areas.setdefault((row["stream"], row["kind"]), {})[row["statistic"]] = f"{float(row['auc']):.3f}"
    rows = [[*case, *(of_case[name] for name in ("score", *DETECTORS))] for case, of_case in areas.items()]
    return table(["stream", "messages", "score", *DETECTORS], rows)
