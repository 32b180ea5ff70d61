"""What `tests.forked` imports once, for all the processes that it forks."""

from streampca.cli import (  # noqa: F401
    audit,
    check,
    create_topics,
    dead_letters,
    doctor,
    fit,
    inspect,
    produce,
    reset,
    serve,
    transform,
    worker,
)
from streampca.pca.compilation import compile_learning_functions
from streampca.pca.learning import LearningConfig
from streampca.sidecar import server  # noqa: F401
from streampca.sources.confluent import transactions as confluent  # noqa: F401
from streampca.sources.kafka_python import transactions as kafka_python  # noqa: F401

compile_learning_functions(LearningConfig(3, 2))
