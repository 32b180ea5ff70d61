"""`streampca transform`: builds one member from its settings and runs it."""

from functools import partial

from streampca.cli.transform_start import TransformStart
from streampca.consumer_group.events import ModelFixed
from streampca.consumer_group.process import Process, member_process
from streampca.process.start import end_on_signals, stop_on_signals
from streampca.settings.commands import TransformSettings
from streampca.sources.clients import (
    client_and_other,
    could_save,
)
from streampca.stores.choice import open_store
from streampca.stores.model_cache import POLL_INTERVAL_S
from streampca.transform.listeners import TransformLog, TransformMetrics
from streampca.transform.loop import Transformer
from streampca.transform.outputs import Outputs


def run(settings: TransformSettings) -> None:
    """Work until SIGTERM or SIGINT. Raises `StreampcaError` for errors that a restart cannot mend."""
    log_listener = TransformLog()
    metrics = TransformMetrics(settings.topic)
    store = open_store(settings.store, metrics.store.observe)
    model = "newest" if settings.model_version is None else settings.model_version
    facts = {
        "client": client_and_other(settings),
        "model": f"version {model}" if isinstance(model, int) else model,
        "emits": f"{settings.emit} as {settings.output_format}",
    }
    with member_process(
        settings, store, metrics, log_listener, facts, partial(could_save, settings),
        save_after_s=0.0,  # a transaction is committed soon
        output_topic=settings.output_topic,
    ) as process:  # fmt: skip
        start = TransformStart(settings, store)
        stops = list[str]()
        stop_on_signals(stops.append)
        try:
            find_model, *steps = start.steps()
            process.start([find_model], stops)  # may take days, until the first model is published
            end_on_signals()
            if stops:
                return
            if start.model.version is not None:
                process.listener.notify(ModelFixed(start.model.version, start.pin_names))
            start.cache.start(POLL_INTERVAL_S)
            process.start(steps)
            transformer = _build(start, process)
            process.started.run(transformer.run, transformer.stop)
        finally:
            start.cache.stop()
            log_listener.ended(process.listener.state)


def _build(start: TransformStart, process: Process) -> Transformer:
    """Build a member that is about to join the group; the steps before have reported the mistakes in its settings."""
    settings = start.settings
    outputs = Outputs(
        settings.output_topic,
        start.codec,
        start.model,
        start.output_fields,
        start.packer,
        settings.topic,
        settings.dead_letter_topic,
        settings.only_p_below,
    )
    in_flight = start.in_flight(process)
    return Transformer(start.policy, start.source, in_flight, start.transactions, outputs, process.listener)
