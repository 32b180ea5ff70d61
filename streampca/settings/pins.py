"""Versions of models, and the names that pin them, as settings and requests give them."""

import re
from typing import Any

from pydantic import ValidationInfo

PIN_NAME = r"[A-Za-z][A-Za-z0-9._-]{0,62}"


def version_or_name(value: Any, info: ValidationInfo) -> int | str | None:
    """For pydantic: a version or the name of a pin; None or latest: the newest, None.

    Numbers may be text, as in a query or in the environment, but not in JSON, whose text is the context.
    """
    text = value if isinstance(value, str) else ""
    if value is None or re.fullmatch(PIN_NAME, text):
        return None if text == "latest" else value
    number = int(text) if re.fullmatch("[0-9]{1,19}", text) and info.context is None else value
    if type(number) is not int or not 0 <= number < 2**63:
        raise ValueError("must be the number of a version, the name of a pin, or latest")
    return number
