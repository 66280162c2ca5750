"""Canonical units and the only place that scales.

Inside the program: bytes, seconds, FLOPs, FLOP/s, bytes/s, USD, fractions in 0..1.
GB and GiB exist at the edge only and are always spelled.
"""

import math
import re

KIB = 2**10
MIB = 2**20
GIB = 2**30
GB = 10**9
TERA = 10**12
MICRO = 1e-6
SECONDS_PER_HOUR = 3600.0
SECONDS_PER_DAY = 86400.0
JOULES_PER_KWH = 3.6e6
BITS_PER_BYTE = 8

_SUFFIXES = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12, "p": 1e15}
_COUNT = re.compile(r"^\s*([+-]?(?:\d[\d_,]*\.?\d*|\.\d+)(?:e[+-]?\d+)?)\s*([kmbgtp]?)\s*$", re.IGNORECASE)


def parse_count(text: str) -> int:
    """Parse a count as people write it: ``300B``, ``1.5T``, ``2e9``, ``143,000``.

    Raises ValueError where the text is no number, is not finite or is no whole count.
    """
    match = _COUNT.match(text)
    if match is None:
        raise ValueError(f"{text!r} is not a count; write digits with an optional K, M, B or T, such as 300B")
    value = float(match[1].replace(",", "").replace("_", "")) * _SUFFIXES[match[2].lower()]
    if not math.isfinite(value):
        raise ValueError(f"{text!r} is not a finite count")
    if value != round(value):
        raise ValueError(f"{text!r} is not a whole count")
    return round(value)


def format_count(value: float) -> str:
    """1,011,781,632 -> ``1.01B``."""
    for limit, suffix in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K")):
        # 999.9 million rounds to 1B, not to 1e+03M.
        if abs(value) >= 0.9995 * limit:
            return f"{value / limit:.3g}{suffix}"
    return f"{value:.0f}"


def format_bytes(value: float) -> str:
    """Bytes as GiB (or MiB below one GiB): ``23.4 GiB``."""
    if abs(value) >= GIB:
        return f"{value / GIB:.1f} GiB" if abs(value) < 1000 * GIB else f"{value / GIB:,.0f} GiB"
    return f"{value / MIB:.0f} MiB"


def format_seconds(value: float) -> str:
    """Seconds in the unit a reader expects: ``180 ms``, ``12.3 s``, ``4.5 h``, ``18.2 days``."""
    for limit, factor, unit in (
        (1e-3, 1e6, "us"), (1.0, 1e3, "ms"), (600.0, 1.0, "s"), (2 * SECONDS_PER_HOUR, 1 / 60, "min"),
        (2 * SECONDS_PER_DAY, 1 / SECONDS_PER_HOUR, "h"),
    ):
        if abs(value) < limit:
            return f"{value * factor:.3g} {unit}"
    days = value / SECONDS_PER_DAY
    return f"{days:,.3g} days" if days < 1e3 else f"{days:,.0f} days"


def format_usd(value: float) -> str:
    """USD without false precision: ``$3.20``, ``$540``, ``$12,300``."""
    if abs(value) < 100:
        return f"${value:,.2f}"
    digits = max(0, int(math.log10(abs(value))) - 2)
    return f"${round(value, -digits):,.0f}"
