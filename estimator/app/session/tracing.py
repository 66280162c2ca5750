"""From what the user typed to a traced model in a file."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.trace import TraceRequest, trace
from estimator.catalog.resolve import resolve_config
from estimator.specs.errors import Note
from estimator.specs.models.traced import TracedModel

_CALLABLE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_ATTENTIONS = {"both": ("sdpa", "eager"), "sdpa": ("sdpa",), "eager": ("eager",)}
ATTENTION_CHOICES = tuple(_ATTENTIONS)


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceAnswer:
    """A traced model and where it lies."""

    model: TracedModel
    out: Path
    notes: tuple[Note, ...]

    def document(self) -> dict[str, object]:
        """The answer as JSON."""
        listed = next(iter(self.model.variants.values()))
        return {
            "schema": 1,
            "file": str(self.out),
            "name": self.model.name,
            "source": self.model.source,
            "input_kind": self.model.input_kind,
            "parameters": listed.num_parameters,
            "blocks": [
                {"name": block.name, "class": block.class_name, "num_blocks": block.num_blocks}
                for block in listed.blocks
            ],
            "variants": {key: len(variant.operations) for key, variant in self.model.variants.items()},
            "provenance": dict(self.model.provenance),
            "notes": [{"code": note.code, "message": note.message} for note in self.notes],
        }


def trace_model(
    text: str,
    *,
    overrides: Mapping[str, object],
    attention: str,
    sequence_length: int | None,
    image_size: int | None,
    out: Path | None,
    on_progress: Callable[[str], None],
) -> TraceAnswer:
    """Trace ``text``: a name, config, folder or hub id (its config only), or ``module:callable`` of the user."""
    notes: tuple[Note, ...] = ()
    if _CALLABLE.fullmatch(text):
        name = text.partition(":")[2]
        request = TraceRequest(
            name=name,
            source=text,
            callable=text,
            search_path=str(Path.cwd()),
            attentions=_ATTENTIONS[attention],
            check_length=sequence_length,
        )
    else:
        resolved = resolve_config(text, overrides=overrides)
        name, notes = resolved.name, tuple(resolved.notes)
        request = TraceRequest(
            name=name,
            source=resolved.source,
            config=resolved.config,
            attentions=_ATTENTIONS[attention],
            check_length=sequence_length,
            image_size=image_size,
        )
    path = out if out is not None else Path(f"{name.replace('/', '--')}.trace.json")
    model = trace(request, path, on_progress=on_progress)
    said = model.provenance.get("notes")
    if said:
        notes = (*notes, Note(code="trace", message=said))
    return TraceAnswer(model=model, out=path, notes=notes)
