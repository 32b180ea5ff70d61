"""`streampca worker`: builds one worker from its settings and runs it."""

import time
from functools import partial

import structlog

from streampca.cli.builders import create_worker_config
from streampca.consumer_group import in_flight
from streampca.consumer_group.in_flight import InFlight
from streampca.consumer_group.process import Process, member_process
from streampca.pca.compilation import compile_kernels
from streampca.process.machine import kernels
from streampca.settings.commands import WorkerSettings
from streampca.sources.clients import (
    client_and_other,
    could_save,
    create_client,
    create_dead_letters,
    in_flight_limit_bytes,
)
from streampca.sources.events import decode_records
from streampca.stores.base import Store
from streampca.stores.checkpoints import Checkpoints
from streampca.stores.choice import open_store
from streampca.stores.models import Models
from streampca.worker.listeners import WorkerLog, WorkerMetrics
from streampca.worker.loop import Learned, Worker
from streampca.worker.publisher import Publisher
from streampca.worker.writer import CheckpointWriter

log = structlog.get_logger()

_COMPILATION_S = 15  # typical, on one core of a small server


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
            logged.ended(process.listener.state)


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
