"""TOML files of the catalogue -> typed tables; every error names the file and the field."""

import datetime
import tomllib
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from ..specs.errors import Problem, SpecError
from ..specs.hardware import Accelerator, Link, NumberFormat, Price

DATA_DIRECTORY = Path(__file__).parent / "data"
LARGEST_FILE_BYTES = 4 * 2**20
"""Nobody writes a larger description by hand; protects against a wrong path."""

_Table = TypeVar("_Table", bound=msgspec.Struct)
_Positive = Annotated[float, msgspec.Meta(gt=0, lt=1e21)]
_PositiveInt = Annotated[int, msgspec.Meta(ge=1, lt=2**60)]
_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=100)]


class Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of everything that lies in a file: a field that is not known is an error, never ignored."""


class SourceTable(Table, frozen=True, kw_only=True):
    """Where the numbers of some fields come from."""

    fields: tuple[str, ...]
    source: Annotated[str, msgspec.Meta(min_length=1)]
    read: datetime.date
    """Day on which the source was read (or, for general knowledge, written down)."""


class AcceleratorTable(Table, frozen=True, kw_only=True):
    """A file of ``accelerators/``. Fields as in ``Accelerator``, where their meaning and units stand."""

    name: _Name
    memory_bytes: _PositiveInt
    memory_bandwidth_bytes_per_second: _Positive
    peak_dense_flop_per_second: Annotated[dict[NumberFormat, _Positive], msgspec.Meta(min_length=1)]
    display_name: str | None = None
    vendor: str = "custom"
    aliases: tuple[str, ...] = ()
    """Other spellings; the bundled ones stand in ``accelerator_names.toml``."""
    compute_capability: tuple[int, int] | None = None
    num_multiprocessors: _PositiveInt | None = None
    l2_cache_bytes: _PositiveInt | None = None
    power_watts: _Positive | None = None
    context_bytes: Annotated[int, msgspec.Meta(ge=0)] | None = None
    host_link: str = "pcie4x16"
    peer_link: str = "pcie4x16"
    bridge_link: str | None = None
    supports_peer_to_peer: bool = True
    sources: tuple[SourceTable, ...] = ()


class LinkTable(Table, frozen=True, kw_only=True):
    """An entry of ``links.toml``."""

    bandwidth_bytes_per_second: _Positive
    latency_seconds: Annotated[float, msgspec.Meta(ge=0, lt=1)]
    source: str
    read: datetime.date
    mesh_peers: _PositiveInt | None = None
    """The rate is the sum of direct links to that many peers."""


class NodeTable(Table, frozen=True, kw_only=True):
    """A file of ``clusters/``: a machine that many people use."""

    name: _Name
    display_name: str
    gpu: str
    num_gpus: _PositiveInt
    peer_link: str
    cpu_memory_gib: _Positive
    network_gbit: _Positive
    aliases: tuple[str, ...] = ()
    sources: tuple[SourceTable, ...] = ()


class PriceTable(Table, frozen=True, kw_only=True):
    """One price."""

    usd: _Positive
    date: str
    source: str


class BaseMachineTable(Table, frozen=True, kw_only=True):
    """The machine without its cards, by the number of cards it holds."""

    usd: dict[str, _Positive]
    date: str
    source: str


class PricesTable(Table, frozen=True, kw_only=True):
    """``prices.toml``; a user's file may hold any part of it."""

    rental: dict[str, PriceTable] = msgspec.field(default_factory=dict)
    purchase: dict[str, PriceTable] = msgspec.field(default_factory=dict)
    base_machine: BaseMachineTable | None = None
    write_off_years: _Positive | None = None


def read_toml(path: Path) -> dict[str, Any]:
    """The document in a file."""
    try:
        if path.stat().st_size > LARGEST_FILE_BYTES:
            raise _refusal(path, None, f"larger than {LARGEST_FILE_BYTES // 2**20} MiB; is this the right file?")
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise _refusal(path, None, f"cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise _refusal(path, None, "is no UTF-8 text") from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise _refusal(path, None, f"is no valid TOML: {error}") from None


def convert(document: dict[str, Any], kind: type[_Table], *, path: Path) -> _Table:
    """The document as a table. Raises SpecError with every field that is wrong."""
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        raise SpecError(*_problems(document, kind, path, str(error))) from None


def _problems(document: dict[str, Any], kind: type[_Table], path: Path, first: str) -> list[Problem]:
    """Field by field, because conversion as a whole stops at the first error."""
    known = {field.name: field for field in msgspec.structs.fields(kind)}
    found = []
    for name in document:
        if name not in known:
            found.append(_problem(path, name, f"unknown field; known are {', '.join(known)}"))
    for name, field in known.items():
        if name not in document:
            if field.required:
                found.append(_problem(path, name, "is missing"))
            continue
        try:
            msgspec.convert(document[name], field.type)
        except msgspec.ValidationError as error:
            message, _, place = str(error).partition(" - at `$")
            found.append(_problem(path, name + place.rstrip("`"), message))
    return found or [_problem(path, None, first)]


def _problem(path: Path, field: str | None, message: str) -> Problem:
    place = f"{path}: {field}" if field else str(path)
    return Problem(code="bad_file", message=f"{place}: {message}", field=place)


def _refusal(path: Path, field: str | None, message: str) -> SpecError:
    return SpecError(_problem(path, field, message))


def load_accelerator(path: Path) -> tuple[Accelerator, tuple[str, ...]]:
    """The accelerator in a file, without prices, and its aliases."""
    table = convert(read_toml(path), AcceleratorTable, path=path)
    links = {"host_link": table.host_link, "peer_link": table.peer_link, "bridge_link": table.bridge_link}
    unknown = [(field, link) for field, link in links.items() if link is not None and link not in load_links()]
    if unknown:
        known = f"known are {', '.join(load_links())}"
        raise SpecError(*(_problem(path, field, f"no link is called {link!r}; {known}") for field, link in unknown))
    values = {
        field.name: getattr(table, field.name)
        for field in msgspec.structs.fields(AcceleratorTable)
        if field.name not in ("aliases", "sources", "display_name", "context_bytes")
    }
    if table.context_bytes is not None:
        values["context_bytes"] = table.context_bytes
    sources = tuple(f"{', '.join(entry.fields)}: {entry.source} ({entry.read})" for entry in table.sources)
    accelerator = Accelerator(display_name=table.display_name or table.name, sources=sources, **values)
    return accelerator, table.aliases


_LINKS: dict[str, tuple[Link, int | None]] = {}


def load_links() -> dict[str, tuple[Link, int | None]]:
    """Every link by name, with the number of peers of a mesh. Read once."""
    if not _LINKS:
        path = DATA_DIRECTORY / "links.toml"
        for name, entry in read_toml(path).items():
            table = convert(entry, LinkTable, path=path)
            link = Link(
                name=name, bandwidth_bytes_per_second=table.bandwidth_bytes_per_second,
                latency_seconds=table.latency_seconds, source=f"{table.source} ({table.read})",
            )  # fmt: skip
            _LINKS[name] = (link, table.mesh_peers)
    return _LINKS


def load_prices(path: Path) -> PricesTable:
    """A price file."""
    return convert(read_toml(path), PricesTable, path=path)


def to_price(table: PriceTable) -> Price:
    """As the specs know it."""
    return Price(usd=table.usd, date=table.date, source=table.source)
