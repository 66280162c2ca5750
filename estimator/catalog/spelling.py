"""Tolerant spelling of names, and the nearest to a name that is not known."""

import re
from collections.abc import Iterable

_VENDOR_WORDS = frozenset({"nvidia", "geforce", "tesla", "amd", "ati", "instinct", "radeon", "gpu", "gpus"})
_WORD = re.compile(r"[a-z0-9]+(?:[.+][a-z0-9]+)*")
_GIGABYTES = re.compile(r"(?<=\d)g(?:i?b)?$")
NUM_NAMES = 3
_CUTOFF = 0.75
"""Jaro-Winkler similarity below which a name is no suggestion."""


def normalised(text: str) -> str:
    """A name without case, separators and vendor words; ``80 GiB``, ``80G`` and ``80GB`` are one."""
    words = [word for word in _WORD.findall(text.lower()) if word not in _VENDOR_WORDS]
    joined: list[str] = []
    for word in words:
        if word in ("g", "gb", "gib") and joined and joined[-1].isdigit():
            joined[-1] += "gb"
        else:
            joined.append(_GIGABYTES.sub("gb", word) if word[0].isdigit() else word)
    return "".join(joined)


def nearest_names(text: str, candidates: Iterable[str], *, most: int = NUM_NAMES) -> tuple[str, ...]:
    """At most ``most`` candidates that look like ``text``, the nearest first; none where nothing does."""
    # Imported here: only a mistyped name pays for it.
    from rapidfuzz.distance import JaroWinkler

    wanted = normalised(text[:100])
    scored = [(JaroWinkler.similarity(wanted, normalised(name)), name) for name in dict.fromkeys(candidates)]
    near = sorted((entry for entry in scored if entry[0] >= _CUTOFF), key=lambda entry: -entry[0])
    return tuple(name for _, name in near[:most])
