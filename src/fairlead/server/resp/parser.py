"""Parse commands of the Redis protocol from the bytes of a connection.

This parser is used instead of hiredis, because hiredis is made for replies: it accepts nested arrays, and a
header of a few bytes that announces a billion elements keeps its process busy for seconds. A command is a
flat array of bulk strings, or one line of words. This parser is as fast as hiredis, because it needs only two
regular expressions and a slice for an argument.
"""

from __future__ import annotations

import re

from fairlead.errors import FairleadError, InvalidRequest, LimitReached

#: The limits of a command, as in Redis. They are lower until the connection has authenticated.
MAX_ARGUMENTS = 1024 * 1024
MAX_ARGUMENTS_OF_STRANGERS = 16
MAX_BYTES_OF_STRANGERS = 16 * 1024
MAX_LINE_BYTES = 64 * 1024
#: A longer argument that arrives in several pieces is kept in these pieces.
LARGE_BYTES = 512 * 1024

_array = re.compile(rb"\*(-?\d{1,10})\r\n").match
_bulk = re.compile(rb"\$(\d{1,10})\r\n").match
_word = re.compile(rb"""\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^\s"']+))(?=\s|$)""").match
_escape = re.compile(rb"\\(x[0-9a-fA-F]{2}|.)", re.DOTALL)
_ESCAPES = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"b": b"\b", b"a": b"\a"}
#: More bytes than any header has.
_HEADER_BYTES = 16

Command = list[bytes]


class LargeWord(bytes):
    """An argument in the pieces in which it arrived. As bytes it has only the first byte of the argument."""

    pieces: list[bytes]
    size: int


class LargeCommand(Command):
    """A command with a `LargeWord`. A thread of the pool must call `join_words`, because joining the pieces
    takes milliseconds.
    """


def join_words(words: Command) -> Command:
    # With large pieces, `join` releases the interpreter lock.
    return [b"".join(word.pieces) if type(word) is LargeWord else word for word in words]


def size_of(words: Command) -> int:
    return sum([word.size if type(word) is LargeWord else len(word) for word in words])


