"""Scale, on paper: a thousand partitions merged, d = 100,000, what a message costs, and what a cluster would do.

Everything is simulated on one processor: the figures of the cluster are arithmetic on measured costs, no more.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.batch import Batch
from experiments.datasets import Data
from experiments.plan import Job, Plan, command, complete
from experiments.results import Results
from streampca.pca import axes
from streampca.pca.arrays import F64
from streampca.pca.learning import LearningConfig, learn
from streampca.pca.merge import merge
from streampca.pca.state import State

SIZES: dict[str, Any] = {
    "partitions": (1, 10, 100, 1000),
    "pieces": 1000,  # the stream is made of so many, each with its own seed
    "piece": 1000,  # messages
    "d": (100, 1000, 10_000, 100_000),
    "k": (5, 20, 50),
    "blocks": 12,
    "wide": 100_000,
    "wide messages": 5000,
}
NARROW, NARROW_K, WIDE_K = 100, 10, 10
WORKERS = (1, 4, 16, 64)
BLOCK = 64  # messages at a time: shorter than a worker takes, for states so wide


def merges(plan: Plan) -> Results:
    """Partitions merged."""
    values = ("messages", "excess", "fold_us", "merge_seconds", "megabytes")
    return Results(plan.folder / "scale_partitions.csv", ("partitions", "split"), values)


def costs(plan: Plan) -> Results:
    """Time and memory of a message."""
    return Results(plan.folder / "scale_costs.csv", ("d", "k"), ("microseconds", "fold_megabytes", "block_megabytes"))


def wide(plan: Plan) -> Results:
    """A sparse signal in many dimensions."""
    return Results(plan.folder / "scale_wide.csv", ("d", "k", "seed"), ("messages", "missed", "microseconds"))


def run(plan: Plan) -> None:
    """All three."""
    sizes = SIZES | dict(plan.sizes)
    stream = (sizes["pieces"], sizes["piece"])
    jobs = [
        Job((p, split), merged, "", (p, split, *stream)) for split in ("alike", "skewed") for p in sizes["partitions"]
    ]
    complete("partitions", plan, merges(plan), jobs)
    jobs = [Job((d, k), cost, "", (d, k, sizes["blocks"])) for d in sizes["d"] for k in sizes["k"]]
    complete("costs", plan, costs(plan), jobs)
    jobs = [
        Job((sizes["wide"], WIDE_K, seed), sparse, "", (sizes["wide"], sizes["wide messages"], seed)) for seed in (0, 1)
    ]
    complete("many dimensions", plan, wide(plan), jobs)


def pieces(count: int, length: int, split: str) -> Iterator[F64]:
    """A stream of `count` pieces (length, NARROW). Skewed: each piece has directions of its own that come strongest."""
    mixing = np.linalg.qr(np.random.default_rng(0).standard_normal((NARROW, NARROW)))[0]
    for piece in range(count):
        rng = np.random.default_rng((1, piece))
        strength = 3 / np.arange(1, NARROW + 1) ** 0.7
        if split == "skewed":
            strength = strength * np.where(rng.random(NARROW) < 0.2, 2.0, 0.2)
        offset = 0.1 * rng.standard_normal(NARROW) if split == "skewed" else 0.0
        yield (rng.standard_normal((length, NARROW)) * strength) @ mixing + offset


def merged(
    _: Data | None, partitions: int, split: str, count: int, length: int
) -> tuple[int, float, float, float, float]:
    """Messages, percent of excess, µs a message, seconds of the merge, megabytes of all folds."""
    config = LearningConfig(NARROW, NARROW_K)
    folds = [State.empty(NARROW) for _ in range(partitions)]
    total, moment, seconds = np.zeros(NARROW), np.zeros((NARROW, NARROW)), 0.0
    for i, piece in enumerate(pieces(count, length, split)):
        total, moment = total + piece.sum(axis=0), moment + piece.T @ piece
        began, mine = time.process_time(), i * partitions // count
        folds[mine] = _learned(folds[mine], piece, config)
        seconds += time.process_time() - began
    n = count * length
    mean = total / n
    covariance = moment / n - np.outer(mean, mean)
    began = time.process_time()
    whole = merge(folds, config.columns)
    took = time.process_time() - began
    batch = Batch(covariance, mean, np.asarray(np.linalg.eigvalsh(covariance)[::-1], np.float64))
    excess = batch.excess(axes.principal(whole.C, NARROW_K)[0], whole.mean)
    return n, round(excess, 6), round(1e6 * seconds / n, 2), round(took, 4), round(sum(map(_megabytes, folds)), 3)


def _learned(state: State, V: F64, config: LearningConfig) -> State:
    for part in np.split(V, np.arange(config.next_block(state), len(V), BLOCK)):
        state, _ = learn(state, part, np.ones(len(part)), config)
    return state


def _megabytes(state: State) -> float:
    return (state.C.nbytes + state.N.nbytes + state.mean.nbytes) / 1e6


def cost(_: Data | None, d: int, k: int, blocks: int) -> tuple[float, float, float]:
    """µs a message (median of the blocks), megabytes of the fold and of one block, in mid-stream."""
    rng, config = np.random.default_rng(0), LearningConfig(d, k)
    state, taken = _settled(rng, config), []
    for _block in range(blocks):
        V = rng.standard_normal((BLOCK, d))
        began = time.process_time()
        state = learn(state, V, np.ones(BLOCK), config)[0]
        taken.append(1e6 * (time.process_time() - began) / BLOCK)
    return round(median(taken), 2), round(_megabytes(state), 4), round(BLOCK * d * 8 / 1e6, 4)


def _settled(rng: np.random.Generator, config: LearningConfig) -> State:
    """The state when no block is absorbed any more, and the spare columns are gone."""
    state = State.empty(config.dimensions)
    while state.count < config.early or state.rank > config.columns:
        n = config.next_block(state)
        state = learn(state, rng.standard_normal((n, config.dimensions)), np.ones(n), config)[0]
    return state


def sparse(_: Data | None, d: int, messages: int, seed: int) -> tuple[int, float, float]:
    """Messages, percent of the signal's variance that the axes miss, µs a message (learning alone).

    Each of ten directions lives on 200 coordinates, and each message has noise on 100 others: made block by block.
    """
    rng, config = np.random.default_rng(seed), LearningConfig(d, WIDE_K)
    support = rng.permutation(d)[: min(200, d // WIDE_K) * WIDE_K].reshape(WIDE_K, -1)
    strength, state, learned, seconds = np.linspace(4, 1, WIDE_K), State.empty(d), 0, 0.0
    while learned < messages:
        size = config.next_block(state)
        V = np.zeros((size, d))
        scores = rng.standard_normal((size, WIDE_K)) * strength
        for direction, where in enumerate(support):
            V[:, where] = scores[:, direction, None] / np.sqrt(len(where))
        V[np.arange(size)[:, None], rng.integers(d, size=(size, min(100, d)))] += 0.3 * rng.standard_normal(
            (size, min(100, d))
        )
        began = time.process_time()
        state, _scores = learn(state, V, np.ones(size), config)
        seconds, learned = seconds + time.process_time() - began, learned + size
    components = axes.principal(state.C, WIDE_K)[0]
    on_axes = np.stack([components[:, where].sum(axis=1) / np.sqrt(len(where)) for where in support])
    kept = np.sum(on_axes**2, axis=1) @ strength**2 / np.sum(strength**2)
    return learned, round(100 * (1 - float(kept)), 5), round(1e6 * seconds / learned, 1)


def section(folder: Path) -> list[str]:
    """Three tables and the arithmetic."""
    plan = Plan({}, folder)
    lines = [
        "## Scale, on paper",
        "",
        "Simulated on one processor core; nothing here was run on a cluster.",
        "",
    ]
    lines += [
        f"A stream of synthetic messages, d = {NARROW}, k = {NARROW_K}, cut into partitions that are "
        "learned separately",
        "and merged at the end (skewed: every thousandth of the stream has strong directions and a mean of its own):",
        "",
    ]
    lines += _table(
        merges(plan), ("partitions", "split", "messages", "excess %", "µs/message", "merge, s", "all folds, MB")
    )
    lines += [
        "",
        "Time per message (dense, float64, blocks of 64), and the memory of a fold and of a block:",
        "",
    ]
    lines += _table(costs(plan), ("d", "k", "µs/message", "fold, MB", "block, MB"))
    lines += [
        "",
        "The time grows with d·(K + 64), where K = k + max(10, 3k/5); memory with d·K for each partition, and "
        "one block for each worker. At the start of a stream learning takes longer: its first thousand messages are "
        "absorbed, and K + 32 columns are learned until some thousands more have come.",
        "",
    ]
    lines += [
        "d = 100,000 with a sparse signal: ten directions on 200 coordinates each, every message with noise on 100",
        "coordinates, generated block by block. The covariance would take 80 GB. Share of the signal's variance "
        "that is missed:",
        "",
    ]
    lines += _table(wide(plan), ("d", "k", "seed", "messages", "missed %", "µs/message"))
    return [*lines, "", *_cluster(costs(plan))]


def _table(results: Results, head: tuple[str, ...]) -> list[str]:
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    rows = sorted(results.rows(), key=lambda row: [_number(row[key]) for key in results.keys])
    return lines + ["| " + " | ".join(row.values()) + " |" for row in rows]


def _number(text: str) -> tuple[float, str]:
    return (float(text), "") if text.isdigit() else (0.0, text)


def _cluster(results: Results) -> list[str]:
    """Messages a second of N workers, by the measured cost of one."""
    rows = [row for row in results.rows() if row["k"] == "20"]
    lines = ["What N workers (one core each, at least as many partitions) would learn, if Kafka and the "
             "network keep up: the",
             "measured cost of learning alone, times N. Workers exchange nothing, so this is simple "
             "arithmetic. It",
             "leaves out the decoding of records; the network traffic is shown beside it.", "",
             "| d, k = 20 | " + " | ".join(f"N = {n}" for n in WORKERS) + " | network at N = 64, float32 |",
             "|---" * (len(WORKERS) + 2) + "|"]  # fmt: skip
    for row in rows:
        rate = 1e6 / float(row["microseconds"])
        cells = [f"{n * rate:,.0f}/s" for n in WORKERS]
        lines.append(
            f"| {row['d']} | " + " | ".join(cells) + f" | {WORKERS[-1] * rate * int(row['d']) * 4 / 1e9:.1f} GB/s |"
        )
    return lines


if __name__ == "__main__":
    command(run, __doc__)
