"""`streampca worker`: builds one worker from its settings and runs it; `streampca audit`: repeats its learning."""

import itertools
import time
from contextlib import closing
from dataclasses import replace
from functools import partial

import structlog
from threadpoolctl import threadpool_limits

from streampca.cli.console import console
from streampca.consumer_group import in_flight
from streampca.consumer_group.in_flight import InFlight
from streampca.consumer_group.process import Process, member_process
from streampca.errors import SettingsError, StreampcaError
from streampca.fold import checkpoint as files, npz
from streampca.fold.fold import Fold, FoldConfig
from streampca.formats.codec import Codec
from streampca.formats.judge import Judge
from streampca.pca.compilation import compile_kernels
from streampca.pca.learning import LearningConfig
from streampca.process.machine import kernels
from streampca.settings.commands import WorkerSettings
from streampca.settings.field_paths import dimension_names
from streampca.sources.clients import (
    client_and_other,
    could_save,
    create_client,
    create_dead_letters,
    in_flight_limit_bytes,
    open_reader,
)
from streampca.sources.events import decode_records
from streampca.sources.schema_registry import create_schemas
from streampca.stores.base import Store
from streampca.stores.checkpoints import Checkpoints
from streampca.stores.choice import open_store
from streampca.stores.models import Models
from streampca.worker.checkpointer import WorkerConfig
from streampca.worker.listeners import WorkerLog, WorkerMetrics
from streampca.worker.loop import Learned, Worker
from streampca.worker.writer import CheckpointWriter, Publisher

log = structlog.get_logger()

_COMPILATION_S = 15  # typical, on one core of a small server
_RECORDS = 2000  # learned at a time by an audit: where they are cut changes no bit


def run(settings: WorkerSettings) -> None:
    """Work until SIGTERM or SIGINT. Raises `StreampcaError` for errors that restarting cannot fix."""
    half_lives = {"messages": settings.half_life_messages, "seconds": settings.half_life_seconds}
    halved = [f"half in {value:g} {unit}" for unit, value in half_lives.items() if value]
    logged, metrics = WorkerLog(), WorkerMetrics(settings.topic)
    store = open_store(settings.store, metrics.store.observe)
    shown = {
        "client": client_and_other(settings),
        "model": f"{settings.components} components of {settings.dimensions} dimensions",
        "kernels": kernels(),
        "forgets": halved[0] if halved else "nothing",
    }
    with member_process(
        settings, store, metrics, logged, shown, partial(could_save, settings), settings.checkpoint_interval_s
    ) as process:
        process.wait_for("the store", store.check)
        worker = _build(settings, store, process)
        log.info("worker started")
        try:
            process.started.run(worker.run, worker.stop)
        finally:
            logged.ended()


def _build(settings: WorkerSettings, store: Store, process: Process) -> Worker:
    """A worker whose source is about to join the group: every mistake that can be found earlier has been reported."""
    config = create_worker_config(settings)
    config.codec.decode([])  # raises if a package is missing
    client = process.wait_for("brokers", partial(create_client, settings))
    dead_letters = process.wait_for("brokers", partial(create_dead_letters, settings))
    # Not later: a group waits for members that do not poll.
    compile_kernels(config.fold.learning, partial(log.info, "compiling kernels", expected_seconds=_COMPILATION_S))
    decode = process.traced(partial(decode_records, config.codec))
    tasks = InFlight[Learned](
        in_flight.threads(), decode, in_flight_limit_bytes(settings), process.started.threads.raise_first
    )
    publisher = Publisher(Models(store, settings.topic, settings.keep_models), config.fold, time.time)
    writer = CheckpointWriter(Checkpoints(store, settings.topic), publisher)
    return Worker(config, client, tasks, dead_letters, writer, process.listener)


def create_worker_config(settings: WorkerSettings) -> WorkerConfig:
    """The part of the settings that the worker's loop uses."""
    learning_config = LearningConfig(
        settings.dimensions,
        settings.components,
        settings.oversampling,
        settings.center,
        settings.model_dtype,
        impute=settings.missing == "impute",
        standardize=settings.standardize,
    )
    names = dimension_names(settings.field, settings.dimensions)
    if not npz.are_names(names, settings.dimensions):
        raise SettingsError(f"field: names must differ and have at most {npz.MAX_NAME} characters")
    return WorkerConfig(
        topic=settings.topic,
        fold=FoldConfig(
            learning_config,
            settings.half_life_messages,
            settings.half_life_seconds,
            settings.format_name,
            settings.field,
            names,
        ),
        codec=Codec(settings.format, Judge.of(learning_config), settings.field, create_schemas(settings)),
        on_bad_record=settings.bad_record_policy,
        on_offset_gap=settings.on_offset_gap,
        checkpoint_interval_s=settings.checkpoint_interval_s,
        start=settings.start_at,
    )


def audit(settings: WorkerSettings, partition: int, start: int | None, end: int | None) -> None:
    """Learn the records between two checkpoints again; print that the bytes are the same, or raise `StreampcaError`."""
    checkpoints, config = Checkpoints(open_store(settings.store), settings.topic), create_worker_config(settings)
    kept = checkpoints.offsets(partition)
    start, end = kept[0] if start is None and kept else start or 0, kept[-1] if end is None and kept else end
    if end not in kept or (start not in kept and start != 0) or not start < end:
        raise SettingsError(
            f"--from and --to must be two checkpoints of partition {partition}, or 0; there are: "
            f"{', '.join(map(str, kept)) or 'none'}"
        )
    written = files.decode(checkpoints.at(partition, end))
    written.refuse_other_settings(config.fold)
    before = files.decode(checkpoints.at(partition, start)).fold if start in kept else Fold.empty(config.fold.learning)
    with closing(open_reader(settings, settings.topic)) as reader, threadpool_limits(1):
        fold, count, records = before, 0, reader.between(partition, start, end)
        while some := list(itertools.islice(records, _RECORDS)):
            fold = fold.take(config.codec.batch_of(some, some[-1].offset + 1), config.fold)[0]
            count += len(some)
    where = f"partition {partition}, offsets {start} to {end}: {count:,} records learned again"
    if files.encode(replace(written, fold=fold.at(end))) != files.encode(written):  # in the format of this release
        raise StreampcaError(
            f"{where}, and the checkpoint has other bytes. The worker that wrote it may have had another processor, "
            "other libraries or an earlier release; if not, records were lost or learned twice: please report it"
        )
    console().print(f"{where}; the checkpoint has the same bytes")
