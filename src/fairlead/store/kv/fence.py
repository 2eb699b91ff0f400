"""The owner of a store and its last commit: the rule that all backends share.

Between processes on RocksDB the lock of the directory decides first (`store/rocks/marks.py`). The fence
catches a second owner of the same data, as with `DictionaryData` or a remote backend.
"""

from __future__ import annotations

import struct

import msgspec

from fairlead.errors import BrokenInvariant, StaleEpoch

_PACKED = struct.Struct(">BQQQ")
_pack = _PACKED.pack
_VERSION = 1


class Fence(msgspec.Struct, frozen=True):
    """`commit_epoch`: the epoch in which commit number `commit` was stored."""

    epoch: int = 0
    commit: int = 0
    commit_epoch: int = 0

    def acquired(self) -> Fence:
        return Fence(self.epoch + 1, self.commit, self.commit_epoch)

    def committed(self, commit: int) -> Fence:
        return Fence(self.epoch, commit, self.epoch)

    def is_repeat(self, epoch: int, commit: int) -> bool:
        """Whether this commit is stored already. Raises `StaleEpoch`, and `BrokenInvariant` for a number that
        must not come now.
        """
        if epoch != self.epoch:
            raise StaleEpoch(epoch, self.epoch)
        if self.commit_epoch != epoch or commit > self.commit:
            return False
        if commit < self.commit:
            raise BrokenInvariant(
                f"expected commit {self.commit} again or a later one in epoch {epoch}, got {commit}"
            )
        return True

    def packed(self) -> bytes:
        return _pack(_VERSION, self.epoch, self.commit, self.commit_epoch)


def read_fence(packed: bytes) -> Fence:
    """Raises `ValueError` if the bytes are no fence."""
    if len(packed) != _PACKED.size or packed[0] != _VERSION:
        raise ValueError(f"expected {_PACKED.size} bytes of version {_VERSION}, got {packed!r}")
    return Fence(*_PACKED.unpack(packed)[1:])
