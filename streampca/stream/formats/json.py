"""JSON: an array of numbers, or an object with such an array in one of its fields."""

import numpy as np

from streampca.vectors.json import JsonVectorParser


class JsonReader:
    """See `formats.base.Reader`."""

    dtype = np.dtype(np.float64)
    size = None
    is_batch = False

    def __init__(self, dimensions: int, field: str, *, gaps: bool) -> None:
        self.read = JsonVectorParser(dimensions, field, gaps=gaps).parse
