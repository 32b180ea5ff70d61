"""`streampca serve`: serves the models of a store, or one model file, over HTTP."""

from streampca.cli.find_model import model_at
from streampca.cli.options import Given
from streampca.cli.run_logged import run_logged
from streampca.process.metrics import StoreMetrics
from streampca.settings.commands import ServeSettings
from streampca.sidecar import server
from streampca.stores.choice import store_of
from streampca.stores.memory import MemoryStore
from streampca.stores.models import Models


def run(given: Given, model: str | None) -> None:
    """Serve until SIGTERM or SIGINT."""
    published = model_at(model) if model else None
    if published:
        given = given | {"topic": given["topic"] or published.topic or "model"}
    with run_logged(ServeSettings, given) as settings:
        if published:
            store = MemoryStore()
            Models(store, settings.topic).save(published)
            server.run(settings, store)
        else:
            metrics = StoreMetrics()
            server.run(settings, store_of(settings.store, metrics.observe), metrics)
