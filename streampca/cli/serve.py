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
    if published:  # without the option --topic, the topic in the file is used; a file of `fit` names none
        options = options | {"topic": options["topic"] or published.topic or "model"}
    with read_settings("ServeSettings", options, logs_errors=True) as settings:
        if published:
            store_with_one_model = MemoryStore()  # has no metrics, since no request to it can fail or take long
            Models(store_with_one_model, settings.topic).save(published)
            server.run(settings, store_with_one_model)
        else:
            metrics = StoreMetrics()
            store = open_store(settings.store, metrics.observe)  # counts and times each request to the store
            server.run(settings, store, metrics)
