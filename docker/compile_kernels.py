"""Compiles the kernels for every kind of model into NUMBA_CACHE_DIR, at image build: a process for each dtype.

With dtypes as arguments, compiles for these alone, in this process.
"""

import subprocess
import sys

from streampca.pca.compilation import compile_kernels
from streampca.pca.learning import LearningConfig

DTYPES = ("float64", "float32")

if len(sys.argv) > 1:
    for dtype in sys.argv[1:]:
        for center in (True, False):
            compile_kernels(LearningConfig(3, 2, center=center, dtype=dtype))
else:
    processes = [subprocess.Popen([sys.executable, __file__, dtype]) for dtype in DTYPES]  # noqa: S603 - ourselves
    sys.exit(max([process.wait() for process in processes], key=abs))
