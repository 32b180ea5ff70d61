"""`streampca transform`: builds one member from its settings and runs it."""

from functools import partial

from streampca.cli.transform_start import TransformStart
from streampca.consumer_group.events import ModelFixed
from streampca.consumer_group.process import Process, member_process
from streampca.process.start import end_on_signals, stop_on_signals
from streampca.settings.commands import TransformSettings
from streampca.sources.clients import could_save, describe_client
from streampca.stores.choice import open_store
from streampca.stores.model_cache import POLL_INTERVAL_S
from streampca.transform.log import TransformLog
from streampca.transform.loop import Transformer
from streampca.transform.metrics import TransformMetrics
from streampca.transform.outputs import Outputs


def run(settings: TransformSettings) -> None:
    """Project until SIGTERM or SIGINT. Raises `StreampcaError` for errors that a restart cannot mend."""
    transform_log = TransformLog()
    metrics = TransformMetrics(settings.topic)
    store = open_store(settings.store, metrics.store.observe)
    log_fields = {
        "client": describe_client(settings),
        "model": _describe_model(settings),
        "emits": f"{settings.emit} as {settings.output_format}",
    }
    with member_process(
        settings,
        store,
        metrics,
        transform_log,
        log_fields,
        could_save=partial(could_save, settings),
        save_after_s=0.0,  # a transaction is committed soon
        output_topic=settings.output_topic,
    ) as process:
        start = TransformStart(settings, store)
        find_model, *later_steps = start.steps()
        # While the start waits for a model, a signal is only noted, and `process.start` returns soon.
        stop_signals: list[str] = []  # names of the signals that have come
        stop_on_signals(stop_signals.append)
        try:
            process.start([find_model], stop_signals)  # may take days, until the first model is published
            # From here on, a signal ends the process at once: there is no loop yet that could be stopped. When the loop
            # runs, a signal stops it.
            end_on_signals()
            if stop_signals:
                return
            if start.model.version is not None:
                process.member.notify(ModelFixed(start.model.version, start.pin_names))
            start.cache.start(POLL_INTERVAL_S)
            process.start(later_steps)
            transformer = _create_transformer(start, process)
            process.started.run(transformer.run, transformer.stop)
        finally:
            start.cache.stop()
            transform_log.log_end(process.member.state)


def _describe_model(settings: TransformSettings) -> str:
    """Say in the log with which model to project: a version, the name of a pin, or the newest."""
    version_or_pin = settings.model_version
    if isinstance(version_or_pin, int):
        return f"version {version_or_pin}"
    return version_or_pin or "newest"


def _create_transformer(start: TransformStart, process: Process) -> Transformer:
    """Create the member of transform from what the steps of its start have opened and found."""
    settings = start.settings
    outputs = Outputs(
        topic=settings.output_topic,
        codec=start.codec,
        model=start.model,
        output_fields=start.output_fields,
        packer=start.packer,
        source_topic=settings.topic,
        dead_letter_topic=settings.dead_letter_topic,
        only_p_below=settings.only_p_below,
    )
    return Transformer(
        config=start.policy,
        source=start.source,
        in_flight=start.create_in_flight(process),
        transactions=start.transactions,
        outputs=outputs,
        start_finder=start.start_finder,
        notify=process.member.notify,
    )
