"""The settings that are also command-line options, in the order in which they are listed.

This module imports nothing, so that --help answers quickly.
"""

WORKER = (
    *("topic", "dimensions", "components", "bootstrap_servers", "store", "format", "dead_letter_topic"),
    *("half_life_seconds", "group_id"),
)
SERVE = ("topic", "store", "host", "port")
TRANSFORM = (
    *("topic", "output_topic", "emit", "output_format", "bootstrap_servers", "store", "format", "dead_letter_topic"),
)
CHECKED = ("topic", "dimensions", "components", "output_topic", "bootstrap_servers", "store")
COMMON = tuple(dict.fromkeys((*WORKER, *SERVE, *TRANSFORM)))
