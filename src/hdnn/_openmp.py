"""Idle threads of torch's OpenMP are to sleep soon; imported before torch is.

By default GNU's library lets them spin for milliseconds, on a core that the threads of the fused
backend want next. Has no effect where torch is loaded already, or the user has said otherwise.
"""

import os

if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
