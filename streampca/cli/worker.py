"""`streampca worker`: builds one worker from its settings and runs it."""

import time
from functools import partial

import structlog

from streampca.cli.worker_start import WorkerStart
from streampca.consumer_group.process import Process, member_process
from streampca.process.machine import kernels
from streampca.settings.commands import WorkerSettings
from streampca.sources.clients import (
    client_and_other,
    could_save,
)
from streampca.stores.base import Store
from streampca.stores.choice import open_store
from streampca.stores.models import Models
from streampca.worker.listeners import WorkerLog, WorkerMetrics
from streampca.worker.loop import Worker
from streampca.worker.publisher import Publisher
from streampca.worker.writer import CheckpointWriter

log = structlog.get_logger()


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
        start = WorkerStart(settings, store)
        process.start(start.steps())
        worker = _build(start, store, process)
        log.info("worker started")
        try:
            process.started.run(worker.run, worker.stop)
        finally:
            logged.ended(process.listener.state)


def _build(start: WorkerStart, store: Store, process: Process) -> Worker:
    """A worker whose source is about to join the group: every mistake that can be found earlier has been reported."""
    settings, config = start.settings, start.policy
    publisher = Publisher(Models(store, settings.topic, settings.keep_models), config.fold, time.time)
    writer = CheckpointWriter(start.checkpoints, publisher)
    return Worker(config, start.source, start.in_flight(process), start.dead_letters, writer, process.listener)
