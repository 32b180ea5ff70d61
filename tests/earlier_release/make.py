"""Writes the files of this folder, by the release before this one, and the figures that it reads in them.

    git worktree add /tmp/before 6550d4c2
    PYTHONPATH=/tmp/before python tests/earlier_release/make.py tests/earlier_release

`checkpoints/` and `models/` hold files of every kind, `store/` a store of two partitions and a backfill, `figures.npz`
what that release reads in each file (named by the file), and `vectors.npz` the next vectors of each stream. A later
release writes its own files in the same way; this script imports nothing but the release's package.
"""

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from streampca.fold import checkpoint as checkpoints, model_file as models
from streampca.fold.checkpoint import Checkpoint
from streampca.fold.fold import Fold, FoldConfig
from streampca.fold.merging import FoldMerger, MergedFold
from streampca.fold.partitions import backfill_partition
from streampca.fold.past_scores import PastScoresBuilder
from streampca.formats.record import Batch, Decoded, LastRecord
from streampca.pca import axes
from streampca.pca.arrays import Array
from streampca.pca.learning import LearningConfig
from streampca.pca.state import State
from streampca.stores.checkpoints import Checkpoints
from streampca.stores.directory import DirectoryStore
from streampca.stores.models import Models
from streampca.stores.pins import Pins
from streampca.stores.process_status import ProcessStatus, ProcessStatuses

TOPIC, TOPIC_ID = "readings", "0123456789abcdef0123456789abcdef"
WIDE = 769  # dimensions, the fewest of which Σ is not kept
TIME_MS = 10**12


def stream(n: int, d: int, seed: int) -> Array:
    """Vectors (n, d): three common causes, noise of unequal size, a mean."""
    random = np.random.default_rng(seed)
    causes = random.standard_normal((n, 3)) * [4.0, 2.0, 1.0]
    noise = random.standard_normal((n, d)) * np.linspace(0.3, 1.0, d)
    return causes @ random.standard_normal((3, d)) + noise + 10 * random.standard_normal(d)


def with_gaps(V: Array, share: float, late: int, dying: int) -> Array:
    """V (n, d) with random gaps; entry 0 begins `late`, entry 1 ends at `dying`, the last one never appears."""
    V = np.where(np.random.default_rng(7).random(V.shape) < share, np.nan, V)
    V[:late, 0] = V[dying:, 1] = V[:, -1] = np.nan
    return V


def correlated(n: int, seed: int) -> Array:
    """Ten triples of entries with heavy tails, which lack a tenth of their entries.

    The release before learned correlations above 1 of them. It could save them, since one variance is larger.
    """
    random = np.random.default_rng(seed)
    V = np.repeat(random.standard_t(3, (n, 10)), 3, axis=1) + 0.1 * random.standard_normal((n, 30))
    V[:, 0] *= 5
    return np.where(random.random(V.shape) < 0.1, np.nan, V)


def config(d: int, k: int = 2, half_life_messages: float | None = None, **learning: object) -> FoldConfig:
    settings: dict[str, object] = {"oversampling": 1, "warm_up": 20} | learning
    return FoldConfig(LearningConfig(d, k, **settings), half_life_messages, format="float64")  # type: ignore[arg-type]


