"""`streampca pin`: keeps a version of the model under a name."""

from streampca.cli.console import console
from streampca.settings.process import StoreSettings
from streampca.stores.choice import open_store
from streampca.stores.pins import Pins


def run(settings: StoreSettings, name: str, version: int) -> None:
    """Pin the version. Raises `SettingsError` if the version is missing, the name invalid, or one name too many."""
    Pins(open_store(settings.store), settings.topic).set(name, version)
    console().print(f"version {version} of {settings.topic} is kept as {name}")
