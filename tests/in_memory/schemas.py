"""A schema registry in memory."""

from collections.abc import Mapping
from typing import Any

from streampca.formats.schemas import WriterSchema


class MemorySchemas:
    """A registry in memory, for tests; it does not answer while `away`."""

    def __init__(self, schemas: Mapping[Any, WriterSchema]) -> None:
        self.schemas, self.away = dict(schemas), False

    def get(self, schema_id: int | str) -> WriterSchema:
        if self.away:
            raise TimeoutError("the schema registry does not answer")
        return self.schemas[schema_id]
