"""RocksDB's settings. docs/decisions/0003-rocksdb-settings.md has the measurements and the reasons."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from rocksdict import BlockBasedOptions, Cache, DBCompressionType, DBRecoveryMode, Options

MIB = 1 << 20

CACHE_BYTES = 32 * MIB
WAL_BYTES = 256 * MIB
#: Over all families: beyond it the largest memtable is flushed.
MEMTABLE_BYTES = 64 * MIB
#: The largest write buffer of a table: it bounds the largest compaction.
MAX_WRITE_BUFFER_BYTES = 32 * MIB
#: Small tables and levels, so that one compaction needs little space: it writes its output before its input
#: is deleted.
_TABLE_BYTES = 8 * MIB
_FIRST_LEVEL_BYTES = 64 * MIB
_FIRST_LEVEL_TRIGGER = 4
#: The largest compaction: all flushed memtables of the largest family, with all of the first level.
COMPACTION_BYTES = _FIRST_LEVEL_TRIGGER * MAX_WRITE_BUFFER_BYTES + _FIRST_LEVEL_BYTES
#: How a family is compacted: as usual, after each flush, or not at all.
COMPACTION_MODES = {
    "usual": {
        "disable_auto_compactions": "false",
        "level0_file_num_compaction_trigger": str(_FIRST_LEVEL_TRIGGER),
    },
    "eager": {"disable_auto_compactions": "false", "level0_file_num_compaction_trigger": "1"},
    "off": {"disable_auto_compactions": "true"},
}
_TRACKING = """\
[Version]
  rocksdb_version=9.8.4
  options_file_version=1.1
[DBOptions]
  track_and_verify_wals_in_manifest=true
[CFOptions "default"]
[TableOptions/BlockBasedTable "default"]
"""


@dataclass(frozen=True, slots=True)
class Shape:
    """How the rows of one column family are written and read.

    `looked_up`: single rows are looked up by their key. `queue_shaped`: rows are deleted from the front while scans
    start at the front.
    """

    write_buffer_bytes: int = 4 * MIB
    block_bytes: int = 8 * 1024
    looked_up: bool = False
    queue_shaped: bool = False


def database_options(cache: Cache) -> Options:
    options = family_options(Shape(), cache, _tracking_options())
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    options.set_max_background_jobs(2)
    options.set_max_total_wal_size(WAL_BYTES)
    options.set_db_write_buffer_size(MEMTABLE_BYTES)
    # The census has cut off what a crash left unfinished, so every other defect in a log is damage.
    options.set_wal_recovery_mode(DBRecoveryMode.absolute_consistency())
    options.set_paranoid_checks(True)
    options.set_keep_log_file_num(4)
    options.set_max_log_file_size(8 * MIB)
    options.set_stats_dump_period_sec(0)
    options.set_max_open_files(512)
    return options


def _tracking_options() -> Options:
    """With these options RocksDB records in its manifest which closed logs must exist. rocksdict can set this
    only by reading a file.
    """
    with tempfile.TemporaryDirectory(prefix="fairlead-") as folder:
        Path(folder, "OPTIONS-000001").write_text(_TRACKING)
        Path(folder, "rocksdict-config.json").write_text('{"raw_mode":true,"prefix_extractors":{}}')
        options, _ = Options.load_latest(folder)
    return options


def family_options(shape: Shape, cache: Cache, options: Options) -> Options:
    """Set `options` for a column family, and return them."""
    options.set_write_buffer_size(shape.write_buffer_bytes)
    options.set_max_write_buffer_number(3)
    options.set_target_file_size_base(_TABLE_BYTES)
    options.set_max_bytes_for_level_base(_FIRST_LEVEL_BYTES)
    options.set_max_compaction_bytes(_FIRST_LEVEL_BYTES)
    options.set_level_zero_file_num_compaction_trigger(_FIRST_LEVEL_TRIGGER)
    # One thread writes at a time, so there is nothing to gain from the slower concurrent skip list.
    options.set_allow_concurrent_memtable_write(False)
    options.set_compression_per_level(
        [DBCompressionType.none(), DBCompressionType.none(), DBCompressionType.lz4()]
    )
    table = BlockBasedOptions()
    table.set_block_cache(cache)
    table.set_block_size(shape.block_bytes)
    table.set_cache_index_and_filter_blocks(True)
    table.set_pin_l0_filter_and_index_blocks_in_cache(True)
    table.set_format_version(5)
    if shape.looked_up:
        table.set_bloom_filter(10, False)
    if shape.queue_shaped:
        options.add_compact_on_deletion_collector_factory(4096, 2048, 0.5)
    options.set_block_based_table_factory(table)
    return options
