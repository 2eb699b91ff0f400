"""Callers' regular expressions, matched by RE2 in time proportional to the text.

`re` backtracks: an expression such as `(a+)+$` takes years over forty characters, and `re` holds the
interpreter lock (GIL) meanwhile. RE2 compiles the expression to a program and follows all its branches at
once, so a search costs at most (instructions) x (bytes of text). Its Python binding releases the GIL during a
search. Compiling holds the GIL; `MAX_PATTERN_BYTES` and RE2's own memory bound keep it short.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlead.model.limits import MAX_PATTERN_BYTES, MAX_PATTERN_INSTRUCTIONS

if TYPE_CHECKING:
    import re2

#: RE2's memory bound for the program and its cache of states. When the cache is full, RE2 searches without
#: it, more slowly.
_MAX_MEMORY_BYTES = 1024 * 1024
_OPERATORS = (
    "look-around, back references, conditions, atomic groups and possessive repeats do not exist in RE2"
)


class PatternRefused(ValueError):
    """The text is no regular expression in RE2's syntax, or the search would be too expensive."""


class ErrorPattern:
    def __init__(self, expression: str) -> None:
        # Imported on first use: clients never need this shared library.
        import re2

        try:
            encoded = expression.encode()
        except UnicodeEncodeError:
            raise PatternRefused("it has characters that are not Unicode text") from None
        if len(encoded) > MAX_PATTERN_BYTES:
            raise PatternRefused(f"it has {len(encoded)} bytes, the limit is {MAX_PATTERN_BYTES}")
        try:
            self._compiled = re2.compile(encoded, _options())
        except re2.error as wrong:
            raise PatternRefused(_in_plain_terms(wrong)) from None
        if self.instructions > MAX_PATTERN_INSTRUCTIONS:
            raise PatternRefused(_too_large(f"{self.instructions} RE2 instructions"))

    @property
    def instructions(self) -> int:
        """The size of the compiled program. A search costs at most this number times the bytes of the text."""
        size: int = self._compiled.programsize
        return size

    def search(self, text: str) -> bool:
        return self._compiled.search(text.encode("utf-8", "replace")) is not None


def _options() -> re2.Options:
    import re2

    options = re2.Options()
    options.max_mem = _MAX_MEMORY_BYTES
    options.never_capture = True
    # Otherwise RE2 writes each refused expression to stderr.
    options.log_errors = False
    return options


def _in_plain_terms(wrong: Exception) -> str:
    """The reason for the refusal. RE2 returns its message as bytes: the reason, a colon, and the part of the
    expression.
    """
    said = wrong.args[0] if wrong.args else ""
    text = said.decode("utf-8", "replace") if isinstance(said, bytes) else str(said)
    if text.startswith("pattern too large"):
        return _too_large("more memory than RE2 may use")
    if text.startswith(("invalid perl operator", "invalid escape sequence", "bad repetition operator")):
        return f"{text}; {_OPERATORS}"
    return text


def _too_large(needs: str) -> str:
    return f"it needs {needs}, the limit is {MAX_PATTERN_INSTRUCTIONS} instructions; use smaller counted repeats and fewer Unicode classes"
