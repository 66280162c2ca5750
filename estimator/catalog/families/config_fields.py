"""Typed access to the fields of a ``config.json``: every problem is collected, every default is noted.

``null`` counts as missing, as in transformers. Nothing is inferred silently: a field that is absent takes
transformers' default and appears in one note; a field of a wrong type, out of range or unknown is a problem.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

from ...specs.errors import Note, Problem, SpecError

MAX_WIDTH = 1 << 20
"""Largest hidden, intermediate or head size taken for real."""
MAX_LAYERS = 10_000
MAX_VOCABULARY = 100_000_000
MAX_LENGTH = 1 << 30
MAX_IMAGE_SIZE = 16_384
_SHOWN_CHARACTERS = 60


def shown(value: object) -> str:
    """A value as a message can carry it: short, and safe for integers of a million digits."""
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 256:
        return f"a whole number of {value.bit_length()} bits"
    if isinstance(value, (dict, list, tuple)):
        kind = "an object" if isinstance(value, dict) else "a list"
        return f"{kind} of {len(value)} entries"
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 3] + "..."


class ConfigFields:
    """One config being read. Call the readers, then ``finish``."""

    def __init__(self, config: Mapping[str, object], *, name: str, source: str) -> None:
        self.config = config
        self.name = name
        self.source = source
        self._problems: list[Problem] = []
        self._defaulted: dict[str, object] = {}
        self._notes: list[Note] = []

    def refuse(self, field: str, message: str, *, code: str = "bad_config") -> None:
        """Add a problem; reading goes on so that all of them are reported at once."""
        self._problems.append(Problem(code=code, message=f"{self.name}: {message}", field=field))

    @property
    def problems(self) -> tuple[Problem, ...]:
        """What was refused so far."""
        return tuple(self._problems)

    @property
    def has_problems(self) -> bool:
        """Whether anything was refused so far."""
        return bool(self._problems)

    def note(self, code: str, message: str) -> None:
        """Add an assumption."""
        self._notes.append(Note(code=code, message=f"{self.name}: {message}"))

    def is_given(self, field: str) -> bool:
        """Whether a field is there and not null."""
        return self.config.get(field) is not None

    def are_valid(self, *names: str) -> bool:
        """Whether none of these fields was refused: only then can they contradict each other."""
        return not any(problem.field in names for problem in self._problems)

    def _default(self, field: str, default: object) -> None:
        if default is None:
            self.refuse(field, f"{field} is missing; it has no default, so add it to the config")
        else:
            self._defaulted[field] = default

    def integer(self, field: str, default: int | None, *, minimum: int = 1, maximum: int = MAX_WIDTH) -> int:
        """A whole number in minimum..maximum; ``default`` None makes the field required."""
        value = self.config.get(field)
        if value is None:
            self._default(field, default)
            return minimum if default is None else default
        if isinstance(value, float) and math.isfinite(value) and value == int(value):
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
            self.refuse(field, f"{field} is {shown(value)}; it must be a whole number from {minimum:,} to {maximum:,}")
            return minimum
        return value

    def number(self, field: str, default: float, *, minimum: float, maximum: float, is_noted: bool = True) -> float:
        """A finite number in minimum..maximum."""
        value = self.config.get(field)
        if value is None:
            if is_noted:
                self._default(field, default)
            return default
        # The comparison also refuses nan, and integers too large for a float.
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not minimum <= value <= maximum:
            self.refuse(field, f"{field} is {shown(value)}; it must be a number from {minimum:g} to {maximum:g}")
            return default
        return float(value)

    def fraction(self, field: str, default: float) -> float:
        """A dropout or drop path rate: 0 up to, but not including, 1."""
        value = self.number(field, default, minimum=0.0, maximum=1.0)
        if value == 1.0:
            self.refuse(field, f"{field} is 1, which drops everything; it must be below 1")
            return default
        return value

    def boolean(self, field: str, default: bool) -> bool:
        """True or false."""
        value = self.config.get(field)
        if value is None:
            self._defaulted[field] = default
            return default
        if not isinstance(value, bool):
            self.refuse(field, f"{field} is {shown(value)}; it must be true or false")
            return default
        return value

    def choice(self, field: str, default: str, allowed: Iterable[str]) -> str:
        """One of the allowed words."""
        value = self.config.get(field)
        if value is None:
            self._defaulted[field] = default
            return default
        choices = tuple(allowed)
        if not isinstance(value, str) or value not in choices:
            self.refuse(field, f"{field} is {shown(value)}; modelled are {', '.join(choices)}", code="not_modelled")
            return default
        return value

    def integers(self, field: str, default: Sequence[int], *, maximum: int) -> tuple[int, ...]:
        """A list of positive whole numbers."""
        value = self.config.get(field)
        if value is None:
            self._defaulted[field] = list(default)
            return tuple(default)
        is_valid = (
            isinstance(value, (list, tuple))
            and 0 < len(value) <= 64
            and all(isinstance(x, int) and not isinstance(x, bool) and 1 <= x <= maximum for x in value)
        )
        if not is_valid:
            self.refuse(field, f"{field} is {shown(value)}; it must be a list of whole numbers from 1 to {maximum:,}")
            return tuple(default)
        assert isinstance(value, (list, tuple))
        return tuple(value)

    def square(self, field: str, default: int, *, maximum: int = MAX_IMAGE_SIZE) -> int:
        """A side in pixels: a whole number, or two equal ones."""
        value = self.config.get(field)
        if isinstance(value, (list, tuple)):
            if len(value) == 2 and value[0] == value[1]:
                return ConfigFields.integer(self._with(field, value[0]), field, default, maximum=maximum)
            self.refuse(field, f"{field} is {shown(value)}; only square ones are modelled: give one whole number")
            return default
        return self.integer(field, default, maximum=maximum)

    def _with(self, field: str, value: object) -> "ConfigFields":
        """This reader over a config with one field replaced; problems and notes are shared."""
        other = ConfigFields({**self.config, field: value}, name=self.name, source=self.source)
        other._problems, other._defaulted, other._notes = self._problems, self._defaulted, self._notes
        return other

    def num_labels(self, default: int = 2) -> int:
        """Classes: ``num_labels``, or the length of ``id2label`` (transformers keeps only the latter)."""
        labels = self.config.get("id2label")
        if labels is None:
            return self.integer("num_labels", default, maximum=MAX_VOCABULARY)
        if not isinstance(labels, dict) or not labels:
            self.refuse("id2label", f"id2label is {shown(labels)}; it must be an object of at least one label")
            return default
        if not self.is_given("num_labels"):
            return len(labels)
        given = self.integer("num_labels", default, maximum=MAX_VOCABULARY)
        if given != len(labels):
            self.note("num_labels", f"num_labels={given} taken although id2label has {len(labels)} entries")
        return given

    def head(self, allowed: Mapping[str, str], default: str, *, assumed: str) -> str:
        """What ``architectures`` names, through ``allowed`` (class name -> head).

        Another class of the same family (or none) is estimated with the default head, and says so.
        """
        value = self.config.get("architectures")
        if value is None:
            self.note("head_assumed", f"architectures is missing; assuming {assumed}")
            return default
        is_valid = isinstance(value, (list, tuple)) and len(value) > 0 and all(isinstance(x, str) for x in value)
        if not is_valid:
            self.refuse("architectures", f"architectures is {shown(value)}; it must be a list with a class name")
            return default
        assert isinstance(value, (list, tuple))
        for architecture in value:
            if architecture in allowed:
                return allowed[architecture]
        self.note("head_assumed", f"architectures names {shown(value[0])}; assuming {assumed}")
        return default

    def finish(self) -> tuple[Note, ...]:
        """All notes, or one SpecError with all problems."""
        if self._problems:
            raise SpecError(*self._problems)
        notes = list(self._notes)
        if self._defaulted:
            fields = ", ".join(f"{field}={shown_default(value)}" for field, value in self._defaulted.items())
            message = f"{self.name}: absent fields take transformers' defaults: {fields}"
            notes.insert(0, Note(code="config_defaults", message=message))
        return tuple(notes)


def shown_default(value: object) -> str:
    """A default as JSON spells it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
