"""`streampca unpin`: removes the name of a pinned version."""

from streampca.cli.console import console
from streampca.settings.process import StoreSettings
from streampca.stores.choice import open_store
from streampca.stores.pins import Pins


def run(settings: StoreSettings, name: str) -> None:
    """Remove the pin. Raises `UnknownPinError`."""
    Pins(open_store(settings.store), settings.topic).remove(name)
    console().print(f"{name} of {settings.topic} is unpinned: its version will be deleted when history is thinned")
