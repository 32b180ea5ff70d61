"""`streampca serve`: serves the models of a store, or one model file, over HTTP."""

from streampca.cli.locations import read_model
from streampca.cli.options import Options, read_settings
from streampca.process.metrics import StoreMetrics
from streampca.sidecar import server
from streampca.stores.choice import open_store
from streampca.stores.memory import MemoryStore
from streampca.stores.models import Models


def run(options: Options, model: str | None) -> None:
    """Serve the models of the store, or the `model` file, until SIGTERM or SIGINT."""
    published = read_model(model) if model else None
    if published:
        options = options | {"topic": options["topic"] or published.topic or "model"}
    with read_settings("ServeSettings", options, logs_errors=True) as settings:
        if published:
            store = MemoryStore()
            Models(store, settings.topic).save(published)
            server.run(settings, store)
        else:
            metrics = StoreMetrics()
            server.run(settings, open_store(settings.store, metrics.observe), metrics)
