"""Descriptions of the settings that are command-line options too; without imports, so that help appears quickly."""

TOPIC = "Topic that holds the vectors."
BOOTSTRAP_SERVERS = "Bootstrap brokers, host:port,host:port."
STORE = (
    "Folder of checkpoints and models, shared by all workers; or the URL of a bucket: s3://bucket/prefix, "
    "gs://bucket/prefix, az://container/prefix."
)
DIMENSIONS = "Length d of every vector."
COMPONENTS = "Number k of principal components to learn."
OVERSAMPLING = "Extra columns tracked beside the k components, for accuracy; by default max(10, 3k/5)."
CENTER = "Whether to subtract the running mean."
HALF_LIFE_MESSAGES = "Half-life of a message's weight, in messages of its partition; unset: nothing is forgotten."
HALF_LIFE_SECONDS = "Half-life of a message's weight, in seconds of event time; unset: nothing is forgotten."
DEAD_LETTER_TOPIC = "Dead-letter topic, for records that are rejected."
GROUP_ID = "Consumer group of the workers."
WORKER_PORT = "Port of the worker's /metrics, /healthz and /readyz; 0: any free one."
HOST = "Address to listen on."
PORT = "Port to listen on; 0: any free one."
CONFIG = "TOML file of settings; default: the one named by STREAMPCA_CONFIG."
LOG_LEVEL = "Lowest level logged: debug, info, warning or error."
LOG_FORMAT = "Log format: json (an object a line), human, or auto (human on a terminal)."
FIELD = "Field that holds the vector: a dotted path (json, avro, protobuf) or a column (arrow)."
FORMAT = (
    "Format of values: json, float32 or float64 (raw, little-endian), npy, arrow (IPC streams of many vectors), "
    "or avro or protobuf with a schema registry."
)
OUTPUT_TOPIC = "Topic to write to, with as many partitions as the topic that is read, so that the order is kept."
EMIT = "What each output holds, in this order: any of coordinates, residual, score, p, reconstruction."
OUTPUT_FORMAT = (
    "Format of the outputs: json (an object with a field for each), float32 (raw, little-endian), npy, "
    "avro or protobuf with a schema registry, int8 (the scale in a header), or arrow (many records a message)."
)
BASIS = "Coordinates along the principal axes, in the data's units, or whitened, with variance one."
ONLY_P_BELOW = "Write outputs only of records with a p-value below this, such as 0.001; unset: of all."
MODEL_VERSION = "Version of the model to project with; unset: always the newest."
TRANSFORM_GROUP_ID = "Consumer group of the members of `streampca transform`."
TRANSFORM_PORT = "Port of /metrics, /healthz and /readyz of `streampca transform`; 0: any free one."
MISSING = "Vectors with gaps, null or NaN: refuse rejects them, impute fills the gaps by what the other entries say."
