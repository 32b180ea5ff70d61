"""Compiles the kernels for every kind of model into NUMBA_CACHE_DIR, when the image is built."""

from itertools import product

from streampca.pca.learning import LearningConfig
from streampca.worker.kernels import Kernels

for center, dtype in product((True, False), ("float64", "float32")):
    Kernels(LearningConfig(3, 2, 0, center, dtype)).have_all()
