"""Read the arguments of a command one after the other."""

from __future__ import annotations

from collections.abc import Sequence

from fairlead.errors import InvalidRequest

_MAX_DIGITS = 18


class Words:
    """Every method raises `InvalidRequest`. Where words are missing, the error shows `usage`."""

    def __init__(self, words: Sequence[bytes], usage: str) -> None:
        self._words = words
        self._usage = usage
        self._at = 0

    @property
    def is_over(self) -> bool:
        return self._at == len(self._words)

    def take(self) -> bytes:
        if self.is_over:
            raise InvalidRequest("command", self._usage, f"{len(self._words)} words")
        self._at += 1
        return self._words[self._at - 1]

    def text(self, field: str) -> str:
        word = self.take()
        try:
            return word.decode()
        except UnicodeDecodeError:
            raise InvalidRequest(field, "text in UTF-8", word[:80]) from None

    def number(self, field: str) -> int:
        """A whole number, 0 or greater."""
        word = self.take()
        if not word.isdigit() or len(word) > _MAX_DIGITS:
            raise InvalidRequest(field, "a whole number, 0 or greater", _shown(word))
        return int(word)

    def option(self, *names: bytes) -> bytes:
        """Take the next word if it is one of these names, and return it in upper case. Returns an empty value
        otherwise.
        """
        if self.is_over:
            return b""
        word = self._words[self._at].upper()
        if word not in names:
            return b""
        self._at += 1
        return word

    def must_be(self, name: bytes) -> None:
        if self.option(name) != name:
            got = "the end of the command" if self.is_over else _shown(self._words[self._at])
            raise InvalidRequest("command", self._usage, got)

    def rest(self) -> Sequence[bytes]:
        """All remaining words, at least one."""
        first = self.take()
        words = [first, *self._words[self._at :]]
        self._at = len(self._words)
        return words

    def end(self) -> None:
        if not self.is_over:
            raise InvalidRequest("command", self._usage, _shown(self._words[self._at]))


def _shown(word: bytes) -> str:
    return word[:80].decode(errors="replace")
