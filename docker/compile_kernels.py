"""Compiles the kernels for every kind of model into NUMBA_CACHE_DIR, at image build and before the tests."""

from streampca.pca.compilation import compile_kernels
from streampca.pca.learning import LearningConfig

for dtype in ("float64", "float32"):
    compile_kernels(LearningConfig(3, 2, dtype=dtype, impute=True))
