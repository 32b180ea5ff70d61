"""`streampca export`: writes a model as a file of another tool."""

from streampca.cli.console import console
from streampca.cli.locations import check_writable, model_at, write
from streampca.errors import SettingsError, explain_missing_extra
from streampca.export import FORMATS


def run(location: str, output_format: str, output: str, topic: str | None) -> None:
    """Write the model of a file, or the newest model of a store, in a format of another tool."""
    if output_format not in FORMATS:
        raise SettingsError(
            f"--to {output_format}: must be one of {', '.join(FORMATS)}; a model's own file is a NumPy .npz file"
        )
    published = model_at(location, topic)
    check_writable(output, f".{output_format}")
    with explain_missing_extra("export", needed_by=f"--to {output_format}"):
        encode = FORMATS[output_format]
        data = encode(published)
    write(output, data)
    of_topic = f" of {published.topic}" if published.topic else ""
    console().print(f"version {published.version}{of_topic}, written to {output}")