class CommandReader:
    """After `error` is set, nothing more is parsed. Commands that were complete before the error are still
    valid.
    """

    def __init__(self, max_bytes: int, max_arguments: int) -> None:
        self.max_bytes = max_bytes
        self.max_arguments = max_arguments
        self.error: FairleadError | None = None
        #: The arguments of the incomplete command that have arrived.
        self._command: Command = []
        self._left = 0
        self._taken = 0
        #: Bytes that are not parsed yet, and the number of bytes needed to continue.
        self._pieces: list[bytes] = []
        self._size = 0
        self._needed = 0
        #: The pieces of the large argument under way, and the number of bytes that it lacks.
        self._large: list[bytes] = []
        self._lacks = 0

    @property
    def buffered(self) -> int:
        """The number of bytes of the incomplete command."""
        return self._taken + self._size

    @property
    def is_in_a_command(self) -> bool:
        return bool(self._left or self._pieces)

    def feed(self, data: bytes) -> list[Command]:
        """Return the commands that are complete now."""
        if self.error is not None:
            return []
        if self._lacks:
            piece, data = data[: self._lacks], data[self._lacks :]
            self._large.append(piece)
            self._lacks -= len(piece)
            self._taken += len(piece)
            if not data:
                return []
        if self._pieces:
            self._pieces.append(data)
            self._size += len(data)
            if self._size < self._needed:
                return []
            data = b"".join(self._pieces)
        commands: list[Command] = []
        try:
            at = self._read(data, commands)
        except FairleadError as wrong:
            self.error = wrong
            at = len(data)
        self._pieces = [data[at:]] if at < len(data) else []
        self._size = len(data) - at
        return commands

    def _read(self, data: bytes, commands: list[Command]) -> int:
        """Return the position of the first byte that is not parsed yet."""
        at, end = 0, len(data)
        while at < end:
            if self._large:
                if end - at < 2:
                    return self._wait(at, 2)
                self._end_large()
                at = self._end_argument(data, at, commands)
                continue
            if not self._left:
                header = _array(data, at)
                if header is None:
                    if data[at] == 42:  # *
                        return self._wait_for_header(data, at, "*")
                    line_end = data.find(b"\n", at)
                    self._check_line((end if line_end < 0 else line_end) - at)
                    if line_end < 0:
                        return self._wait(at, end - at + 1)
                    if words := _words_of(data[at:line_end]):
                        commands.append(words)
                    at = line_end + 1
                    continue
                at = header.end()
                self._left = int(header[1])
                if self._left > self.max_arguments:
                    raise InvalidRequest("command", f"at most {self.max_arguments} arguments", self._left)
                self._left = max(0, self._left)
                continue
            bulk = _bulk(data, at)
            if bulk is None:
                if data[at] != 36:  # $
                    raise InvalidRequest("command", "an array of bulk strings", data[at : at + 1])
                return self._wait_for_header(data, at, "$")
            start, length = bulk.end(), int(bulk[1])
            if self._taken + length > self.max_bytes:
                raise LimitReached("bytes in one request", self.max_bytes)
            stop = start + length
            if stop + 2 > end:
                if length <= LARGE_BYTES:
                    return self._wait(at, stop + 2 - at)
                self._begin_large(data[start:stop], length)
                at = min(stop, end)
                continue
            self._command.append(data[start:stop])
            self._taken += length
            at = self._end_argument(data, stop, commands)
        return at

    def _end_argument(self, data: bytes, at: int, commands: list[Command]) -> int:
        """Return the position after the argument."""
        if data[at : at + 2] != b"\r\n":
            raise InvalidRequest("command", "a line end behind a bulk string", data[at : at + 2])
        self._left -= 1
        if not self._left:
            commands.append(self._command)
            self._command, self._taken = [], 0
        return at + 2

    def _begin_large(self, piece: bytes, length: int) -> None:
        self._large = [piece]
        self._taken += len(piece)
        self._lacks = length - len(piece)

    def _end_large(self) -> None:
        word = LargeWord(next(filter(None, self._large))[:1])
        word.pieces, self._large = self._large, []
        word.size = sum(map(len, word.pieces))
        self._command = LargeCommand([*self._command, word])

    def _check_line(self, size: int) -> None:
        most = min(MAX_LINE_BYTES, self.max_bytes)
        if size > most:
            raise InvalidRequest("command", f"a line of at most {most} bytes", "a longer one")

    def _wait(self, at: int, needed: int) -> int:
        self._needed = needed
        return at

    def _wait_for_header(self, data: bytes, at: int, kind: str) -> int:
        """Wait for the rest of a header. Raises if the header is wrong and not merely incomplete."""
        header = data[at : at + _HEADER_BYTES]
        if b"\n" in header or len(header) == _HEADER_BYTES:
            raise InvalidRequest("command", f"a length behind {kind}", header)
        return self._wait(at, len(header) + 1)


def _words_of(line: bytes) -> Command:
    """The words of a command typed by a person. Quotes have the same meaning as in Redis."""
    words: Command = []
    at, line = 0, line.rstrip()
    while at < len(line):
        word = _word(line, at)
        if word is None:
            raise InvalidRequest("command", "words with balanced quotes", line[:80])
        quoted, single, bare = word.groups()
        if quoted is not None:
            words.append(_escape.sub(_unescaped, quoted))
        elif single is not None:
            words.append(single.replace(b"\\'", b"'"))
        else:
            words.append(bare)
        at = word.end()
    return words


def _unescaped(found: re.Match[bytes]) -> bytes:
    code = found[1]
    return bytes.fromhex(code[1:].decode()) if len(code) == 3 else _ESCAPES.get(code, code)
