"""`streampca export`: writes a model as a file of another tool."""

from streampca.cli.console import console
from streampca.cli.locations import check_writable, read_model, write
from streampca.errors import SettingsError, naming_the_extra
from streampca.export import FORMATS


def run(location: str, kind: str, output: str, topic: str | None) -> None:
    """Write the model of a file or of a store in the format `kind` of another tool. Raises `StreampcaError`."""
    if kind not in FORMATS:
        raise SettingsError(f"--to {kind}: must be one of {', '.join(FORMATS)}; a model's own file is one of NumPy")
    published = read_model(location, topic)
    check_writable(output)
    with naming_the_extra(f"--to {kind}", "export"):
        data = FORMATS[kind](published)
    write(output, data)
    of_topic = f" of {published.topic}" if published.topic else ""
    console().print(f"version {published.version}{of_topic}, written to {output}")
