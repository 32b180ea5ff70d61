"""Command-line options that several commands share: the settings of their names, None when not given."""

from pathlib import Path
from typing import Annotated

import typer

from streampca import help_texts

Config = Annotated[Path | None, typer.Option(help="TOML file of settings; default: the one named by STREAMPCA_CONFIG.")]
Topic = Annotated[str | None, typer.Option(help=help_texts.TOPIC)]
Servers = Annotated[str | None, typer.Option(help=help_texts.BOOTSTRAP_SERVERS)]
Dimensions = Annotated[int | None, typer.Option(help=help_texts.DIMENSIONS)]
Components = Annotated[int | None, typer.Option(help=help_texts.COMPONENTS)]
Oversampling = Annotated[int | None, typer.Option(help=help_texts.OVERSAMPLING)]
Store = Annotated[Path | None, typer.Option(help=help_texts.STORE)]
Group = Annotated[str | None, typer.Option(help=help_texts.GROUP_ID)]
Format = Annotated[str | None, typer.Option(help=help_texts.FORMAT)]
Field = Annotated[str | None, typer.Option(help=help_texts.FIELD)]
DeadLetterTopic = Annotated[str | None, typer.Option(help=help_texts.DEAD_LETTER_TOPIC)]
HalfLifeMessages = Annotated[float | None, typer.Option(help=help_texts.HALF_LIFE_MESSAGES, min=0.001)]
HalfLifeSeconds = Annotated[float | None, typer.Option(help=help_texts.HALF_LIFE_SECONDS)]
WorkerPort = Annotated[int | None, typer.Option(help=help_texts.WORKER_PORT)]
Host = Annotated[str | None, typer.Option(help=help_texts.HOST)]
Port = Annotated[int | None, typer.Option(help=help_texts.PORT)]
LogLevel = Annotated[str | None, typer.Option(help=help_texts.LOG_LEVEL)]
LogFormat = Annotated[str | None, typer.Option(help=help_texts.LOG_FORMAT)]
MadeUp = Annotated[bool, typer.Option("--made-up", help="Send generated vectors like the demo's, endlessly.")]
