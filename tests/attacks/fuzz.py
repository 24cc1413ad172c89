"""Coverage-guided fuzzing of the readers with atheris, each in a process of its own.

The promises are those of `attacks.readers`; atheris finds inputs that reach new code. The package
is in the extra ``attack``; without it nothing is tried.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from attacks.tally import Tally, tally

SECONDS = 60
"""After which an input is a hang."""


def run(name: str, count: int, seed: int, start: int = 0) -> Tally:
    """Fuzz one reader; of a run that is repeated, all inputs from ``start`` on are counted."""
    what = f"fuzzed {name}"
    if importlib.util.find_spec("atheris") is None:
        return Tally(what, 0, note="skipped: atheris is not installed (pip install 'hdnn[attack]')")
    with TemporaryDirectory(prefix="hdnn-attack-") as folder:
        verdicts = Path(folder) / "verdicts"
        verdicts.touch()
        places = [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
        process = subprocess.run(
            [sys.executable, "-m", "attacks.fuzz", name, folder, str(start + count), str(seed)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(places)},
        )
        found = [json.loads(line) for line in verdicts.read_text().splitlines()]
        if process.returncode:
            found.append(f"crash (exit {process.returncode}): {process.stdout[-400:]}")
    return tally(what, list(enumerate(found))[start:])


def main(name: str, folder: str, count: str, seed: str) -> None:
    """Fuzz in this process, which ends with it."""
    import atheris

    with atheris.instrument_imports(include=["hdnn"]):
        from attacks import readers

    reader = readers.READERS[name]
    valid = reader.samples()
    corpus, room = Path(folder) / "corpus", Path(folder) / "room"
    corpus.mkdir()
    room.mkdir()
    for number, data in enumerate(valid):
        (corpus / str(number)).write_bytes(data)

    with open(Path(folder) / "verdicts", "w", buffering=1) as verdicts:

        def judge(data: bytes) -> None:
            verdicts.write(json.dumps(readers.verdict_on(reader, data, room)) + "\n")

        def mutation(data: bytes, longest: int, number: int) -> bytes:
            rng = Random(number)
            if rng.random() < 0.5:
                return atheris.Mutate(data, longest)
            try:
                return reader.mutation(data, rng, valid)[:longest]
            except Exception:  # no longer such a file as the mutation knows
                return atheris.Mutate(data, longest)

        options = (f"-runs={count}", f"-seed={seed}", f"-timeout={SECONDS}", "-rss_limit_mb=4096")
        atheris.Setup(
            ["fuzz", *options, "-max_len=100000", str(corpus)], judge, custom_mutator=mutation
        )
        atheris.Fuzz()


if __name__ == "__main__":
    main(*sys.argv[1:])
