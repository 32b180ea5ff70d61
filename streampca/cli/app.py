"""The command line: names, options and help. To print help quickly, a command is imported only when it runs."""

import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from streampca.cli import operations
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
)
from streampca.errors import StreampcaError, explain_missing_worker_extra, find_exit_code, on_one_line
from streampca.process.machine import choose_openblas_kernels, end_process, open_standard_streams
from streampca.settings.options import SERVE, TRANSFORM, WORKER
from streampca.version import __version__

if TYPE_CHECKING:
    from streampca.settings.commands import ProduceSettings, TransformSettings, WorkerSettings

app = typer.Typer(
    name="streampca",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Learn the principal components of a Kafka topic, exactly once, and serve projections over HTTP.",
    epilog="Every setting can also be given as an environment variable STREAMPCA_NAME or in a TOML file. "
    "`streampca check` lists them all. Start with `streampca demo`.",
)


def _print_version(is_given: bool) -> None:
    """If the option --version is given, print the version and exit."""
    if is_given:
        typer.echo(f"streampca {__version__}")
        raise typer.Exit


@app.callback()
def _accept_common_options(
    _: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Accept --version before a command. There is nothing to do here: typer calls `_print_version`."""


@command(app, setting_names=WORKER, logs_errors=True)
def worker(settings: "WorkerSettings") -> None:
    """Learn from a topic until stopped.

    Joins the consumer group, resumes each assigned partition from its newest checkpoint, and publishes the merged
    model to the store. Start up to one worker per partition, all on one shared store. SIGTERM and Ctrl-C save
    checkpoints and leave the group.

    Example: streampca worker --topic readings --dimensions 128 --components 8
    """
    from streampca.cli.worker import run

    run(settings)


@command(app, setting_names=SERVE)
def serve(
    options: Options,
    model: Annotated[str | None, typer.Option(help="Serve this model file instead of a store.", metavar="FILE")] = None,
) -> None:
    """Serve projections onto the newest model over HTTP.

    Only reads the store, so any number of sidecars may run beside the workers. The API is described at /docs.

    Example: streampca serve --topic readings --port 8000
    """
    from streampca.cli.serve import run

    run(options, model)


@command(app, setting_names=TRANSFORM, logs_errors=True)
def transform(settings: "TransformSettings") -> None:
    """Project a topic into another topic, exactly once.

    Writes an output for each record, with its key, timestamp and headers, to the partition of the same number. Outputs
    and offsets are one transaction, so read_committed consumers see each output once. Waits for a model if there is
    none yet, and uses newer models as they appear. Start up to one member per partition.

    Example: streampca transform --topic readings --output-topic readings-projected
    """
    from streampca.cli.transform import run

    run(settings)


@app.command()
def demo(
    seconds: Annotated[
        float | None, typer.Option(min=1, help="Seconds to run after the first projection; default: until Ctrl-C.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option(help="File to stream: CSV, JSON Lines, Parquet, Arrow or .npy; default: generated.")
    ] = None,
    field: Field = "",
    standardize: Annotated[
        bool, typer.Option("--standardize", help="Divide each dimension by its standard deviation.")
    ] = False,
    rate: Annotated[float, typer.Option(min=1, help="Messages per second.")] = 2000.0,
    store: Annotated[str | None, typer.Option(help="Store to keep, a folder or a URL; default: temporary.")] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the HTTP API; 0: any free one.")] = 8000,
    sensors: Annotated[bool, typer.Option("--sensors", help="Stream readings of a machine's sensors.")] = False,
) -> None:
    """Run everything on this machine.

    Starts a broker in memory, a stream of vectors, a worker and the HTTP API. Needs neither Java nor Docker. The
    vectors have a known structure of low rank, so one can watch how well it is found. With --sensors, a record has
    named readings in different units; a sensor fails now and then, and the web page of the HTTP API names the sensor.
    With --file, rows of your own file are sent again and again.
    """
    import threading

    from streampca.demo.run import choose_stream, run
    from streampca.process.start import stop_on_signals

    stream = choose_stream(file, field, standardize=standardize, sensors=sensors)
    ended = threading.Event()
    stop_on_signals(lambda _: ended.set())
    run(stream, seconds, rate, store, port, ended)


_VECTORS = typer.Argument(help="Rows with vectors: CSV, JSON Lines, Parquet, Arrow or .npy.", metavar="FILE")


@command(app, setting_names=("topic", "format", "bootstrap_servers"))
def produce(
    settings: "ProduceSettings",
    file: Annotated[Path | None, _VECTORS] = None,
    rate: Annotated[float | None, typer.Option(min=0.001, help="Messages per second; default: unlimited.")] = None,
    repeat: Annotated[bool, typer.Option("--repeat", help="Start again at the end of the file, endlessly.")] = False,
    synthetic: Annotated[
        bool,
        typer.Option(
            "--synthetic",
            help="Endlessly send generated vectors. If the setting field has several paths, each path gets one number.",
        ),
    ] = False,
    field: Field = "",
    header: Header = None,
    separator: Separator = None,
    skip_lines: SkipLines = 0,
    encoding: Encoding = None,
) -> None:
    """Send the rows of a file to a topic.

    Sends one message per row, spread evenly over the partitions. The file is streamed, so it may be larger than
    memory. Returns when the broker has acknowledged every message.

    Example: streampca produce vectors.npy --topic readings --rate 1000 --format float32
    """
    from streampca.cli.produce import run

    file_options = collect_file_options(field, header, separator, skip_lines, encoding)
    run(settings, file, rate, file_options, repeat=repeat, synthetic=synthetic)


@app.command()
def fit(
    file: Annotated[Path, _VECTORS],
    output: Annotated[str, typer.Option("--output", "-o", help="Model file to write, .npz; a path or a URL.")],
    components: Annotated[int | None, typer.Option(min=1, help="Number k of components; default: 10.")] = None,
    dimensions: Annotated[
        int | None, typer.Option(min=1, help="Length d of every vector; default: as the first row has it.")
    ] = None,
    center: Annotated[bool, typer.Option(help="Whether to subtract the running mean.")] = True,
    standardize: Annotated[
        bool,
        typer.Option("--standardize", help="Divide each dimension by its standard deviation: for different units."),
    ] = False,
    half_life: Annotated[float | None, typer.Option(min=0.001, help="Half-life of a row's weight, in rows.")] = None,
    single: Annotated[bool, typer.Option("--float32", help="Compute in single precision.")] = False,
    missing: Annotated[str, typer.Option(help="What to do with missing entries.", metavar="refuse|impute")] = "refuse",
    missing_values: Annotated[str, typer.Option(help="Numbers that mean missing: -200,-9999.")] = "",
    start_from: Annotated[
        str | None,
        typer.Option(help="Continue this model: a file, or a store with one topic. Excludes options of the model."),
    ] = None,
    field: Field = "",
    where: Where = "",
    header: Header = None,
    separator: Separator = None,
    skip_lines: SkipLines = 0,
    encoding: Encoding = None,
) -> None:
    """Learn from a file in one pass.

    Learns the rows as a worker learns a partition, and writes a model file, which `streampca inspect` shows, `project`
    uses, and `serve` serves.

    Example: streampca fit vectors.npy -o model.npz --components 20
    """
    from streampca.cli.fit import FitOptions, run

    dtype = "float32" if single else "float64"
    options = FitOptions(
        components=components,
        center=center,
        standardize=standardize,
        half_life=half_life,
        dtype=dtype,
        missing=missing,
        missing_values=missing_values,
    )
    file_options = collect_file_options(field, header, separator, skip_lines, encoding, where)
    run(file, output, options, start_from, file_options._replace(dimensions=dimensions))


@app.command()
def project(
    file: Annotated[Path, _VECTORS],
    model: Annotated[str, typer.Option(help="Model file or store, a path or a URL; or a sidecar, http://host:port.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write: .npy, .csv, .jsonl or .parquet.")],
    basis: Annotated[str, typer.Option(help="whitened: variance one.", metavar="principal|whitened")] = "principal",
    topic: Annotated[str | None, typer.Option(help="Topic, if the store holds several.")] = None,
    field: Field = "",
    where: Where = "",
    header: Header = None,
    separator: Separator = None,
    skip_lines: SkipLines = 0,
    encoding: Encoding = None,
) -> None:
    """Write the coordinates of a file's vectors, and their squared distances from the subspace of the components.

    If --model is a store, its newest model is used; for an older model, give the path of its file in the store. The
    bearer token of a sidecar is taken from STREAMPCA_TOKEN. Rows with null instead of a vector are skipped. The file is
    streamed, so it may be larger than memory.

    The format of the output decides what else of the file is kept:

    \b
    output    from CSV, Parquet, Arrow    from JSON Lines
    .csv      all columns                 fields of the first row that
                                          are text or numbers
    .parquet  all columns, those of CSV   like .csv
              as text
    .jsonl    nothing                     all fields
    .npy      nothing                     nothing

    Example: streampca project vectors.npy --model model.npz -o projected.parquet
    """
    from streampca.cli.project import run

    file_options = collect_file_options(field, header, separator, skip_lines, encoding, where)
    run(file, model, output, basis, topic, file_options)  # type: ignore[arg-type]


@app.command()
def inspect(
    path: Annotated[str, typer.Argument(help="A checkpoint, a model or a store; a path or a URL.", metavar="PATH")],
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """Show the content of a checkpoint, a model or a store."""
    from streampca.cli.inspect import run

    run(path, as_json=json)


@app.command()
def export(
    path: Annotated[str, typer.Argument(help="A model file or a store; a path or a URL.", metavar="PATH")],
    to: Annotated[str, typer.Option(help="Format of the file.", metavar="onnx")],
    output: Annotated[str, typer.Option("--output", "-o", help="File to write; a path or a URL.")],
    topic: Annotated[str | None, typer.Option(help="Topic, if the store holds several.")] = None,
) -> None:
    """Write a model as a file of another tool.

    Exports the newest model of a store. To export an older model, give the path of its file in the store.

    Example: streampca export streampca-store --to onnx -o model.onnx
    """
    from streampca.cli.export import run

    run(path, output_format=to, output=output, topic=topic)


app.add_typer(operations.app)


def main() -> None:
    """Run the command line, and end the process with its exit code."""
    open_standard_streams()
    # Without a handler, the first process of a container would ignore SIGTERM.
    signal.signal(signal.SIGTERM, lambda signal_number, frame: sys.exit(128 + signal_number))
    choose_openblas_kernels()  # before a command imports NumPy
    try:
        with explain_missing_worker_extra():
            app()  # always raises: `SystemExit`, also after success, or an error
    except (StreampcaError, OSError) as error:  # OSError: stdout is on a full disk
        print("streampca:", on_one_line(error), file=sys.stderr)  # noqa: T201
        code = find_exit_code(error)
    except SystemExit as exit_:
        code = int(exit_.code or 0)
    end_process(code)  # not sys.exit: threads of a Kafka client could crash