def streams() -> Iterator[tuple[str, FoldConfig, Array, Array]]:
    """Name, settings, vectors that the release before learns, and the next ones."""
    whole, gappy = stream(620, 6, 1), with_gaps(stream(2620, 8, 2), 0.2, 900, 1500)
    shorter = with_gaps(stream(500, 6, 5), 0.2, 150, 300)
    triples = correlated(1260, 6)
    wide = with_gaps(stream(2002, WIDE, 3), 0.2, 900, 1500)
    yield "empty", config(6), whole[:0], whole[:40]
    yield "pending", config(6, impute=True), shorter[:9], shorter[9:400]
    yield "pending-with-gaps", config(6, impute=True, dtype="float32"), shorter[:330], shorter[330:]
    yield "complete", config(6), whole[:320], whole[320:]
    yield "complete-float32", config(6, dtype="float32", center=False), whole[:320], whole[320:]
    yield "complete-half-life", config(6, half_life_messages=100.0), whole[:320], whole[320:]
    yield "complete-standardized", config(6, standardize=True), whole[:320], whole[320:]
    few = stream(22, WIDE, 4)
    yield "complete-wide", config(WIDE, 1, oversampling=0, dtype="float32"), few[:21], few[21:]
    first = np.where(np.arange(len(whole))[:, None] < 100, whole, with_gaps(whole, 0.2, 0, 620))
    first[:, -1] = whole[:, -1]
    yield "gaps", config(6, impute=True), first[:320], first[320:]
    yield "gaps-late-dying-never", config(8, impute=True), gappy[:2320], gappy[2320:]
    yield "gaps-standardized", config(8, impute=True, standardize=True), gappy[:2320], gappy[2320:]
    yield "gaps-half-life", config(8, impute=True, half_life_messages=500.0), gappy[:2320], gappy[2320:]
    yield "gaps-correlated", config(30, 3, impute=True, warm_up=None), triples[:1200], triples[1200:]
    for name, standardize in (("gaps-wide", False), ("gaps-wide-standardized", True)):
        yield name, config(WIDE, 1, oversampling=0, impute=True, standardize=standardize), wide[:2001], wide[2001:]


def learned(fold: Fold, V: Array, fold_config: FoldConfig) -> Fold:
    """The fold after the vectors, a second apart."""
    start = max(fold.position, 0)
    times = TIME_MS + 1000 * (start + np.arange(len(V)))
    decoded = Decoded(V.astype(fold_config.learning.dtype), np.arange(len(V)), [], np.ones(len(V), np.int64))
    after, _ = fold.take(Batch(decoded, times, (), start + len(V)), fold_config)
    return replace(after, last=LastRecord(start + len(V) - 1, 4)) if len(V) else after


def checkpoint_of(fold: Fold, fold_config: FoldConfig, partition: int = 0, until: str = "") -> Checkpoint:
    names = fold_config.names
    return Checkpoint(TOPIC, TOPIC_ID, partition, fold, fold_config.as_dict(), until, names)


def read_in(state: State) -> dict[str, Array]:
    """What the release reads in a state: in the units of the messages, but for C."""
    figures = {"mean": state.mean, "C": state.C, "numbers": np.array([state.weight, state.total_variance, state.count])}
    if state.missing is not None:
        figures |= {"missing": state.missing.entries, "unseen": state.missing.unseen}
    if state.covariance is not None:
        scale = np.ones(len(state.mean)) if state.scale is None else state.scale
        figures["covariance"] = axes._covariance(state, state.covariance) / np.outer(scale, scale)
    if state.scale is not None:
        figures |= {"scale": state.scale, "variances": state.entry_variances}
    return figures


def served(model: models.PublishedModel, V: Array) -> dict[str, Array]:
    """What the release serves: the model, and the first vectors projected."""
    projected = model.project(V)
    figures = {name: np.asarray(getattr(model.model, name)) for name in ("components", "explained_variance", "mean")}
    return figures | {
        "noise_variance": np.asarray(model.model.noise_variance), "coordinates": projected.coordinates,
        "scores": np.stack(projected.scores), "p": np.zeros(0) if projected.p is None else projected.p,
    }  # fmt: skip


def continued(fold: Fold, V: Array, fold_config: FoldConfig) -> dict[str, Array]:
    """What the release learns from complete vectors that follow complete ones: this has not changed since."""
    state = learned(fold, V, fold_config).provisional(fold_config.learning)
    return {f"next_{name}": array for name, array in read_in(state).items()}


