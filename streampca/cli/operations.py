"""The commands that operators run beside the processes: names, options and help."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from streampca.cli.options import (
    Encoding,
    Field,
    Header,
    Options,
    Separator,
    SkipLines,
    Where,
    collect_file_options,
    command,
    parse_time_ms,
    read_settings,
)
from streampca.settings.options import CHECK

if TYPE_CHECKING:
    from streampca.settings.commands import CreateTopicsSettings, DeadLettersSettings, WorkerSettings
    from streampca.settings.process import StoreSettings

app = typer.Typer()
dead_letter_commands = typer.Typer(
    name="dead-letters",
    no_args_is_help=True,
    rich_markup_mode=None,
    help="List the dead-letter topic by reason, and replay it.",
)
app.add_typer(dead_letter_commands)


@command(app, setting_names=CHECK)
def check(options: Options) -> None:
    """Print the settings and every mistake in them.

    Shows the origin of each setting: an option, the environment, the file, or the default. Settings of transform are
    shown if any is given. Contacts no broker. Exits with 2 if there is a mistake.
    """
    from streampca.cli.check import run

    raise typer.Exit(run(options))


@command(app, setting_names=CHECK)
def doctor(options: Options) -> None:
    """Check everything that a worker and transform need.

    Does the steps of a worker's start: store, broker, credentials, topics, group, checkpoints. Then it checks the
    records. Prints a line for each step, with a remedy if it fails. If an output topic is set, it also does the steps
    of transform: model, output topic, transactional ids, its group, schema. If an output topic is set without
    dimensions and components, it does only the steps of transform. Exits with 1 if a step fails. Learns nothing, and
    changes no offset, topic, schema or checkpoint.
    """
    from streampca.cli.doctor import run

    raise typer.Exit(run(options))


@command(app, setting_names=("topic", "dead_letter_topic", "output_topic", "bootstrap_servers"))
def create_topics(
    settings: "CreateTopicsSettings",
    partitions: Annotated[
        int | None, typer.Option(min=1, help="Partitions of the topic; default: the broker's.")
    ] = None,
    replication_factor: Annotated[int | None, typer.Option(min=1, help="Replicas; default: the broker's.")] = None,
) -> None:
    """Create the topic; if they are set, also the dead-letter topic and transform's output topic.

    Existing topics are reported and never changed, so the command can be repeated. The dead-letter topic gets one
    partition, the output topic as many as the topic.

    Example: streampca create-topics --topic readings --dead-letter-topic readings-dead --partitions 6
    """
    from streampca.cli.create_topics import run

    run(settings, partitions, replication_factor)


@command(app, setting_names=("topic", "bootstrap_servers", "group_id", "store", "output_topic"))
def reset(
    options: Options,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    to: Annotated[
        str | None,
        typer.Option(help="Continue at: earliest, latest, offsets (0:1200,1:1177), or a time with its zone."),
    ] = None,
    partition: Annotated[int | None, typer.Option(min=0, help="Move only this partition.")] = None,
    adopt_topic: Annotated[
        bool, typer.Option("--adopt-topic", help="Keep what was learned of a topic that was moved to other brokers.")
    ] = False,
    role: Annotated[
        str | None, typer.Option(help="With --adopt-topic: only this role continues.", metavar="worker|transform")
    ] = None,
    adopt_settings: Annotated[
        bool, typer.Option("--adopt-settings", help="Keep what was learned with other settings of the model.")
    ] = False,
    drop: Annotated[
        str | None, typer.Option(metavar="P|backfill-N", help="Delete what was learned of this partition or backfill.")
    ] = None,
) -> None:
    """Delete the group's committed offsets of the topic.

    A worker refuses a store whose checkpoints are older than the committed offsets, because most often a volume is not
    mounted. After a reset, workers continue from the checkpoints of their store, or from the earliest record if it has
    none.

    --to saves checkpoints from which workers continue at these offsets. Records in between are counted as skipped, and
    no record is learned twice.

    --drop deletes what is left of a partition or backfill, and the models that contain it. Workers then learn the
    partition like a new one.

    --adopt-topic lets workers continue in a topic that was moved to another cluster, at the offsets of --to. If an
    output topic is set, transform continues there, too.

    --adopt-settings lets workers continue with another number of components or another half-life. Run it with all
    settings of the workers.

    The command is refused while the group has members, so stop the workers first. It always uses kafka-python, whatever
    kafka_client says.

    Example: streampca reset --topic readings --group-id streampca --to latest
    """
    exclusive_options = [option for option in (drop, adopt_topic, adopt_settings) if option]
    if len(exclusive_options) > 1:
        raise typer.BadParameter("--drop, --adopt-topic and --adopt-settings cannot be combined: run one after another")
    if adopt_settings and to:
        raise typer.BadParameter("--adopt-settings and --to cannot be combined: run one after another")
    if adopt_topic and partition is not None:
        raise typer.BadParameter("--adopt-topic adopts all partitions: name the offset of each in --to")
    if role and not adopt_topic:
        raise typer.BadParameter("--role needs --adopt-topic")
    confirm = None if yes else typer.confirm  # None: do not ask
    # Settings that are not options of this command come from the environment and the file.
    with read_settings("WorkerSettings" if adopt_settings else "ResetSettings", options) as settings:
        from streampca.cli import reset, reset_settings, reset_topic

        if adopt_settings:
            reset_settings.run(settings, confirm)
        elif adopt_topic:
            reset_topic.run(settings, confirm, to, role)
        else:
            reset.run(settings, confirm, to, partition, drop)


@command(app, setting_names=("topic", "bootstrap_servers", "store"))
def audit(
    settings: "WorkerSettings",
    partition: Annotated[int, typer.Option(min=0, help="Partition of the topic.")] = 0,
    start: Annotated[
        int | None,
        typer.Option(
            "--from",
            help="Offset of a checkpoint, or 0; default: the oldest checkpoint, or 0 if the store has only one.",
        ),
    ] = None,
    end: Annotated[int | None, typer.Option("--to", help="Offset of a checkpoint; default: the newest.")] = None,
) -> None:
    """Learn the records between two checkpoints again, and compare the bytes.

    Run it with all settings of the workers. Changes nothing. Exits with 1 if the bytes differ.

    Example: streampca audit --partition 3 --from 0
    """
    from streampca.cli.audit import run

    run(settings, partition, start, end)


@command(app, setting_names=("topic", "store"))
def backfill(
    options: Options,
    sources: Annotated[
        list[str] | None,
        typer.Argument(help="Files or folders (Parquet, Arrow, CSV, JSON Lines, .npy), Delta tables; URLs."),
    ] = None,
    field: Field = "",
    where: Where = "",
    timestamp_column: Annotated[
        str | None, typer.Option(help="Column with the time of each row; integers are milliseconds since 1970.")
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(
            help="Learn only rows before this time (ISO 8601 with its zone), or before these offsets of partitions "
            "(0:1200,1:1177). Workers with start=backfill begin there."
        ),
    ] = None,
    number: Annotated[int, typer.Option(min=0, max=2**30, help="Tells the backfills of a topic apart.")] = 0,
    scheduler: Annotated[str | None, typer.Option(help="Scheduler of a Dask cluster; default: this machine.")] = None,
    rejects: Annotated[Path | None, typer.Option(help="Parquet file to write the rejected rows to.")] = None,
    remove: Annotated[int | None, typer.Option(min=0, help="Delete the backfill of this number instead.")] = None,
    header: Header = None,
    separator: Separator = None,
    skip_lines: SkipLines = 0,
    encoding: Encoding = None,
) -> None:
    """Learn the past of a topic from files.

    Every model that workers publish from then on contains the past. Takes the settings of the workers. If a backfill
    was interrupted, the same command continues it.

    Example: streampca backfill s3://lake/readings --field embedding --timestamp-column time --until 2026-01-31T12:00Z
    """
    if remove is not None and sources:
        raise typer.BadParameter("--remove takes no files: it deletes what was learned of them")
    if remove is None and not sources:
        raise typer.BadParameter("name the files or folders")
    with read_settings("WorkerSettings" if remove is None else "StoreSettings", options) as settings:
        if remove is not None:
            from streampca.cli.drop import drop
            from streampca.fold.partitions import backfill_partition

            drop(settings, backfill_partition(remove), typer.confirm)
        else:
            from streampca.cli import backfill

            file_options = collect_file_options(field, header, separator, skip_lines, encoding, where)
            backfill.run(settings, sources or [], file_options, timestamp_column, until, number, scheduler, rejects)


@command(app, setting_names=("topic", "store"))
def pin(
    settings: "StoreSettings",
    version: Annotated[int, typer.Argument(min=0, help="Version of a model, as `inspect` lists them.")],
    name: Annotated[str, typer.Option("--as", help="Name of the pin; an existing pin is moved.")] = "pinned",
) -> None:
    """Keep a version of the model, under a name.

    The version is served by that name, and not deleted until it is unpinned. Each version has axes of its own, so all
    vectors of an index should be projected by the same version. A topic has at most 10 names.

    Example: streampca pin 4000 --topic readings --as index-7
    """
    from streampca.cli.pin import run

    run(settings, name, version)


@command(app, setting_names=("topic", "store"))
def unpin(settings: "StoreSettings", name: Annotated[str, typer.Argument(help="Name of the pin.")]) -> None:
    """Remove the name of a pinned version, which may then be deleted.

    Example: streampca unpin index-7 --topic readings
    """
    from streampca.cli.unpin import run

    run(settings, name)


_LETTER_SETTINGS = ("topic", "dead_letter_topic", "bootstrap_servers")
_Reason = Annotated[list[str] | None, typer.Option(help="Only letters with this reason; may be repeated.")]


@command(dead_letter_commands, setting_names=_LETTER_SETTINGS, name="list")
def list_(
    settings: "DeadLettersSettings",
    reason: _Reason = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """List the dead letters, grouped by reason.

    Shows for each reason and topic the number of letters, their partitions, how many were replayed, the times of the
    first and the last record, and examples. Changes nothing.

    Example: streampca dead-letters list --topic readings --dead-letter-topic readings-dead
    """
    from streampca.cli import dead_letters

    letter_filter = dead_letters.LetterFilter(reasons=dead_letters.check_reasons(reason or ()))
    dead_letters.list_letters(settings, letter_filter, as_json=json)


@command(dead_letter_commands, setting_names=_LETTER_SETTINGS)
def replay(
    settings: "DeadLettersSettings",
    reason: _Reason = None,
    partition: Annotated[
        list[int] | None, typer.Option(min=0, help="Only records of this partition of the topic; may be repeated.")
    ] = None,
    since: Annotated[str | None, typer.Option(help="Only records from this time on, ISO 8601 with its zone.")] = None,
    until: Annotated[str | None, typer.Option(help="Only records before this time, ISO 8601 with its zone.")] = None,
    send: Annotated[bool, typer.Option("--send", help="Send them; default: show what would be sent.")] = False,
) -> None:
    """Send rejected records to their topic again.

    Each record goes to its old partition, with the same key, value, headers and timestamp, and a header that counts
    replays. Readers of committed records see it once, however often this command is run or killed. First correct what
    was wrong.

    Example: streampca dead-letters replay --topic readings --dead-letter-topic readings-dead --reason wrong_length
    """
    from streampca.cli import dead_letters

    letter_filter = dead_letters.LetterFilter(
        reasons=dead_letters.check_reasons(reason or ()),
        partitions=partition or (),
        since_ms=parse_time_ms(since, "since"),
        until_ms=parse_time_ms(until, "until"),
    )
    if send:
        dead_letters.replay(settings, letter_filter)
    else:
        dead_letters.preview(settings, letter_filter)
