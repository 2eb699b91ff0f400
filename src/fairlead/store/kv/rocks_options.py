"""Settings of RocksDB for the tables of the port. docs/decisions/0003-rocksdb-settings.md gives the reasons."""

from __future__ import annotations

from rocksdict import Cache, Options

from fairlead.store.kv.port import Table
from fairlead.store.rocks.options import MAX_WRITE_BUFFER_BYTES, MIB, Shape
from fairlead.store.rocks.options import family_options as options_of

#: Tables whose rows are written and soon deleted get room for both before a flush. Runs are read a few at a
#: time, all over the table: most of a larger block would be read in vain.
_SHAPES = {
    Table.PAGES: Shape(MAX_WRITE_BUFFER_BYTES, block_bytes=16 * 1024, looked_up=True),
    Table.CHUNKS: Shape(16 * MIB, looked_up=True),
    Table.OWN: Shape(16 * MIB, looked_up=True, queue_shaped=True),
    Table.STATES: Shape(looked_up=True),
    # Nearly every key is new: a filter tells so without reading a block.
    Table.DEDUP: Shape(looked_up=True),
    Table.LEASES: Shape(queue_shaped=True),
    Table.COLD: Shape(queue_shaped=True),
    Table.RUNS: Shape(block_bytes=4 * 1024, queue_shaped=True),
}


def family_name(table: Table) -> str:
    return table.name.lower()


def family_options(cache: Cache, *, compacts: bool) -> dict[str, Options]:
    """For every table. `compacts=False`: no compaction starts before the caller allows it."""
    families = {}
    for table in Table:
        options = options_of(_SHAPES.get(table, Shape()), cache, Options(raw_mode=True))
        options.set_disable_auto_compactions(not compacts)
        families[family_name(table)] = options
    return families
