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
    """Work until SIGTERM or SIGINT. Raises `StreampcaError` for errors that a restart cannot mend."""
    half_lives = {"messages": settings.half_life_messages, "seconds": settings.half_life_seconds}
    forgetting = [f"half in {value:g} {unit}" for unit, value in half_lives.items() if value]
    log_listener = WorkerLog()
    metrics = WorkerMetrics(settings.topic)
    store = open_store(settings.store, metrics.store.observe)
    facts = {
        "client": client_and_other(settings),
        "model": f"{settings.components} components of {settings.dimensions} dimensions",
        "kernels": kernels(),
        "forgets": forgetting[0] if forgetting else "nothing",
    }
    with member_process(
        settings, store, metrics, log_listener, facts, partial(could_save, settings), settings.checkpoint_interval_s
    ) as process:
        start = WorkerStart(settings, store)
        process.start(start.steps())
        worker = _build(start, store, process)
        log.info("worker started")
        try:
            process.started.run(worker.run, worker.stop)
        finally:
            log_listener.ended(process.listener.state)


def _build(start: WorkerStart, store: Store, process: Process) -> Worker:
    """Build a worker that is about to join the group; the steps before have reported the mistakes in its settings."""
    settings = start.settings
    config = start.policy
    publisher = Publisher(Models(store, settings.topic, settings.keep_models), config.fold, time.time)
    writer = CheckpointWriter(start.checkpoints, publisher)
    return Worker(config, start.source, start.in_flight(process), start.dead_letters, writer, process.listener)
