"""`streampca transform`: builds one member from its settings and runs it."""

import gc
import time
from collections.abc import Callable, Sequence

import structlog
from threadpoolctl import threadpool_limits

from streampca.commands.encoding import frame
from streampca.commands.process import name_of_process, prepare, stop_on_signals
from streampca.consumer_group.health import HealthListener, health_server
from streampca.consumer_group.listener import Listener, Listeners, LoopTicked, ModelAwaited
from streampca.consumer_group.status import StatusListener
from streampca.settings import TransformSettings
from streampca.sources import schema_registry
from streampca.sources.clients import client_of, prefetching, transactions_of
from streampca.stores.choice import store_of
from streampca.stores.model_cache import POLL_INTERVAL_S, ModelCache
from streampca.stores.models import Models
from streampca.stores.worker_status import WorkerStatuses
from streampca.stream.codec import Codec
from streampca.stream.model_file import PublishedModel
from streampca.thread_failures import ThreadFailures
from streampca.transform.encoding import encoder, schema_of
from streampca.transform.log import TransformLog
from streampca.transform.loop import TransformConfig, Transformer
from streampca.transform.messages import Packer, RecordPacker
from streampca.transform.metrics import TransformMetrics
from streampca.transform.models import CurrentModel
from streampca.transform.outputs import Outputs
from streampca.transform.projection import Projection

log = structlog.get_logger()

_LARGEST_VALUE = 1e150  # its square is finite
_WAIT_S = 0.2
_GC_THRESHOLD = 1_000_000  # objects: records are many, and none of them is in a cycle


def run(settings: TransformSettings) -> None:
    """Work until SIGTERM or SIGINT. Raises `StreampcaError` for errors that restarting cannot fix."""
    metrics, health, logged = TransformMetrics(settings.topic), HealthListener(), TransformLog()
    prepare()
    with (
        ThreadFailures() as threads,
        threadpool_limits(1),  # one BLAS thread: the same bits, and no threads competing for blocks this small
        health_server(settings.host, settings.metrics_port, metrics.registry, health) as server,
    ):
        store = store_of(settings.store, metrics.store.observe)
        log.info("transform starting", **_summary(settings, store.place), metrics=server.url)
        cache = ModelCache(Models(store, settings.topic))
        model = model_of(settings, cache)
        stops: list[str] = []
        stop_on_signals(stops.append)
        cache.start(POLL_INTERVAL_S)
        reports = WorkerStatuses(store, settings.topic)
        try:
            with StatusListener(reports, name_of_process(), output_topic=settings.output_topic) as status:
                listener = Listeners(logged, metrics, health, status)
                _wait_for_model(model, listener, stops)
                if stops:
                    return
                transformer = _build(settings, model, listener, threads.raise_first)
                stop_on_signals(transformer.stop)
                for cause in stops:  # signals that came meanwhile
                    transformer.stop(cause)
                gc.freeze()  # keeps the collector from scanning all that is imported by now
                gc.set_threshold(_GC_THRESHOLD)
                transformer.run()
                threads.raise_first()
        finally:
            cache.stop()
            logged.ended()


def _wait_for_model(model: CurrentModel, listener: Listener, stops: Sequence[str]) -> None:
    """Return when there is a model, or a signal has come."""
    while (cause := model.refresh()) and not stops:
        listener.notify(LoopTicked())
        listener.notify(ModelAwaited(cause))
        time.sleep(_WAIT_S)


def _build(
    settings: TransformSettings, model: CurrentModel, listener: Listener, check_threads: Callable[[], None]
) -> Transformer:
    """A member that is about to join the group: every mistake that can be found earlier has been reported."""
    codec = codec_of(settings, model.published)
    codec.decode([])  # raises if a package is missing or the schema registry is away
    outputs = Outputs(
        settings.output_topic,
        codec,
        model,
        _projection_of(settings),
        _packer(settings),
        settings.topic,
        settings.dead_letter_topic,
        settings.only_p_below,
    )
    client = client_of(settings)
    topics = [topic for topic in (settings.output_topic, settings.dead_letter_topic) if topic]
    transactions = transactions_of(settings, client, topics)
    source = prefetching(client, settings, outputs.read)
    bad_records = "dead_letter" if settings.dead_letter_topic else settings.on_bad_record
    config = TransformConfig(settings.topic, bad_records, settings.on_offset_gap)
    return Transformer(config, source, transactions, outputs, listener, check_threads)


def _packer(settings: TransformSettings) -> Packer:
    """How outputs are written. Raises `SourceError`."""
    if settings.output_format == "arrow":
        from streampca.transform.arrow import ArrowPacker  # here: an optional dependency

        return ArrowPacker()
    return RecordPacker(encoder(settings.output_format, _frame(settings)), several=settings.format == "arrow")


def model_of(settings: TransformSettings, cache: ModelCache) -> CurrentModel:
    """The model that records are projected with, from a cache of the topic's models."""
    needs_calibration = _projection_of(settings).needs_calibration
    return CurrentModel(cache, settings.model_version, settings.output_topic, needs_calibration=needs_calibration)


def _projection_of(settings: TransformSettings) -> Projection:
    return Projection(settings.emitted, settings.basis, settings.only_p_below is not None)


def codec_of(settings: TransformSettings, model: PublishedModel) -> Codec:
    """Decodes the vectors that a model projects. Raises `SettingsError` if a package is missing."""
    return Codec(
        settings.format,
        model.model.dimensions,
        _LARGEST_VALUE,
        dtype="float32" if settings.format == "float32" else "float64",
        field=settings.field,
        schemas=schema_registry.schemas_of(settings),
        min_observed=1 if model.settings.get("missing") == "impute" else None,
    )


def _frame(settings: TransformSettings) -> bytes:
    """The bytes before the payload of Avro and Protobuf; registers the schema. Raises `SourceError`."""
    schema = schema_of(settings.output_format, settings.emitted)
    with_format = settings.model_copy(update={"format": settings.output_format})  # for errors
    return b"" if schema is None else frame(with_format, settings.output_topic, schema)


def _summary(settings: TransformSettings, place: str) -> dict[str, str]:
    """The main settings, for the log."""
    version = settings.model_version
    return {
        "topic": settings.topic,
        "output": settings.output_topic,
        "brokers": settings.bootstrap_servers,
        "group": settings.group,
        "store": place,
        "model": "newest" if version is None else f"version {version}",
        "emits": f"{settings.emit} as {settings.output_format}",
        "bad_records": f"to {settings.dead_letter_topic}" if settings.dead_letter_topic else settings.on_bad_record,
    }
