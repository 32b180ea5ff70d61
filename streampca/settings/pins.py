"""Parses a version of a model, or the name of a pin, as settings and requests give them."""

import re
from typing import Any

from pydantic import ValidationInfo

PIN_NAME = r"[A-Za-z][A-Za-z0-9._-]{0,62}"


def parse_version_or_pin(value: Any, info: ValidationInfo) -> int | str | None:
    """Return a version, the name of a pin, or None for the newest version.

    Only JSON bodies are validated with a context. In them, the number of a version must not be text.
    """
    if value is None or value == "latest":
        return None
    if isinstance(value, str):
        if re.fullmatch(PIN_NAME, value):  # begins with a letter, so it is not a number
            return value
        is_json = info.context is not None
        if not is_json and re.fullmatch("[0-9]{1,19}", value):  # numbers below 2**63 have at most 19 digits
            value = int(value)
    if type(value) is int and 0 <= value < 2**63:  # a bool is not a version
        return value
    raise ValueError("must be the number of a version, the name of a pin, or latest")
