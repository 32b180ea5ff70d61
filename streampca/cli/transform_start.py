"""The start of a member of transform."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial

from streampca.cli.member_start import MemberStart
from streampca.consumer_group.step import NotYetError, Step
from streampca.errors import SourceError
from streampca.formats.codec import Codec
from streampca.formats.judge import Judge
from streampca.process.machine import kernels
from streampca.settings.commands import TransformSettings
from streampca.sources.base import Transactions
from streampca.sources.client_connection import TopicError
from streampca.sources.clients import create_transactions, require_writable
from streampca.sources.schema_registry import create_schemas, create_writer
from streampca.stores.base import Store
from streampca.stores.model_cache import ModelCache
from streampca.stores.models import Models
from streampca.stores.pins import Pins
from streampca.transform.loop import TransformConfig
from streampca.transform.models import CurrentModel
from streampca.transform.output_fields import OutputFields
from streampca.transform.outputs import Packer, RecordPacker, refuse_too_few
from streampca.transform.position import refuse_other_outputs

_DOCTOR = "streampca-doctor"  # in place of a member's group_instance_id, so that no member's producer is fenced


class TransformStart(MemberStart):
    """The start of one member of transform."""

    settings: TransformSettings
    policy: TransformConfig
    packer: Packer
    transactions: Transactions
    pin_names: Sequence[str] = ()
    """The names that hold the version of the model, if it is fixed."""

    def __init__(self, settings: TransformSettings, store: Store) -> None:
        super().__init__(settings)
        self.policy = TransformConfig(settings.topic, settings.bad_record_policy, settings.on_offset_gap)
        self._models = Models(store, settings.topic)
        self._pins = Pins(store, settings.topic)
        self.cache = ModelCache(self._models)
        with_p = settings.only_p_below is not None
        self.output_fields = OutputFields(settings.emitted, settings.basis, with_p)  # with names from the model later
        p_below = settings.only_p_below or 1.0 if self.output_fields.needs_past_scores else None
        self.model = CurrentModel(
            self.cache,
            settings.model_version,
            settings.output_topic,
            p_below=p_below,
            field=settings.field,
            pins=self._pins.all,
        )

    def steps(self) -> list[Step]:
        return [
            Step("model", self._find_model, waits_for="model"),
            Step("matrix kernels", kernels),
            Step("format", self._create_codec, after=["model"]),
            Step(
                "output schema",
                self._create_packer,
                after=["format"],
                waits_for="the schema registry",
                check=partial(self._create_packer, registers=False),
            ),
            *self._steps_at_the_brokers(),
            Step("output topic", self._check_output_topic, after=["topic"]),
            Step(
                "transactions",
                self._take_id,
                after=["output topic"],
                check=partial(self._take_id, group_instance_id=_DOCTOR),
            ),
            Step("transform group", self._check_group, after=["topic", "model"]),
        ]

    def _find_model(self) -> str:
        if location := self._models.store.missing():
            raise TimeoutError(
                f"there is no store at {location}: start a worker first, mount its volume, or correct store"
            )
        self._models.versions()  # raises if the store cannot be read
        self.cache.poll()
        if cause := self.model.refresh():
            raise NotYetError(cause)
        if self.model.version is not None:
            self.pin_names = [name for name, version in self._pins.all().items() if version == self.model.version]
        used = self.model.published
        scores = "without" if used.past_scores is None else "with"
        k, d = used.model.n_components, used.model.dimensions
        return f"version {used.version} has {k} components of {d} dimensions, {scores} past scores"

    def _create_codec(self) -> str:
        settings, published = self.settings, self.model.published
        self.output_fields = replace(self.output_fields, named=published.names is not None)
        judge = Judge.of_projected(published.model.dimensions, settings.vector_dtype, impute=published.impute)
        several = settings.output_format not in ("avro", "protobuf")
        return self._use(Codec(settings.format, judge, settings.field, create_schemas(settings), several))

    def _create_packer(self, *, registers: bool = True) -> str:
        settings = self.settings
        if settings.output_format == "arrow":
            from streampca.transform.arrow import ArrowPacker  # here: an optional dependency

            self.packer = ArrowPacker()
        else:
            layout = self.output_fields.layout
            writer = create_writer(settings, settings.output_format, settings.output_topic, layout, registers=registers)
            self.packer = RecordPacker(writer, batches=self.codec.is_batch)
        return f"outputs can be written as {settings.output_format}"

    def _check_output_topic(self) -> str:
        name = self.settings.output_topic
        count = require_writable(self.settings, name)
        refuse_too_few(name, count, self.settings.topic, self.source.partitions())
        return f"{name} has {count} partitions and may be written to"

    def _take_id(self, **other_id: str) -> str:
        """Take the transactional id of the member, or another one; this ends the id's earlier transaction."""
        settings = self.settings.model_copy(update=other_id)
        topics = [topic for topic in (settings.output_topic, settings.dead_letter_topic) if topic]
        transactions = create_transactions(settings, self.source, topics)
        ids = f"transactional ids that begin with {settings.group}-"
        try:
            transactions.recover()
        except TopicError as error:
            raise SourceError(f"{error}; transform needs the rights Write and Describe for {ids}") from None
        self.transactions = self.opened.enter_context(closing(transactions))
        return f"this user may use {ids}"

    def _check_group(self) -> str:
        finding = self._find_committed()
        refuse_other_outputs(self.settings.topic, self.topic_id, self.committed, self.model.require_shape)
        self.positions = {partition: offset.offset for partition, offset in self.committed.items()}
        return finding
