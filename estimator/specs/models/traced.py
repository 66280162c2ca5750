"""A model known by its trace: the operation lists themselves, per variant."""

from dataclasses import dataclass, field

from ..operations import OperationList


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedModel:
    """What ``traincast trace`` saves."""

    name: str
    source: str
    input_kind: str
    """``tokens`` or ``images``."""
    variants: dict[str, OperationList] = field(hash=False)
    """By ``numerics/attention path`` (``autocast/flash``), and ``.../compiled`` for ``torch.compile``."""
    max_position_embeddings: int | None = None
    image_size: int | None = None
    vocab_size: int | None = None
    provenance: dict[str, str] = field(default_factory=dict, hash=False)
    """torch and transformers versions, date, model class."""

    @property
    def family(self) -> str:
        return "traced"
