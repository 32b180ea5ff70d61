"""`streampca export`: a model as a file of another tool."""

from streampca.cli import paths_or_urls
from streampca.cli.console import console
from streampca.cli.find_model import model_at
from streampca.errors import SettingsError, naming_the_extra
from streampca.export import FORMATS


def run(location: str, kind: str, output: str, topic: str | None) -> None:
    """Write the model of a file or of a store. Raises `StreampcaError`."""
    if kind not in FORMATS:
        raise SettingsError(f"--to {kind}: must be one of {', '.join(FORMATS)}")
    published = model_at(location, topic)
    paths_or_urls.check_writable(output)
    with naming_the_extra(f"--to {kind}", "export"):
        data = FORMATS[kind](published)
    paths_or_urls.write(output, data)
    console().print(f"version {published.version} of {published.topic}, written to {output}")
