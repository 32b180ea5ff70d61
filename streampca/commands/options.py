"""Command-line options that several commands share. Unset (None) leaves the word to environment, file and default."""

from pathlib import Path
from typing import Annotated

import typer

Config = Annotated[Path | None, typer.Option(help="TOML file of settings; else the one that STREAMPCA_CONFIG names.")]
Topic = Annotated[str | None, typer.Option(help="Topic to learn from.")]
Servers = Annotated[str | None, typer.Option(help="Brokers to ask first: host:port,host:port.")]
Dimensions = Annotated[int | None, typer.Option(help="Length d of every vector.")]
Components = Annotated[int | None, typer.Option(help="Number k of components to serve.")]
Oversampling = Annotated[int | None, typer.Option(help="Columns tracked beside the k that are served.")]
Store = Annotated[Path | None, typer.Option(help="Folder of checkpoints and models; shared by all workers.")]
Group = Annotated[str | None, typer.Option(help="Consumer group of the workers.")]
Format = Annotated[
    str | None, typer.Option(help="How values are encoded: json, float32, float64, npy, avro, protobuf or arrow.")
]
Field = Annotated[str | None, typer.Option(help="Where in a value the vector lies, as a dotted path.")]
DeadLetterTopic = Annotated[str | None, typer.Option(help="Topic for records that cannot be learned.")]
HalfLife = Annotated[float | None, typer.Option(help="Forget: weights halve after so many seconds of record time.")]
WorkerPort = Annotated[int | None, typer.Option(help="Port of the worker's /metrics and /healthz; 0: any.")]
LogLevel = Annotated[str | None, typer.Option(help="Least level that is logged: debug, info, warning, error.")]
LogFormat = Annotated[str | None, typer.Option(help="json, human, or auto: human on a terminal.")]
MadeUp = Annotated[bool, typer.Option("--made-up", help="Instead of a file: vectors like the demo's, for ever.")]
