"""The settings that are also command-line options, in the order in which they are listed.

This module imports nothing, so that --help answers quickly.
"""

# The options of `streampca worker`, of `serve`, of `transform`, and of `check` and `doctor`.
WORKER = (
    *("topic", "dimensions", "components", "bootstrap_servers", "store", "format", "dead_letter_topic"),
    *("field", "standardize", "half_life_seconds", "group_id"),
)
FLAGS = ("standardize",)  # options without a value: --standardize, --no-standardize
SERVE = ("topic", "store", "host", "port")
TRANSFORM = (
    *("topic", "output_topic", "emit", "output_format", "bootstrap_servers", "store", "format", "dead_letter_topic"),
)
CHECK = ("topic", "dimensions", "components", "output_topic", "bootstrap_servers", "store")
# The settings that most users set. They are listed first.
COMMON = tuple(dict.fromkeys((*WORKER, *SERVE, *TRANSFORM)))
