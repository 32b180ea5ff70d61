"""`streampca transform`: builds one member from its settings and runs it."""

from functools import partial

from streampca.cli.transform_start import TransformStart
from streampca.consumer_group.events import ModelVersionFixed
from streampca.consumer_group.process import Process, member_process
from streampca.consumer_group.step import Step
from streampca.process.start import end_on_signals, stop_on_signals
from streampca.settings.commands import TransformSettings
from streampca.sources.clients import describe_client, would_brokers_accept_save
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
        # Called if commits stop because brokers do not answer: would they accept a commit from a new client? If so, a
        # restart would help, and the process reports that it is unhealthy.
        can_new_client_save=partial(would_brokers_accept_save, settings),
        save_after_s=0.0,  # at once: a transaction commits a record within a second after it was read
        output_topic=settings.output_topic,
    ) as process:
        start = TransformStart(settings, store)
        find_model, *later_steps = start.steps()  # the first may wait long; the later steps need its model
        try:
            has_found_model = _wait_for_model(process, find_model)
            if not has_found_model:
                return
            fixed_version = start.current_model.fixed_version
            if fixed_version is not None:
                process.member.notify(ModelVersionFixed(fixed_version, start.pin_names))
            start.model_cache.start(POLL_INTERVAL_S)
            process.do_steps(later_steps)
            transformer = _create_transformer(start, process)
            process.prepared.run_loop(transformer.run, transformer.stop)  # until a signal, which calls `stop`
        finally:
            start.model_cache.stop()
            transform_log.log_end(process.member.state)


def _wait_for_model(process: Process, find_model: Step) -> bool:
    """Repeat the step that finds the model until it is done. Return False if a signal ends the wait."""
    stop_signals: list[str] = []  # the names of the signals that have arrived
    stop_on_signals(stop_signals.append)  # a signal appends its name to the list
    process.do_steps([find_model], stop_signals)  # returns early if the list is not empty
    end_on_signals()  # from now on, a signal ends the process at once
    return not stop_signals


def _describe_model(settings: TransformSettings) -> str:
    """Return, for the log, which model projects: a version, the name of a pin, or the newest."""
    version_or_pin = settings.model_version
    if isinstance(version_or_pin, int):
        return f"version {version_or_pin}"
    return version_or_pin or "newest"


def _create_transformer(start: TransformStart, process: Process) -> Transformer:
    """Create the loop of transform from the parts that `start` has prepared."""
    settings = start.settings
    outputs = Outputs(
        topic=settings.output_topic,
        codec=start.codec,
        model=start.current_model,
        output_fields=start.output_fields,
        packer=start.packer,
        source_topic=settings.topic,
        dead_letter_topic=settings.dead_letter_topic,
        only_p_below=settings.only_p_below,  # records with a higher p-value get no output
    )
    return Transformer(
        config=start.config,
        source=start.source,
        in_flight=start.create_in_flight(process),
        transactions=start.transactions,
        outputs=outputs,
        start_finder=start.start_finder,
        notify=process.member.notify,
    )
