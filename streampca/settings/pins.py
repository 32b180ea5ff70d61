"""Parses a version of a model, or the name of a pin, as settings and requests give them."""

import re
from typing import Any

from pydantic import ValidationInfo

PIN_NAME = r"[A-Za-z][A-Za-z0-9._-]{0,62}"


def parse_version_or_pin(value: Any, info: ValidationInfo) -> int | str | None:
    """Validate a value for pydantic: return a version, the name of a pin, or None for the newest version.

    None and "latest" mean the newest version. In an environment variable or the query of a URL, the number of a version
    is text. In a JSON body it must be a number. A body is validated with a context, every other value without one.
    """
    text = value if isinstance(value, str) else ""
    if value is None or text == "latest":
        return None
    if re.fullmatch(PIN_NAME, text):  # begins with a letter, so no number matches
        return text
    number = value
    is_json = info.context is not None  # only bodies are validated with a context
    if not is_json and re.fullmatch("[0-9]{1,19}", text):
        number = int(text)
    is_integer = type(number) is int  # not isinstance, since a bool is not a version
    if not is_integer or not 0 <= number < 2**63:
        raise ValueError("must be the number of a version, the name of a pin, or latest")
    return int(number)
