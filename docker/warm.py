"""Compiles the kernels for every kind of model into NUMBA_CACHE_DIR, when the image is built."""

from itertools import product

from streampca.commands.worker import compile_kernels
from streampca.pca.learning import Recipe

for center, dtype in product((True, False), ("float64", "float32")):
    compile_kernels(Recipe(3, 2, 0, center, dtype))
