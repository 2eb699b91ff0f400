# orders.py
"""Make orders of five shops as Parquet, the same in each run: python orders.py 2000 orders.parquet

The noisy shop has as many orders as all others together, and its orders come first. Silver sells to Sweden. One
order of bronze has a note that is too long for its bank.
"""

import random
import sys

import pyarrow as pa
import pyarrow.parquet as pq

#: The weight of a shop in the queue, and its share of all orders, in twentieths.
SHOPS = {"noisy": (1, 10), "gold": (4, 4), "silver": (3, 3), "bronze": (2, 2), "trial": (1, 1)}
CURRENCIES = ("EUR", "EUR", "EUR", "GBP", "USD")
SWEDISH_IN_A_THOUSAND = 10


def write_orders(path: str, count: int, seed: int = 8) -> dict[str, int]:
    """Write the orders, and return their number by shop. `count` is rounded down to a multiple of twenty."""
    chance = random.Random(seed)
    parts = []
    counts = {}
    first = 0
    for shop, (weight, twentieths) in SHOPS.items():
        size = counts[shop] = count // 20 * twentieths
        currencies = chance.choices(CURRENCIES, k=size)
        notes = [""] * size
        if shop == "silver":
            currencies = [
                "SEK" if chance.randrange(1000) < SWEDISH_IN_A_THOUSAND else currency
                for currency in currencies
            ]
        if shop == "bronze":
            notes[size // 2] = "Happy birthday! " * 50
        parts.append(
            pa.table(
                {
                    "order": [f"{first + number:07}" for number in range(size)],
                    "shop": pa.array([shop] * size),
                    "weight": pa.array([weight] * size, pa.int32()),
                    "currency": currencies,
                    "amount": [chance.randrange(100, 20_000) / 100 for _ in range(size)],
                    "note": notes,
                }
            )
        )
        first += size
    pq.write_table(pa.concat_tables(parts), path, row_group_size=50_000)
    return counts


if __name__ == "__main__":
    for name, number in write_orders(sys.argv[2], int(sys.argv[1])).items():
        print(f"{number:7,} orders of {name}")
