"""A command of streampca in a process of the demo: kafka-python cannot negotiate a version with its broker."""

import runpy

from streampca.sources.kafka_python import connection

_MOCK_CLUSTER = (2, 1)  # whose protocol librdkafka's mock cluster speaks; topics have no ids yet

if __name__ == "__main__":
    connection.api_version = _MOCK_CLUSTER
    runpy.run_module("streampca", run_name="__main__")
