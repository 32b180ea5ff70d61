"""`streampca serve`: serves the models of a store over HTTP."""

from streampca.api import server
from streampca.metrics import StoreMetrics
from streampca.settings import ServeSettings
from streampca.stores.choice import store_of


def run(settings: ServeSettings) -> None:
    """Serve until SIGTERM or SIGINT."""
    metrics = StoreMetrics()
    server.run(settings, store_of(settings.store, metrics.observe), metrics)
