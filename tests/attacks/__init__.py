"""The standing attack: long campaigns against what hdnn promises (docs/reliability.md).

Every campaign has a function ``run(count, seed, start=0)`` that tries the inputs start, ...,
start + count - 1 of a seed and returns a `Tally`; an input depends on seed and number only, so a
failure is repeated by its number: ``python -m attacks --only NAME --seed S --start N --count 1``.
"""
