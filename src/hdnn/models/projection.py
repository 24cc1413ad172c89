"""When a table enters a network through a projection, and how wide that network is."""

from __future__ import annotations

CHOICES = ("auto", "on", "off")
MOST_PADDED = 64
"""The most features that a network takes as they are, unless its width is given."""


def default_width(features: int, choice: str = "auto") -> int:
    """The width of a network that is not given one: the features and as many zeros, at most 32.

    Above 64 features, unless there is to be no projection, it stays at 64.

    >>> default_width(2), default_width(50), default_width(20_000)
    (4, 82, 64)
    """
    if features > MOST_PADDED and choice != "off":
        return MOST_PADDED
    return features + min(features, 32)


def needs_projection(choice: str, features: int, width: int) -> bool:
    """Whether a table of so many features enters a network through a projection.

    Args:
        choice: "auto" (where the features exceed the width), "on" or "off".
        features: width of the data.
        width: width of the network.

    >>> needs_projection("auto", 50, 16), needs_projection("auto", 2, 4)
    (True, False)
    """
    return choice == "on" or (choice == "auto" and features > width)
