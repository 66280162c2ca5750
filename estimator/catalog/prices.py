"""Prices to rent and to buy: editable defaults, and a user's own in their place."""

from functools import lru_cache

from ..specs.errors import Note
from ..specs.hardware import Price
from .load import DATA_DIRECTORY, BaseMachineTable, PricesTable, load_prices, to_price
from .user_files import user_prices


@lru_cache(maxsize=1)
def _bundled() -> PricesTable:
    return load_prices(DATA_DIRECTORY / "prices.toml")


def _tables() -> tuple[PricesTable, ...]:
    """The user's first."""
    own = user_prices()
    return (own[0], _bundled()) if own else (_bundled(),)


def rental_price(name: str) -> Price | None:
    """USD per GPU-hour of an accelerator; None where none is known."""
    return next((to_price(table.rental[name]) for table in _tables() if name in table.rental), None)


def purchase_price(name: str) -> Price | None:
    """USD per card; None where none is known."""
    return next((to_price(table.purchase[name]) for table in _tables() if name in table.purchase), None)


def price_notes(name: str) -> tuple[Note, ...]:
    """Says that a price is the user's own."""
    own = user_prices()
    if own is None or (name not in own[0].rental and name not in own[0].purchase):
        return ()
    return (Note(code="user_price", message=f"Price of {name} from {own[1]}."),)


def write_off_years() -> float:
    """Years over which bought hardware is written off."""
    return next(table.write_off_years for table in _tables() if table.write_off_years is not None)


def base_machine_usd(num_gpus: int) -> float:
    """USD of a machine without its cards: the smallest listed that holds them; beyond the largest, several of it."""
    table: BaseMachineTable = next(table.base_machine for table in _tables() if table.base_machine is not None)
    by_count = sorted((int(count), usd) for count, usd in table.usd.items())
    for count, usd in by_count:
        if num_gpus <= count:
            return usd
    largest, usd = by_count[-1]
    return usd * -(-num_gpus // largest)
