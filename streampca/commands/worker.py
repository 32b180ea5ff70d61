"""`streampca worker`: the concrete parts of one worker, put together."""

import contextlib
import ctypes
import gc
import signal
import sys
import time
from types import FrameType

import structlog
from prometheus_client import disable_created_metrics
from threadpoolctl import threadpool_limits

from streampca.pca.learning import LearningConfig
from streampca.settings import WorkerSettings
from streampca.sources import schema_registry
from streampca.sources.choice import client_of, dead_letters_of, reading_ahead
from streampca.stores.base import Store
from streampca.stores.checkpoints import Checkpoints
from streampca.stores.directory import DirectoryStore
from streampca.stores.models import Models
from streampca.stores.worker_status import WorkerStatuses
from streampca.stream.codec import Codec
from streampca.stream.fold import FoldConfig
from streampca.worker.checkpoint_writer import CheckpointWriter
from streampca.worker.kernels import Kernels
from streampca.worker.listener import Listener, Listeners
from streampca.worker.listeners.health import HealthListener, HealthServer
from streampca.worker.listeners.log import LogListener
from streampca.worker.listeners.metrics import WorkerMetrics
from streampca.worker.listeners.status import StatusListener, name_of_process
from streampca.worker.loop import Worker, WorkerConfig
from streampca.worker.publisher import Publisher

log = structlog.get_logger()

# How long a thread that reads may keep Python's lock from the one that learns, which lets go of it at every block; by
# default it is ten times as long, and learning waits more than it works.
_TURN_S = 0.0005

# Of glibc's malloc.h: M_MMAP_THRESHOLD, the size from which on memory is mapped for itself, and M_TRIM_THRESHOLD, how
# much may lie free at the heap's end. Its own, smaller choices cost a sixth of reading vectors of 3072 floats.
_KEPT = {-3: 32 * 2**20, -1: 64 * 2**20}


def run(settings: WorkerSettings) -> None:
    """Work until SIGTERM or SIGINT. Raises `StreampcaError` for what a person has to mend."""
    counts, alive = WorkerMetrics(settings.topic), HealthListener()
    sys.setswitchinterval(_TURN_S)
    keep_freed_memory()
    disable_created_metrics()  # type: ignore[no-untyped-call]  # they double the number of series for no one
    with (
        threadpool_limits(1),  # one BLAS thread: the same bits, and no threads fighting over blocks this small
        HealthServer(settings.worker_host, settings.worker_port, counts.registry, alive) as server,
    ):
        store = DirectoryStore(settings.store)
        store.check()
        with StatusListener(WorkerStatuses(store, settings.topic), name_of_process()) as reporter:
            told, kernels = LogListener(), Kernels(learning_config_of(settings))
            worker = _put_together(settings, store, Listeners(told, counts, alive, reporter, kernels), kernels)
            log.info("worker started", **_introduction(settings), metrics=server.url)
            _stop_on_signals(worker)
            gc.freeze()  # what is imported and compiled by now stays: no looking through it again while records fly by
            try:
                worker.run()
            finally:
                told.ended()


def _introduction(settings: WorkerSettings) -> dict[str, str]:
    """What it is going to learn, from where and into what, for who reads the log."""
    half_lives = {"messages": settings.half_life_messages, "seconds": settings.half_life_seconds}
    halved = [f"half in {value:g} {unit}" for unit, value in half_lives.items() if value]
    return {
        "topic": settings.topic,
        "brokers": settings.bootstrap_servers,
        "group": settings.group_id,
        "store": str(settings.store),
        "model": f"{settings.components} components of {settings.dimensions} dimensions",
        "forgets": halved[0] if halved else "nothing",
        "bad_records": f"to {settings.dead_letter_topic}" if settings.dead_letter_topic else settings.on_bad_record,
    }


def _put_together(settings: WorkerSettings, store: Store, listener: Listener, kernels: Kernels) -> Worker:
    config = worker_config_of(settings)
    config.codec.decode([])  # what is not installed, or cannot be reached, is told at once and not after a compilation
    checkpoints = Checkpoints(store, settings.topic, settings.keep_checkpoints)
    client = client_of(settings)
    if checkpoints.partitions():  # going on from them takes it all, and the group does better without us until then
        kernels.have_all()
    else:
        kernels.begin_all()
    source = reading_ahead(client, settings, config.codec.vectors_of)
    publisher = Publisher(checkpoints, Models(store, settings.topic, settings.keep_models), config.fold, time.time)
    return Worker(
        config, source, dead_letters_of(settings), CheckpointWriter(checkpoints, publisher), listener, kernels.ready
    )


def worker_config_of(settings: WorkerSettings) -> WorkerConfig:
    """What these settings ask of a worker."""
    learning_config = learning_config_of(settings)
    return WorkerConfig(
        topic=settings.topic,
        fold=FoldConfig(
            learning_config,
            settings.half_life_messages,
            settings.half_life_seconds,
            settings.format,
            settings.field,
        ),
        codec=Codec(
            settings.format,
            settings.dimensions,
            learning_config.largest_value,
            settings.dtype,
            settings.field,
            schema_registry.schemas_of(settings),
        ),
        bad_records="dead_letter" if settings.dead_letter_topic else settings.on_bad_record,
        offset_gap=settings.on_offset_gap,
        checkpoint_interval_s=settings.checkpoint_interval_s,
        checkpoint_messages=settings.checkpoint_messages,
    )


def learning_config_of(settings: WorkerSettings) -> LearningConfig:
    """What these settings make of a model."""
    return LearningConfig(
        settings.dimensions, settings.components, settings.oversampling, settings.center, settings.dtype
    )


def keep_freed_memory() -> None:
    """Let the C library keep what one batch frees for the next: by default pages are given back and got anew."""
    with contextlib.suppress(AttributeError, OSError):  # not glibc
        libc = ctypes.CDLL(None)
        for option, size in _KEPT.items():
            libc.mallopt(option, size)


def _stop_on_signals(worker: Worker) -> None:
    def stop(number: int, frame: FrameType | None) -> None:
        worker.stop(signal.Signals(number).name)

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
