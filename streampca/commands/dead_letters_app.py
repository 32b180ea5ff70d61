"""The command line of `streampca dead-letters`."""

from typing import Annotated

import typer

from streampca.commands import options

app = typer.Typer(
    name="dead-letters",
    no_args_is_help=True,
    rich_markup_mode=None,
    help="List the dead-letter topic by reason, and replay it.",
)

_OPTIONS = ("topic", "dead_letter_topic", "bootstrap_servers", "config")


@app.command("list")
@options.taken(*_OPTIONS)
def list_(
    given: options.Given,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """List the dead letters by reason.

    Shows for each reason and topic how many there are, in which partitions, how many were replayed, the times of the
    first and the last record, and examples. Changes nothing. Always uses kafka-python, whatever kafka_client says.

    Example: streampca dead-letters list --topic readings --dead-letter-topic readings-dead
    """
    from streampca.commands import dead_letters as command
    from streampca.commands.logged import with_logging
    from streampca.settings.dead_letters import DeadLettersSettings

    command.list_letters(with_logging(DeadLettersSettings.read(**given)), as_json=json)


@app.command()
@options.taken(*_OPTIONS)
def replay(
    given: options.Given,
    reason: Annotated[list[str] | None, typer.Option(help="Only letters with this reason; may be repeated.")] = None,
    partition: Annotated[
        list[int] | None, typer.Option(min=0, help="Only records of this partition of the topic; may be repeated.")
    ] = None,
    since: Annotated[str | None, typer.Option(help="Only records from this time on, ISO 8601.")] = None,
    until: Annotated[str | None, typer.Option(help="Only records before this time, ISO 8601.")] = None,
    send: Annotated[bool, typer.Option("--send", help="Send them; default: show what would be sent.")] = False,
) -> None:
    """Send rejected records to their topic again.

    To the partition that they came from, with the same key, value, headers and timestamp, and a header that counts
    replays. Each is sent once, however often this is run and whatever is killed, for readers of committed
    records. Correct what was wrong first. Always uses kafka-python, whatever kafka_client says.

    Example: streampca dead-letters replay --topic readings --dead-letter-topic readings-dead --reason wrong_length
    """
    from streampca.commands import dead_letters as command
    from streampca.commands.logged import with_logging
    from streampca.settings.dead_letters import DeadLettersSettings

    settings = with_logging(DeadLettersSettings.read(**given))
    times = [command.milliseconds(text, name) for text, name in ((since, "since"), (until, "until"))]
    chosen = command.LetterFilter(reason or (), partition or (), *times)
    (command.replay if send else command.preview)(settings, chosen)
