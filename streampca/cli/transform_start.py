"""The start of a member of transform."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial

from streampca.cli.member_start import MemberStart
from streampca.consumer_group.step import NotYetError, Step
from streampca.errors import SourceError
from streampca.fold.model_file import PublishedModel
from streampca.formats.codec import Codec
from streampca.formats.judge import Judge
from streampca.formats.trial import check_writer
from streampca.process.machine import describe_openblas_kernels
from streampca.settings.commands import TransformSettings
from streampca.settings.plug_ins import FORMATS_WITH_SCHEMA, load_format
from streampca.sources.base import Transactions
from streampca.sources.broker_errors import TopicError
from streampca.sources.clients import create_transactions, open_reader, require_writable
from streampca.sources.schema_registry import create_schemas, create_writer
from streampca.stores.base import Store
from streampca.stores.model_cache import ModelCache
from streampca.stores.models import Models
from streampca.stores.pins import Pins
from streampca.transform.loop import TransformConfig
from streampca.transform.models import CurrentModel
from streampca.transform.output_fields import OutputFields
from streampca.transform.record_packer import Packer, RecordPacker
from streampca.transform.starts import StartFinder, require_output_partitions

_UNUSED_INSTANCE_ID = "streampca-doctor"  # a group_instance_id that no member has


def create_codec(settings: TransformSettings, published: PublishedModel) -> Codec:
    """Create the codec that decodes records into vectors, and rejects records that the model cannot project."""
    output_has_schema = settings.output_format in FORMATS_WITH_SCHEMA
    judge = Judge.of_projected(  # rejects vectors that the model cannot project
        published.model.dimensions,
        settings.vector_dtype,
        impute=published.impute,
        missing_values=published.missing_values,
    )
    return Codec(
        settings.format,
        judge,
        field=settings.field,
        schemas=create_schemas(settings),
        where=settings.where,
        label=settings.label,
        allows_several=not output_has_schema,  # an output with a schema has fields for a single vector
    )


class TransformStart(MemberStart):
    """The start of one member of transform."""

    settings: TransformSettings
    config: TransformConfig
    packer: Packer  # encodes outputs
    transactions: Transactions
    start_finder: StartFinder
    output_partitions: int  # number of partitions of the output topic
    pin_names: Sequence[str] = ()
    """The pins of the model's version, if the settings fix the version."""

    def __init__(self, settings: TransformSettings, store: Store) -> None:
        super().__init__(settings)
        self.config = TransformConfig(settings.topic, settings.bad_record_policy, settings.on_offset_gap)
        self._models = Models(store, settings.topic)
        self._pins = Pins(store, settings.topic)
        self.model_cache = ModelCache(self._models)
        # Once a model is loaded, `_create_codec` adds whether its dimensions have names.
        self.output_fields = OutputFields(
            emitted=settings.emitted,
            basis=settings.basis,
            with_p=settings.only_p_below is not None,  # p decides which outputs are sent
            with_label=settings.label != "",
        )
        self.current_model = CurrentModel(
            self.model_cache,
            settings.model_version,
            settings.output_topic,
            needs_past_scores=self.output_fields.needs_past_scores,
            p_below=settings.only_p_below,
            field=settings.field_with_names,  # paths such as x,y name the model's dimensions
            pins=self._pins.all,
        )

    def steps(self) -> list[Step]:
        """Return the steps in their order.

        `after` names the steps whose results a step uses. `waits_for` is what the log names while a step is tried
        again. If a step has a `check`, `streampca doctor` runs the check instead of the step.
        """
        return [
            Step("model", self._find_model, waits_for="model"),
            Step("matrix kernels", describe_openblas_kernels),  # only a report, which warns of slow kernels
            Step("format", self._create_codec, after=["model"]),
            Step(
                "output schema",
                self._create_packer,
                after=["format"],
                waits_for="the schema registry",
                check=partial(self._create_packer, must_register=False),
            ),
            *self._list_steps_at_brokers(),  # "broker", "topic" and "dead-letter topic"
            Step(
                "output topic",
                self._find_output_topic,
                after=["topic"],
                check=self._check_output_partitions,
            ),
            Step(
                "transactions",
                partial(self._open_transactions, self.settings),
                after=["output topic"],
                check=self._check_transactional_ids,
            ),
            Step("transform group", self._check_group, after=["topic", "model", "output topic"]),
        ]

    def _find_model(self) -> str:
        """Load the model to project with, and find its pins. Returns a sentence on its version and sizes.

        Raises `NotYetError` while no model has been published, and `TimeoutError` while the store's folder is missing.
        After either error, the start tries this step again.
        """
        missing_folder = self._models.store.missing()
        if missing_folder:
            raise TimeoutError(
                f"there is no store at {missing_folder}: start a worker first, mount its volume, or correct store"
            )
        self._models.versions()  # raises if the store cannot be read, while `poll` only logs this
        self.model_cache.poll()
        why_no_model = self.current_model.refresh()
        if why_no_model:
            raise NotYetError(why_no_model)
        fixed_version = self.current_model.fixed_version  # None: the newest model is followed
        if fixed_version is not None:
            self.pin_names = [name for name, version in self._pins.all().items() if version == fixed_version]
        published = self.current_model.published
        model = published.model
        with_or_without = "without" if published.past_scores is None else "with"
        return (
            f"version {published.version} has {model.n_components} components of {model.dimensions} dimensions, "
            f"{with_or_without} past scores"
        )

    def _create_codec(self) -> str:
        """Create the codec for the model's dimensions. If they have names, let outputs have the names.

        Returns a sentence on what the codec decodes.
        """
        published = self.current_model.published
        self.output_fields = replace(self.output_fields, with_names=published.names is not None)
        codec = create_codec(self.settings, published)
        return self._use_codec(codec)

    def _create_packer(self, *, must_register: bool = True) -> str:
        """Create the packer, which encodes outputs. Returns a sentence on the format of outputs.

        Without `must_register`, the registry is only asked whether it would accept the schema.
        """
        settings = self.settings
        if settings.output_format == "arrow":
            from streampca.transform.arrow import ArrowPacker  # pyarrow may not be installed

            self.packer = ArrowPacker()
        else:
            layout = self.output_fields.layout
            writer = create_writer(
                settings, settings.output_format, settings.output_topic, layout, must_register=must_register
            )
            is_plug_in = load_format(settings.output_format) is not None
            if is_plug_in:  # a plug-in's writer may be wrong, so it encodes a trial before any output is sent
                check_writer(writer, layout)
            # If every value is a batch of vectors, each field of an output is a list, even for a single vector.
            self.packer = RecordPacker(writer, always_lists=self.codec.is_batch)
        return f"outputs can be written as {settings.output_format}"

    def _find_output_topic(self) -> str:
        """Check that the output topic may be written to, and set `output_partitions`. Returns what was found."""
        name = self.settings.output_topic
        self.output_partitions = require_writable(self.settings, name)
        return f"{name} has {self.output_partitions} partitions and may be written to"

    def _check_output_partitions(self) -> str:
        """Check the output topic, and that it has at least as many partitions as the topic.

        Only `streampca doctor` makes this check. A member would start, and leave some partitions waiting.
        """
        finding = self._find_output_topic()  # sets `output_partitions`
        settings = self.settings
        require_output_partitions(
            settings.output_topic, self.output_partitions, settings.topic, self.source.partitions()
        )
        return finding

    def _check_transactional_ids(self) -> str:
        """Take another transactional id, so that no running member is fenced. Returns what was found."""
        return self._open_transactions(self.settings.model_copy(update={"group_instance_id": _UNUSED_INSTANCE_ID}))

    def _open_transactions(self, settings: TransformSettings) -> str:
        """Create the member's transactions, and end the transaction that an earlier process with its id left open.

        Returns a sentence on the transactional ids.
        """
        topics = [topic for topic in (settings.output_topic, settings.dead_letter_topic) if topic]
        transactions = create_transactions(settings, self.source, topics)
        ids = f"transactional ids that begin with {settings.group}-"
        try:
            transactions.recover()
        except TopicError as error:  # a right on the transactional id may be missing
            raise SourceError(f"{error}; transform needs the rights Write and Describe for {ids}") from None
        # Only now is there something to close: if `recover` raises, it leaves no producer open.
        self.transactions = self.opened.enter_context(closing(transactions))
        return f"this user may use {ids}"

    def _check_group(self) -> str:
        """Check that the group's earlier outputs fit this topic and this model, and set `positions`.

        Returns a sentence on how many partitions have a committed offset.
        """
        settings = self.settings
        self.start_finder = StartFinder(
            source=self.source,
            topic=settings.topic,
            output_topic=settings.output_topic,
            open_outputs=partial(open_reader, settings, settings.output_topic),
            check_metadata=self.current_model.check_metadata,
            transform_start=settings.transform_start_at,
        )
        sentence_on_offsets = self._read_committed_offsets()
        # A partition that the output topic lacks is left out: it waits until the output topic has grown.
        partitions = [partition for partition in self.source.partitions() if partition < self.output_partitions]
        starts = self.start_finder.find(partitions)  # raises if the earlier outputs do not fit
        self.positions = {
            partition: start.position
            for partition, start in starts.by_partition(partitions).items()
            if start.position >= 0  # -1: nobody has read the partition yet
        }
        return sentence_on_offsets
