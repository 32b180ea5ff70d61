"""`streampca pin` and `unpin`: keep a version of the model under a name, or let it go."""

from streampca.cli.console import console
from streampca.settings.process import StoreSettings
from streampca.stores.choice import open_store
from streampca.stores.pins import Pins


def pin(settings: StoreSettings, name: str, version: int) -> None:
    """Raises `SettingsError` if there is no such version, or the name is none, or one too many."""
    Pins(open_store(settings.store), settings.topic).set(name, version)
    console().print(f"version {version} of {settings.topic} is kept as {name}")


def unpin(settings: StoreSettings, name: str) -> None:
    """Raises `UnknownPinError`."""
    Pins(open_store(settings.store), settings.topic).remove(name)
    console().print(f"{name} of {settings.topic} is unpinned: its version will be deleted when history is thinned")