def fitted(V: Array, fold_config: FoldConfig) -> models.PublishedModel:
    """A model as `streampca fit` writes it, which can be continued."""
    past = PastScoresBuilder(fold_config.learning.components)
    decoded = Decoded(V, np.arange(len(V)), [], np.ones(len(V), np.int64))
    batch = Batch(decoded, np.full(len(V), -1), (), len(V))
    fold, _ = Fold.empty(fold_config.learning).take(batch, fold_config, past.before_block)
    merged = MergedFold.alone(fold, fold_config)
    return replace(merged.published(fold_config, past.entered, 1.8e9), learned=axes.continuation(merged.state))


def write_store(folder: Path) -> None:
    """A store whose two partitions and backfill have gaps, with a pin and a worker's report."""
    fold_config = config(5, impute=True)
    store = DirectoryStore(folder)
    saved, published = Checkpoints(store, TOPIC), Models(store, TOPIC)
    saved.ensure_identity()
    merger, rows = FoldMerger(fold_config), stream(2200, 5, 8)
    backfill = backfill_partition(0)
    for partition, part in ((0, rows[:300]), (1, rows[300:700]), (backfill, rows[700:1000])):
        V = with_gaps(part, 0.1, 100 * (partition == 1), 200)
        V[:, -1] = part[:, -1] if partition else np.nan
        fold = learned(Fold.empty(fold_config.learning), V, fold_config)
        if partition == backfill:
            fold = replace(fold, state=fold.provisional(fold_config.learning)).without_pending()
        of_partition = checkpoint_of(fold, fold_config, partition, "0:0,1:0" if partition == backfill else "")
        of_partition = replace(of_partition, topic_id="" if partition == backfill else TOPIC_ID)
        saved.save(of_partition)
        merger.add_partition(of_partition)
        merged = merger.merged()
        past = PastScoresBuilder(fold_config.learning.components)
        past.score(axes.model_of(merged.state, 2), V[-50:])
        past.enter(50, 1e9)
        published.save(merged.published(fold_config, past.entered, 1.8e9 + merged.stats.learned))
    Pins(store, TOPIC).set("index", published.versions()[0])
    report = ProcessStatus(
        name="host-1", state="stopped", trouble=None, started_at=1.8e9, updated_at=1.8e9, messages_per_second=0.0,
        partitions={},
    )  # fmt: skip
    ProcessStatuses(store, TOPIC).write(report)


def main(folder: Path) -> None:
    figures: dict[str, Array] = {}
    following: dict[str, Array] = {}
    for name, fold_config, V, after in streams():
        fold = learned(Fold.empty(fold_config.learning), V, fold_config)
        if name == "complete-half-life":
            fold_config = replace(fold_config, names=[f"sensor {i}" for i in range(6)])
        data = checkpoints.encode(checkpoint_of(fold, fold_config))
        write(folder / f"checkpoints/{name}.npz", data)
        as_read = checkpoints.decode(data).fold
        found = read_in(as_read.state)
        if name.startswith("complete"):
            found |= continued(as_read, after, fold_config)
        figures |= {f"checkpoints/{name}/{figure}": array for figure, array in found.items()}
        following[name] = after
        if name == "empty" or name.startswith("pending"):
            continue
        merged = MergedFold.alone(fold, fold_config)
        past = PastScoresBuilder(fold_config.learning.components)
        past.score(axes.model_of(merged.state, fold_config.learning.components), after[-30:])
        past.enter(30, 1e9)
        of_kind = {"published": merged.published(fold_config, past.entered, 1.8e9)}
        if name in ("complete", "complete-standardized", "gaps-late-dying-never", "gaps-standardized", "gaps-wide"):
            of_kind["fitted"] = fitted(V[-700:] if name == "complete" else V, fold_config)
        for kind, model in of_kind.items():
            data = models.encode(model)
            write(folder / f"models/{name}-{kind}.npz", data)
            of_model = served(models.decode(data), after[-5:])
            figures |= {f"models/{name}-{kind}/{figure}": array for figure, array in of_model.items()}
    write_store(folder / "store")
    np.savez_compressed(folder / "figures.npz", **figures)
    np.savez_compressed(folder / "vectors.npz", **following)


def write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
