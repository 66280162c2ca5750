"""The largest micro batch that fits, in few processes.

A process that ran out of memory is not used again, so what costs time is the number of tries that fail. Tries
therefore come as *ladders*: ascending sizes for one process, which ends at the first that does not fit. With a good
guess, one ladder brackets the answer and one failure closes it. Where every try takes a fresh process anyway
(DeepSpeed, FSDP), a ladder has one rung, and the search is plain doubling and bisection.
"""

import math
from dataclasses import dataclass

_FIRST_LADDER = (0.75, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 4.0)
"""Around the guess: narrow where it should be, and doubling where it was far too small."""
_MAX_RUNGS = 8


@dataclass(slots=True, kw_only=True)
class MicroBatchSearch:
    """State of one search: largest size known to fit, smallest known not to."""

    guess: int
    """Where to begin: the estimator's answer."""
    max_rungs: int = _MAX_RUNGS
    """1 where every try takes a process of its own."""
    resolution_fraction: float = 0.0
    """Stop when the two sides are this close; 0 finds the exact size."""
    upper_limit: int | None = None
    """Largest size that makes sense (the global batch per rank)."""
    largest_fitting: int = 0
    smallest_failing: int | None = None

    @property
    def is_done(self) -> bool:
        """Both sides known as closely as asked, or everything that makes sense fits."""
        if self.smallest_failing is None:
            return self.upper_limit is not None and self.largest_fitting >= self.upper_limit
        gap = self.smallest_failing - self.largest_fitting
        return gap <= max(1.0, self.resolution_fraction * self.largest_fitting)

    def next_ladder(self) -> tuple[int, ...]:
        """Ascending sizes to try next in one process; empty when done."""
        if self.is_done:
            return ()
        if self.smallest_failing is None:
            return self._upwards()
        return self._between(self.largest_fitting, self.smallest_failing)

    def record(self, micro_batch_size: int, *, fits: bool) -> None:
        """Take in the answer of one try."""
        if fits:
            self.largest_fitting = max(self.largest_fitting, micro_batch_size)
        elif self.smallest_failing is None or micro_batch_size < self.smallest_failing:
            self.smallest_failing = micro_batch_size

    def _upwards(self) -> tuple[int, ...]:
        """Nothing failed yet: the rest of the rungs around the guess, then doubling from what fits."""
        factors = _FIRST_LADDER if self.max_rungs > 1 else (1.0,)
        around_guess = [max(1, round(self.guess * factor)) for factor in factors]
        sizes = [size for size in around_guess if size > self.largest_fitting]
        if not sizes:
            sizes = [self.largest_fitting * 2**power for power in range(1, self.max_rungs + 1)]
        limit = self.upper_limit or max(sizes)
        return tuple(sorted({min(size, limit) for size in sizes})[: self.max_rungs])

    def _between(self, low: int, high: int) -> tuple[int, ...]:
        """Inner points of the bracket: all of them where few, geometric ones where the sides are far apart."""
        inner = high - low - 1
        if inner <= self.max_rungs:
            points = list(range(low + 1, high))
        else:
            # The answer may be far below a failure: ratios, not differences.
            start = max(low, 1)
            ratio = (high / start) ** (1.0 / (self.max_rungs + 1))
            points = [math.floor(start * ratio**rung) for rung in range(1, self.max_rungs + 1)]
            if low == 0:
                points.append(1)
        return tuple(sorted({min(max(point, low + 1), high - 1) for point in points}))[: self.max_rungs]
