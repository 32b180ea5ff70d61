"""Two partitions learned in two threads, as one worker does it, beside two processes: `python -m benchmarks.threads`.

Each learns rows that lie ready, in one BLAS thread, from an empty fold. Processes and threads take turns. Only rounds
count in which two processes reach 1.6 times the rate of one: on other machines, two cores are not there to be used.
"""

import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from statistics import median

from benchmarks.partition import Partition, learn, learn_together
from benchmarks.report import Bar, parser, publish
from experiments.report import table

PART, ROUNDS, TWO_CORES, BAR = "threads", 15, 1.6, 0.9
FULL = Partition(768, 20, 40), Partition(784, 20, 60), Partition(3072, 20, 20)
SMALLEST = (Partition(8, 2, 2),)


def main() -> None:
    """Measure and write."""
    options = parser(__doc__).parse_args()
    rows: list[list[str]] = []
    medians: list[float] = []
    for partition in SMALLEST if options.smallest else FULL:
        learn(partition._replace(batches=2))
        speed_ups: list[float] = []
        shares: list[float] = []
        for _ in range(1 if options.smallest else ROUNDS):
            one, two, threads = in_processes(partition, 1), in_processes(partition, 2), in_threads(partition)
            speed_ups.append(two / one)
            shares.append(threads / two)
        counted = [share for share, speed_up in zip(shares, speed_ups, strict=True) if speed_up >= TWO_CORES]
        medians.append(median(counted or shares))
        size = f"{partition.d} × {partition.k}"
        rows.append([size, f"{median(speed_ups):.2f}×", f"{medians[-1]:.2f}×", str(len(counted))])
    head = ["d × k", "two processes, of one", "two threads, of two processes", "rounds"]
    publish(PART, options, table(head, rows), [Bar("Two threads, of two processes", medians, "≥", BAR, "×")])


def in_threads(partition: Partition) -> float:
    """The rate of two threads."""
    with ThreadPoolExecutor(2) as threads:
        return batches_per_second(partition, list(threads.map(learn, [partition, partition])))


def in_processes(partition: Partition, count: int) -> float:
    """The rate of some processes, which begin together."""
    context = multiprocessing.get_context("spawn")
    barrier, times = context.Barrier(count), context.SimpleQueue()
    arguments = (partition, barrier, times)
    processes = [context.Process(target=learn_together, args=arguments) for _ in range(count)]
    for process in processes:
        process.start()
    collected = [times.get() for _ in processes]
    for process in processes:
        process.join()
    return batches_per_second(partition, collected)


def batches_per_second(partition: Partition, times: Sequence[tuple[float, float]]) -> float:
    """The rate of all that learn together, by the times at which each began and ended."""
    starts, ends = zip(*times, strict=True)
    return float(len(times) * partition.batches / (max(ends) - min(starts)))


if __name__ == "__main__":
    main()
