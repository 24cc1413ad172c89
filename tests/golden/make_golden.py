"""Write the golden file: what the code computed at commit 2505eca, before its core was redesigned.

`values.safetensors` holds, in float64 and by the reference backend, y_N of every case of
`golden_cases` and digests (norm and three dot products) of its trajectory, its inverse and its
first and second derivatives; `trainings.json` the losses and accuracies of short trainings. In an
environment with hdnn of that commit (here Python 3.11, torch 2.13.0, numpy 2.4.6, scikit-learn
1.9.1, on x86-64 with AVX-512), in half a minute once the kernels are compiled:

    python tests/golden/make_golden.py

Run it again only where what the package computes is meant to change. Which differences are allowed
is said in `test_golden` (values) and `golden_cases` (trainings).
"""

from __future__ import annotations

import json

import numpy as np
from golden_cases import CASES, TRAINED, TRAININGS, VALUES, pack, train, values
from safetensors.numpy import save_file


def main() -> None:
    arrays: dict[str, np.ndarray] = {}
    for name in CASES:
        arrays |= pack(name, values(name, "reference"))
    save_file(arrays, VALUES)
    # json writes floats so that they are read back with the same bits.
    lines = [f"{json.dumps(name)}: {json.dumps(train(name))}" for name in TRAINED]
    TRAININGS.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
