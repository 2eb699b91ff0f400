"""The damages of the sweep. A case is a text, so that a failed one can be replayed: `000010.log:flip:4312`."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

BLOCK_BYTES, HEADER_BYTES = 32 * 1024, 7
#: Opening needs none of these: every damage gives exact data.
UNNEEDED = ("IDENTITY", "LOCK", "OPTIONS", "rocksdict")
#: Random bits per file, beside those of its record headers.
RANDOM_BITS = {"log": 150, "sst": 120, "MANIFEST": 300, "FAIRLEAD_SYNCED": 100, "CURRENT": 0, "OPTIONS": 20}
#: Index, properties, metaindex and footer of a table, which RocksDB reads when it opens it.
TABLE_END_BYTES = 1200
ODD_TYPES = (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 130, 131, 200)


@dataclass(frozen=True, slots=True)
class Case:
    """`how` groups cases in the summary; `change` and `arguments` say what happens to the file."""

    file: str
    how: str
    change: str
    arguments: tuple[int | str, ...] = ()

    def __str__(self) -> str:
        return ":".join(map(str, (self.file, self.change, *self.arguments)))

    @property
    def kind(self) -> str:
        return kind_of(self.file)

    def carry_out(self, directory: Path, older: Path) -> bool:
        """Whether the file is another one now."""
        file = directory / self.file
        if self.change == "delete":
            file.unlink()
            return True
        before = file.read_bytes()
        content = bytearray(before)
        match self.change, self.arguments:
            case "flip", (int(bit),):
                content[bit // 8] ^= 1 << bit % 8
            case "cut", (int(at),):
                del content[at:]
            case "zero", (int(at), int(count)):
                content[at : at + count] = bytes(len(content[at : at + count]))
            case "garble", (int(at), int(count), int(seed)):
                content[at : at + count] = random.Random(seed).randbytes(len(content[at : at + count]))
            case "drop", (int(start), int(end)):
                del content[start:end]
            case "repeat", (int(start), int(end)):
                content[end:end] = content[start:end]
            case "zeros", (int(count),):
                content += bytes(count)
            case "garbage", (int(count), int(seed)):
                content += random.Random(seed).randbytes(count)
            case "record", (int(kind),):
                content += b"\x12\x34\x56\x78" + struct.pack("<HB", 20, kind) + bytes(20)
            case "copy", (str(other),):
                content[:] = (directory / other).read_bytes()
            case "older", ():
                content[:] = (older / self.file).read_bytes()
            case _:
                raise ValueError(f"expected a change such as flip:54, got {self}")
        file.write_bytes(content)
        return before != content


def parse_case(text: str) -> Case:
    file, change, *arguments = text.split(":")
    return Case(file, "replayed", change, tuple(int(one) if one.isdigit() else one for one in arguments))


def kind_of(name: str) -> str:
    if name.endswith((".log", ".sst")):
        return name.rpartition(".")[2]
    return name.split("-")[0]


def all_cases(directory: Path, older: Path, seed: int) -> list[Case]:
    chance = random.Random(seed)
    names = sorted(file.name for file in directory.iterdir() if not file.name.startswith("LOG"))
    return [case for name in names for case in _cases_of(directory / name, older, names, chance)]


def sample(cases: list[Case], count: int, seed: int) -> list[Case]:
    """Each kind of file in each kind of damage gets its share, so that the many header bits do not crowd out
    the others.
    """
    chance = random.Random(seed)
    groups: dict[tuple[str, str], list[Case]] = {}
    for case in cases:
        groups.setdefault((case.kind, "" if case.kind in UNNEEDED else case.how), []).append(case)
    for group in groups.values():
        chance.shuffle(group)
    chosen: list[Case] = []
    while len(chosen) < min(count, len(cases)):
        chosen += [group.pop() for group in groups.values() if group]
    return chosen[:count]


def record_spans(data: bytes) -> list[tuple[int, int]]:
    """Start and end of every record, fragments included, of a sound log or manifest."""
    spans, at = [], 0
    while at + HEADER_BYTES <= len(data):
        left = BLOCK_BYTES - at % BLOCK_BYTES
        if left < HEADER_BYTES:
            at += left
            continue
        end = at + HEADER_BYTES + struct.unpack_from("<H", data, at + 4)[0]
        spans.append((at, end))
        at = end
    return spans


def _cases_of(file: Path, older: Path, names: list[str], chance: random.Random) -> Iterator[Case]:
    name, size = file.name, file.stat().st_size
    if kind_of(name) in ("log", "MANIFEST"):
        yield from _record_cases(file, chance)
    if name == "CURRENT":
        yield from (Case(name, "any bit", "flip", (bit,)) for bit in range(size * 8))
    if size:
        for _ in range(RANDOM_BITS.get(kind_of(name), 60)):
            yield Case(name, "any bit", "flip", (chance.randrange(size * 8),))
        for _ in range(10):
            yield Case(name, "cut anywhere", "cut", (chance.randrange(size),))
            yield Case(
                name, "zeroed range", "zero", (chance.randrange(size), chance.choice((1, 16, 512, 4096)))
            )
    yield Case(name, "deleted", "delete")
    yield Case(name, "emptied", "cut", (0,))
    for count in (1, 3, 7, 20, 100, 512, 4096, 40_000):
        yield Case(name, "garbage behind", "garbage", (count, chance.randrange(1 << 30)))
    for count in (1, 6, 7, 4096, 2 * BLOCK_BYTES):
        yield Case(name, "zeros behind", "zeros", (count,))
    if (older / name).exists():
        yield Case(name, "older copy", "older")
    if kind_of(name) == "sst":
        for _ in range(RANDOM_BITS["sst"]):
            at = chance.randrange(max(0, size - TABLE_END_BYTES), size)
            yield Case(name, "bit of its end", "flip", (at * 8 + chance.randrange(8),))
    if kind_of(name) in ("log", "sst"):
        yield from _siblings(file, names)


def _siblings(file: Path, names: list[str]) -> Iterator[Case]:
    for other in names:
        if other != file.name and kind_of(other) == kind_of(file.name):
            same_size = file.with_name(other).stat().st_size == file.stat().st_size
            how = "sibling of its size" if same_size else "sibling"
            yield Case(file.name, how, "copy", (other,))


def _record_cases(file: Path, chance: random.Random) -> Iterator[Case]:
    name = file.name
    for start, end in record_spans(file.read_bytes()):
        for bit in range(HEADER_BYTES * 8):
            yield Case(name, _HEADER_FIELDS[bit // 8], "flip", (start * 8 + bit,))
        yield Case(name, "cut at record", "cut", (start,))
        yield Case(name, "cut in record", "cut", (chance.randrange(start + 1, end),))
        yield Case(name, "zeroed header", "zero", (start, HEADER_BYTES))
        yield Case(name, "zeroed record", "zero", (start, end - start))
        yield Case(name, "record dropped", "drop", (start, end))
        yield Case(name, "record repeated", "repeat", (start, end))
    yield from (Case(name, "record behind", "record", (kind,)) for kind in ODD_TYPES)


_HEADER_FIELDS = ("header: checksum",) * 4 + ("header: length",) * 2 + ("header: type",)
