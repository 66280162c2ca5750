"""What can go wrong, as data for the user: what was wrong, the value, what is allowed, what to do next."""

from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing wrong with an input."""

    code: str
    """Stable, machine-readable: ``unknown_gpu``, ``batch_not_divisible``."""
    message: str
    """A sentence for the user that names the value, what is allowed and what to do next."""
    field: str | None = None
    """Option name in snake_case, or file and field path; None where no single field is to blame."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """A warning or an assumption that comes with a result."""

    code: str
    message: str


class ProjectError(Exception):
    """Base of everything the program refuses; carries the exit code of the command line."""

    exit_code = 1
    default_code = "internal"

    def __init__(self, *problems: Problem) -> None:
        self.problems = problems
        super().__init__("\n".join(problem.message for problem in problems))

    @classmethod
    def of(cls, message: str, *, code: str | None = None, field: str | None = None) -> Self:
        """An error with a single problem."""
        return cls(Problem(code=code or cls.default_code, message=message, field=field))


class SpecError(ProjectError):
    """Bad input: exit code 2. Lists every problem found, not the first one only."""

    exit_code = 2
    default_code = "bad_input"


class InfeasibleError(ProjectError):
    """Nothing fits: exit code 3."""

    exit_code = 3
    default_code = "nothing_fits"


class CalibrationError(ProjectError):
    """A calibration that is damaged, foreign or cannot be fitted."""

    exit_code = 2
    default_code = "bad_calibration"


class MeasurementError(ProjectError):
    """A measurement that could not be made: exit code 4."""

    exit_code = 4
    default_code = "measurement_failed"
