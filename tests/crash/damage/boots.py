"""Let a directory look as if the machine had restarted since: its marks then carry the number of another
start.
"""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

from fairlead.store.rocks import marks

ANOTHER_BOOT = b"an earlier start"
NO_BOOT = bytes(16)
SLOTS, SLOT_BYTES = 3, 512
_NUMBERS = struct.Struct("<QQQQ")


def set_boot(directory: Path, boot: bytes) -> None:
    file = directory / marks.MARKS_FILE
    content = bytearray(file.read_bytes())
    for start in range(0, SLOTS * SLOT_BYTES, SLOT_BYTES):
        raw = bytes(content[start : start + _NUMBERS.size]) + boot
        content[start : start + len(raw) + 4] = raw + zlib.crc32(raw).to_bytes(4, "little")
    file.write_bytes(content)
