"""`streampca serve`: serves the models of a store, or one model file, over HTTP."""

from streampca.cli.locations import model_at
from streampca.cli.options import Options, read_settings
from streampca.process.metrics import StoreMetrics
from streampca.sidecar import server
from streampca.stores.choice import open_store
from streampca.stores.memory import MemoryStore
from streampca.stores.models import Models


def run(options: Options, model: str | None) -> None:
    """Serve the models of the store, or the model of the file `model`, until SIGTERM or SIGINT."""
    published = model_at(model) if model else None
    if published:  # a file of `fit` names no topic
        options = options | {"topic": options["topic"] or published.topic or "model"}
    with read_settings("ServeSettings", options, logs_errors=True) as settings:
        if published:
            store_with_one_model = MemoryStore()
            Models(store_with_one_model, settings.topic).save(published)
            server.run(settings, store_with_one_model)
        else:
            metrics = StoreMetrics()
            store = open_store(settings.store, metrics.observe)
            server.run(settings, store, metrics)
