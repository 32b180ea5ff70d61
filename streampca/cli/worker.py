"""`streampca worker`: builds one worker from its settings and runs it."""

import time
from functools import partial

import structlog

from streampca.cli.worker_start import WorkerStart
from streampca.consumer_group.process import Process, member_process
from streampca.process.machine import describe_openblas_kernels
from streampca.settings.commands import WorkerSettings
from streampca.sources.clients import describe_client, would_brokers_accept_save
from streampca.stores.base import Store
from streampca.stores.choice import open_store
from streampca.stores.models import Models
from streampca.worker.log import WorkerLog
from streampca.worker.loop import Worker
from streampca.worker.metrics import WorkerMetrics
from streampca.worker.publisher import Publisher
from streampca.worker.writer import CheckpointWriter

log = structlog.get_logger()


def run(settings: WorkerSettings) -> None:
    """Learn until SIGTERM or SIGINT. Raises `StreampcaError` for errors that a restart cannot mend."""
    worker_log = WorkerLog()
    metrics = WorkerMetrics(settings.topic)
    store = open_store(settings.store, metrics.store.observe)
    log_fields = {
        "client": describe_client(settings),
        "model": f"{settings.components} components of {settings.dimensions} dimensions",
        "kernels": describe_openblas_kernels(),
        "forgets": _describe_half_life(settings),
    }
    with member_process(
        settings,
        store,
        metrics,
        worker_log,
        log_fields,
        # If saves stop because brokers do not answer, this asks them with a new Kafka client whether they would accept
        # a save. If they would, the health check fails, so that the process is restarted.
        can_new_client_save=partial(would_brokers_accept_save, settings),
        save_after_s=settings.checkpoint_interval_s,
    ) as process:
        start = WorkerStart(settings, store)
        process.do_steps(start.steps())
        worker = _create_worker(start, store, process)
        log.info("worker started")
        try:
            process.prepared.run_loop(worker.run, worker.stop)  # until a signal, which calls `stop`
        finally:
            worker_log.log_end(process.member.state)


def _describe_half_life(settings: WorkerSettings) -> str:
    """Return, for the field "forgets" of the log, how fast the model forgets old messages."""
    if settings.half_life_messages:
        return f"half in {settings.half_life_messages:g} messages"
    if settings.half_life_seconds:
        return f"half in {settings.half_life_seconds:g} seconds"
    return "nothing"


def _create_worker(start: WorkerStart, store: Store, process: Process) -> Worker:
    """Create the worker from what the steps of its start have opened and found."""
    settings = start.settings
    models = Models(store, settings.topic, settings.keep_models)
    fold_config = start.config.fold  # how vectors are learned
    publisher = Publisher(models, fold_config, now=time.time)
    return Worker(
        config=start.config,
        source=start.source,
        in_flight=start.create_in_flight(process),
        dead_letters=start.dead_letters,
        writer=CheckpointWriter(start.checkpoints, publisher),
        notify=process.member.notify,  # tells log, metrics and status reports what the worker does
    )
