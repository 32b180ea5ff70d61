"""The command line of what operators run beside the processes: check, doctor, create-topics, reset."""

from typing import Annotated

import typer

from streampca.commands import options


@options.taken(*dict.fromkeys((*options.WORKER, *options.TRANSFORM)))
def check(given: options.Given) -> None:
    """Print the settings and every mistake in them.

    Shows the origin of each: an option, the environment, the file, or the default. Settings of transform are shown if
    any is given. Contacts no broker. Exits with 2 if there is a mistake.
    """
    from streampca.commands import check as command

    raise typer.Exit(command.run(**given))


@options.taken(*dict.fromkeys((*options.WORKER, *options.TRANSFORM)))
def doctor(given: options.Given) -> None:
    """Check everything that a worker needs, and transform.

    Checks clock, store, broker, credentials, topics, group, checkpoints and records, and prints a line for each, with a
    remedy where it fails. With an output topic also what transform needs: model, output topic, transactional ids, its
    group, schema; and only that if neither dimensions nor components are set. Exits with 1 if a check fails. Learns
    nothing, and changes no offset and no topic.
    """
    from streampca.commands import doctor as command

    raise typer.Exit(command.run(**given))


@options.taken("topic", "dead_letter_topic", "bootstrap_servers", "config")
def create_topics(
    given: options.Given,
    partitions: Annotated[
        int | None, typer.Option(min=1, help="Partitions of the topic; default: the broker's.")
    ] = None,
    replication_factor: Annotated[int | None, typer.Option(min=1, help="Replicas; default: the broker's.")] = None,
    output_topic: Annotated[str | None, typer.Option(help="A third topic, with as many partitions.")] = None,
) -> None:
    """Create the topic and the dead-letter topic.

    Existing topics are reported and never changed, so it can be repeated. The dead-letter topic gets one partition.
    Always uses kafka-python, whatever kafka_client says.

    Example: streampca create-topics --topic readings --dead-letter-topic readings-dead --partitions 6
    """
    from streampca.commands import create_topics as command
    from streampca.commands.logged import with_logging
    from streampca.settings import CreateTopicsSettings

    settings = with_logging(CreateTopicsSettings.read(**given))
    command.run(settings, command.Requested(partitions, replication_factor, output_topic))


@options.taken("topic", "bootstrap_servers", "group_id", "config")
def reset(
    given: options.Given,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Delete the group's committed offsets of the topic.

    A worker refuses a store that is behind its group: most often a volume is not mounted. After a reset, workers
    continue from the checkpoints of whichever store they have, or from the earliest record if it holds none. Refused
    while the group has members: stop the workers first. Always uses kafka-python, whatever kafka_client says.

    Example: streampca reset --topic readings --group-id streampca
    """
    from streampca.commands import reset as command
    from streampca.commands.logged import with_logging
    from streampca.settings import ResetSettings

    settings = with_logging(ResetSettings.read(**given))
    command.run(settings, ask=None if yes else typer.confirm)
