"""``--explain``: which layer each value came from."""

from ..session.config import GatheredOptions
from ..session.options import WorkloadOptions
from .diagnostics import note


def print_explanation(gathered: GatheredOptions, echo: WorkloadOptions) -> None:
    """On stderr: every option in use, its value, where it was given and what it beat."""
    given = {choice.key: choice for choice in gathered.choices}
    for key in echo.__struct_fields__:
        value = getattr(echo, key)
        choice = given.get(key)
        if choice is not None:
            beaten = "".join(f", over {other} from {origin}" for origin, other in choice.beaten)
            used = "" if value is None or str(choice.value) == str(value) else f", used as {value}"
            note(f"{key} = {choice.value} from {choice.origin}{used}{beaten}")
        elif value is not None:
            note(f"{key} = {value} from the model's recipe, the catalogue or a default")
