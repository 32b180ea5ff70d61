"""Compiles the kernels for every kind of model into NUMBA_CACHE_DIR, at image build."""

from itertools import product

from streampca.pca.compilation import compile_kernels
from streampca.pca.learning import LearningConfig

for center, dtype in product((True, False), ("float64", "float32")):
    compile_kernels(LearningConfig(3, 2, center=center, dtype=dtype))
