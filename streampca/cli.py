"""The command line: names, options and help of the commands.

What a command does is imported when it is run, so that help comes at once.
"""

import os
import signal
import sys
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from streampca.commands import options
from streampca.errors import SettingsError, StreampcaError
from streampca.version import __version__

if TYPE_CHECKING:
    from streampca.settings import LogSettings

Logged = TypeVar("Logged", bound="LogSettings")

app = typer.Typer(
    name="streampca",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Learn the principal components of a Kafka topic, exactly once, and serve projections over HTTP.",
    epilog="Every setting can also be given as an environment variable STREAMPCA_NAME or in a TOML file. "
    "`streampca check` lists them all. Start with `streampca demo`.",
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"streampca {__version__}")
        raise typer.Exit


@app.callback()
def _options_of_all(
    _: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    pass


@app.command()
def worker(
    topic: options.Topic = None,
    dimensions: options.Dimensions = None,
    components: options.Components = None,
    bootstrap_servers: options.Servers = None,
    group_id: options.Group = None,
    store: options.Store = None,
    format: options.Format = None,  # noqa: A002 - the setting's name
    field: options.Field = None,
    dead_letter_topic: options.DeadLetterTopic = None,
    oversampling: options.Oversampling = None,
    half_life_seconds: options.HalfLife = None,
    worker_port: options.WorkerPort = None,
    log_level: options.LogLevel = None,
    log_format: options.LogFormat = None,
    config: options.Config = None,
) -> None:
    """Learn from a topic until stopped.

    Joins the consumer group, folds each of its partitions into a model from where the newest checkpoint left off,
    and publishes the merged model into the store. Start as many as there are partitions, on one shared store. SIGTERM
    and Ctrl-C save and leave the group.

    Example: streampca worker --topic readings --dimensions 128 --components 8
    """
    from streampca.commands import worker as command
    from streampca.settings import WorkerSettings

    command.run(_ready(WorkerSettings.read(**_given(locals()))))


@app.command()
def serve(
    topic: options.Topic = None,
    store: options.Store = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0: any.")] = None,
    log_level: options.LogLevel = None,
    log_format: options.LogFormat = None,
    config: options.Config = None,
) -> None:
    """Serve projections by the newest model in the store, over HTTP.

    Reads the store only, so any number may run beside the workers. The API is described at /docs.

    Example: streampca serve --topic readings --port 8000
    """
    from streampca.api import server
    from streampca.settings import ServeSettings
    from streampca.stores.directory import DirectoryStore

    settings = _ready(ServeSettings.read(**_given(locals())))
    server.run(settings, DirectoryStore(settings.store))


@app.command()
def demo(
    seconds: Annotated[
        float | None, typer.Option(min=1, help="End so many seconds after the first projection; else on Ctrl-C.")
    ] = None,
    file: Annotated[Path | None, typer.Option(help="Stream the rows of this .npy file, not made-up ones.")] = None,
    rate: Annotated[float, typer.Option(min=1, help="Messages a second.")] = 2000.0,
    store: Annotated[Path | None, typer.Option(help="Folder to keep; else a temporary one.")] = None,
    port: Annotated[int, typer.Option(help="Port of the HTTP API; 0: any.")] = 8000,
) -> None:
    """Run everything on this machine.

    A broker in memory, a stream of vectors, a worker and the HTTP API. Needs the extra `demo` (pip install
    'streampca[demo]'), and neither Java nor Docker. The vectors have a low-rank structure that is known, so one can
    watch how well it is found.
    """
    from streampca.demo import run as command

    command.run(command.DemoOptions(seconds=seconds, file=file, rate=rate, store=store, port=port))


@app.command()
def produce(
    file: Annotated[Path | None, typer.Argument(help="Vectors as rows: .npy, .csv or .jsonl.", metavar="FILE")] = None,
    topic: options.Topic = None,
    rate: Annotated[float | None, typer.Option(min=0.001, help="Messages a second; unset: as fast as it goes.")] = None,
    repeat: Annotated[bool, typer.Option("--repeat", help="Start over at the end of the file, for ever.")] = False,
    made_up: options.MadeUp = False,
    format: options.Format = None,  # noqa: A002 - the setting's name
    field: options.Field = None,
    bootstrap_servers: options.Servers = None,
    config: options.Config = None,
) -> None:
    """Send the rows of a file to a topic.

    One message a row, spread evenly over the partitions. The file is streamed, so it may be larger than memory. Ends
    when the broker has acknowledged every message.

    Example: streampca produce vectors.npy --topic readings --rate 1000 --format float32
    """
    from streampca.commands import produce as command
    from streampca.settings import ProduceSettings

    settings = _ready(ProduceSettings.read(**_given(locals(), "file", "rate", "repeat", "made_up")))
    command.run(settings, file, rate, repeat=repeat, made_up=made_up)


@app.command()
def fit(
    file: Annotated[Path, typer.Argument(help="Vectors as rows: .npy, .csv or .jsonl.", metavar="FILE")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Model file to write, .npz.")],
    components: Annotated[int | None, typer.Option(min=1, help="Number k of components; unset: 10.")] = None,
    oversampling: Annotated[int, typer.Option(min=0, help="Columns tracked beside the k, for accuracy.")] = 10,
    center: Annotated[bool, typer.Option(help="Subtract the running mean.")] = True,
    half_life: Annotated[
        float | None, typer.Option(min=0.001, help="Forget: weights halve after so many rows.")
    ] = None,
    single: Annotated[bool, typer.Option("--float32", help="Calculate in single precision.")] = False,
) -> None:
    """Learn a file in one pass.

    Does what a worker does with a partition, and writes a model file, which `streampca inspect` shows.

    Example: streampca fit vectors.npy -o model.npz --components 20
    """
    from streampca.commands import fit as command

    fold_config = command.fold_config_of(
        components, oversampling, center, half_life, "float32" if single else "float64"
    )
    command.run(file, output, fold_config)


@app.command()
def inspect(
    path: Annotated[Path, typer.Argument(help="A checkpoint file, a model file, or a store folder.", metavar="PATH")],
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """Show what a checkpoint or a model holds, or what lies in a store."""
    from streampca.commands import inspect as command

    command.run(path, as_json=json)


@app.command()
def check(
    topic: options.Topic = None,
    dimensions: options.Dimensions = None,
    components: options.Components = None,
    bootstrap_servers: options.Servers = None,
    group_id: options.Group = None,
    store: options.Store = None,
    format: options.Format = None,  # noqa: A002 - the setting's name
    config: options.Config = None,
) -> None:
    """Print the settings and every mistake in them.

    Each with what set it: an option, the environment, the file, or the default. Asks no broker. Exit code 2 when
    there is a mistake.
    """
    from streampca.commands import check as command

    raise typer.Exit(command.run(**_given(locals())))


@app.command()
def doctor(
    topic: options.Topic = None,
    dimensions: options.Dimensions = None,
    components: options.Components = None,
    bootstrap_servers: options.Servers = None,
    group_id: options.Group = None,
    store: options.Store = None,
    config: options.Config = None,
) -> None:
    """Try everything that a worker will need.

    Broker, credentials, topic, dead-letter topic, group, store, checkpoints, clock. One line for each, with what to do
    where it fails. Exit code 1 when anything does. Learns nothing and changes no offset.
    """
    from streampca.commands import doctor as command

    raise typer.Exit(command.run(**_given(locals())))


def _given(arguments: dict[str, Any], *without: str) -> dict[str, Any]:
    """The settings among the local names of a command, which are its arguments and what it imported."""
    plain = (str, int, float, Path, NoneType)
    return {name: value for name, value in arguments.items() if name not in without and isinstance(value, plain)}


def _ready(settings: Logged) -> Logged:
    """Set the logs up as the settings say, and hand the settings on."""
    from streampca import logs

    logs.configure(settings.log_level, settings.log_format)
    return settings


def main() -> None:
    """Run the command line; what a person can mend is one line on stderr, exit code 2 for settings, 1 for the rest."""
    # A container's first process is not ended by a signal that it does not handle. Some commands do more at their end.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        app()
    except StreampcaError as error:
        print("streampca:", " ".join(str(error).split()), file=sys.stderr)  # noqa: T201
        raise SystemExit(2 if isinstance(error, SettingsError) else 1) from None
    except BrokenPipeError:  # the reader of our output has gone, as in `streampca inspect … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None
