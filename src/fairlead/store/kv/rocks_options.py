"""Settings of RocksDB for the tables of the port. docs/decisions/0003-rocksdb-settings.md gives the reasons."""

from __future__ import annotations

from rocksdict import BlockBasedOptions, Cache, DBCompressionType, Options

from fairlead.store.kv.port import Table
from fairlead.store.rocks.options import MIB

_SMALL_WRITE_BUFFER = 4 * MIB
#: Tables with rows that are written and soon deleted get room for both before a flush. The largest buffer
#: bounds the largest compaction, and so the disk reserve (`store/rocks/options.py`).
_WRITE_BUFFER = {Table.PAGES: 32 * MIB, Table.CHUNKS: 16 * MIB, Table.OWN: 16 * MIB}
_POINT_LOOKUPS = (Table.CHUNKS, Table.PAGES, Table.STATES, Table.OWN)
#: Rows are deleted from the front while scans start at the front.
_QUEUE_SHAPED = (Table.OWN, Table.LEASES, Table.COLD, Table.RUNS)
#: Runs are read a few at a time, all over the table: most of a larger block would be read for nothing.
_BLOCK_BYTES = {Table.PAGES: 16 * 1024, Table.RUNS: 4 * 1024}
_USUAL_BLOCK_BYTES = 8 * 1024
_TABLE_BYTES = 8 * MIB
_FIRST_LEVEL_BYTES = 64 * MIB
_FIRST_LEVEL_TRIGGER = 4


def family_name(table: Table) -> str:
    return table.name.lower()


def family_options(cache: Cache, *, compacts: bool) -> dict[str, Options]:
    """For every table. `compacts=False`: no compaction starts before the caller allows it."""
    return {family_name(table): _table_options(table, cache, compacts) for table in Table}


def _table_options(table: Table, cache: Cache, compacts: bool) -> Options:
    options = Options(raw_mode=True)
    options.set_write_buffer_size(_WRITE_BUFFER.get(table, _SMALL_WRITE_BUFFER))
    options.set_max_write_buffer_number(3)
    options.set_target_file_size_base(_TABLE_BYTES)
    options.set_max_bytes_for_level_base(_FIRST_LEVEL_BYTES)
    options.set_max_compaction_bytes(_FIRST_LEVEL_BYTES)
    options.set_level_zero_file_num_compaction_trigger(_FIRST_LEVEL_TRIGGER)
    options.set_disable_auto_compactions(not compacts)
    options.set_allow_concurrent_memtable_write(False)
    options.set_compression_per_level(
        [DBCompressionType.none(), DBCompressionType.none(), DBCompressionType.lz4()]
    )
    if table in _QUEUE_SHAPED:
        options.add_compact_on_deletion_collector_factory(4096, 2048, 0.5)
    blocks = BlockBasedOptions()
    blocks.set_block_cache(cache)
    blocks.set_block_size(_BLOCK_BYTES.get(table, _USUAL_BLOCK_BYTES))
    blocks.set_cache_index_and_filter_blocks(True)
    blocks.set_pin_l0_filter_and_index_blocks_in_cache(True)
    blocks.set_format_version(5)
    if table in _POINT_LOOKUPS:
        blocks.set_bloom_filter(10, False)
    options.set_block_based_table_factory(blocks)
    return options
