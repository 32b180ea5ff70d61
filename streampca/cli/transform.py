"""`streampca transform`: builds one member from its settings and runs it."""

import time
from functools import partial

from streampca.cli.builders import create_codec, create_current_model, create_output_fields
from streampca.consumer_group import in_flight
from streampca.consumer_group.events import ModelFixed, StartDelayed
from streampca.consumer_group.in_flight import InFlight
from streampca.consumer_group.process import Process, member_process
from streampca.process.start import end_on_signals, stop_on_signals
from streampca.settings.commands import TransformSettings
from streampca.sources.clients import (
    client_and_other,
    could_save,
    create_client,
    create_transactions,
    in_flight_limit_bytes,
)
from streampca.sources.events import decode_records
from streampca.sources.schema_registry import create_writer
from streampca.stores.choice import open_store
from streampca.stores.model_cache import POLL_INTERVAL_S, ModelCache
from streampca.stores.models import Models
from streampca.stores.pins import Pins
from streampca.transform.listeners import TransformLog, TransformMetrics
from streampca.transform.loop import TransformConfig, Transformer
from streampca.transform.models import CurrentModel
from streampca.transform.outputs import Outputs, Packer, RecordPacker, TransformedBatch

_WAIT_S = 0.2


def run(settings: TransformSettings) -> None:
    """Work until SIGTERM or SIGINT. Raises `StreampcaError` for errors that restarting cannot fix."""
    logged, metrics = TransformLog(), TransformMetrics(settings.topic)
    version, stops = settings.model_version, list[str]()
    store = open_store(settings.store, metrics.store.observe)
    shown = {
        "client": client_and_other(settings),
        "model": "newest" if version is None else f"version {version}" if isinstance(version, int) else version,
        "emits": f"{settings.emit} as {settings.output_format}",
    }
    with member_process(
        settings, store, metrics, logged, shown, partial(could_save, settings),
        save_after_s=0.0,  # a transaction is committed soon
        output_topic=settings.output_topic,
    ) as process:  # fmt: skip
        models, pins = Models(store, settings.topic), Pins(store, settings.topic)
        process.wait_for("the store", models.versions)
        cache = ModelCache(models)
        model = create_current_model(settings, cache, pins)
        stop_on_signals(stops.append)
        cache.start(POLL_INTERVAL_S)
        try:
            while (cause := model.refresh()) and not stops:
                process.listener.notify(StartDelayed("model", cause))
                time.sleep(_WAIT_S)
            end_on_signals()
            if stops:
                return
            if model.version is not None:
                pinned = process.wait_for("the store", pins.all)
                names = [name for name, version in pinned.items() if version == model.version]
                process.listener.notify(ModelFixed(model.version, names))
            transformer = _build(settings, model, process)
            process.started.run(transformer.run, transformer.stop)
        finally:
            cache.stop()
            logged.ended(process.listener.state)


def _build(settings: TransformSettings, model: CurrentModel, process: Process) -> Transformer:
    """A member that is about to join the group: every mistake that can be found earlier has been reported."""
    named = model.published.names is not None
    codec = create_codec(settings, model.published)
    output_fields = create_output_fields(settings, named=named)
    codec.decode([])  # raises if a package is missing
    packer: Packer
    if settings.output_format == "arrow":
        from streampca.transform.arrow import ArrowPacker  # here: an optional dependency

        packer = ArrowPacker()
    else:
        create = partial(create_writer, settings, settings.output_format, settings.output_topic, output_fields.layout)
        packer = RecordPacker(process.wait_for("the schema registry", create), batches=codec.is_batch)
    outputs = Outputs(
        settings.output_topic,
        codec,
        model,
        output_fields,
        packer,
        settings.topic,
        settings.dead_letter_topic,
        settings.only_p_below,
    )
    client = process.wait_for("brokers", partial(create_client, settings))
    topics = [topic for topic in (settings.output_topic, settings.dead_letter_topic) if topic]
    transactions = process.wait_for("brokers", partial(create_transactions, settings, client, topics))
    decode = process.traced(partial(decode_records, codec))
    tasks = InFlight[TransformedBatch](
        in_flight.threads(), decode, in_flight_limit_bytes(settings), process.started.threads.raise_first
    )
    config = TransformConfig(settings.topic, settings.bad_record_policy, settings.on_offset_gap)
    return Transformer(config, client, tasks, transactions, outputs, process.listener)
