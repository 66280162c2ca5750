"""From one step to the whole run: days, dollars, energy."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..specs.units import JOULES_PER_KWH, SECONDS_PER_DAY, SECONDS_PER_HOUR
from .columns import WorkloadColumns

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class CostColumns:
    """Expected totals of the run; NaN where length, price or power is unknown."""

    training_days: Array
    cost_usd: Array
    energy_kwh: Array


def run_costs(columns: WorkloadColumns, step_seconds: Array) -> CostColumns:
    """T = steps x step x (1 + overhead); cost = T x GPUs x price; energy = T x GPUs x power x draw.

    overhead: share for evaluation, saving and restarts, 0 unless stated. draw: mean over the board's limit.
    Neglected: compile and start-up time, host power, cooling.
    """
    seconds = columns.num_training_steps * step_seconds * (1.0 + columns.overhead_fraction)
    gpu_hours = seconds / SECONDS_PER_HOUR * columns.cluster.num_gpus
    power = np.where(columns.cluster.knows_power, columns.cluster.power_watts, np.nan)
    energy = gpu_hours * SECONDS_PER_HOUR * power * columns.coefficients.power_fraction / JOULES_PER_KWH
    return CostColumns(
        training_days=seconds / SECONDS_PER_DAY,
        cost_usd=gpu_hours * columns.cluster.usd_per_gpu_hour,
        energy_kwh=energy,
    )
