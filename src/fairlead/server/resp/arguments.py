"""Turn the plain words of a command into a request, for people and for programs in any language.

The required fields come first, in their order. Pairs of a name and a value follow, in any order:

    FL.ENQUEUE orders payload KEY acme HEADER tenant acme WEIGHT 3

The name of a list is repeated for each item (`ID x ID y`), the name of a map for each entry (`HEADER n v`). A
field with an inner structure is JSON. Messages and settlements have a short form: a word that begins each
item, then its required fields, then pairs:

    FL.SETTLE COMPLETE <id> <lease> FAIL <id> <lease> ERROR "no such order" RETRY_IN 30s
    FL.ENQUEUE_MANY orders MESSAGE one KEY acme MESSAGE two
    FL.ENQUEUE_MANY orders MESSAGES '[{"payload": "one", "fairness_key": "acme"}]'

All this is derived from the table of fields. The engine checks the values and refuses wrong ones with its own
messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple, TypeVar

import msgspec

from fairlead.errors import InvalidRequest
from fairlead.fields import Field, fields_of
from fairlead.model.message import NewMessage
from fairlead.model.settle import Complete, DeliveryRef, Extend, Fail, Release, Start
from fairlead.request import Request
from fairlead.wire.typed import from_text, is_json, is_text_list

R = TypeVar("R", bound=Request[Any])

#: Short names of fields. A field of the verb with the same name has precedence.
_SHORT = {"KEY": "fairness_key", "DEDUP": "dedup_key", "THROTTLE": "throttle_keys"}
#: Fields whose items have a short form, and for each the words that begin an item with their records.
_ITEMS: dict[str, dict[str, type]] = {
    "messages": {"MESSAGE": NewMessage},
    "items": {kind.__name__.upper(): kind for kind in (Complete, Fail, Release, Extend, Start)},
}
_BOOLEANS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


class _Grammar(NamedTuple):
    """How the fields of a record are written as words."""

    required: list[Field]
    named: dict[str, Field]
    #: The field whose items have a short form, and the records of the words that begin an item.
    items: str
    records: dict[str, type]


def read_words(kind: type[R], words: Sequence[bytes]) -> R:
    """Raises `InvalidRequest`, which names the field that is wrong."""
    grammar = _grammar_of(kind)
    values, at = _read_record(grammar, words, 0, f"FL.{kind.verb_name.upper()}")
    while at < len(words):
        name = _text(words[at], "command").upper()
        record = grammar.records.get(name)
        if record is not None:
            item, at = _read_record(_grammar_of(record), words, at + 1, name)
            values.setdefault(grammar.items, []).append(record(**item))
            continue
        is_read, at = _read_pair(grammar, name, words, at, values)
        if not is_read:
            raise InvalidRequest("command", "the name of a field: " + _names(grammar), name)
    if grammar.items:
        values.setdefault(grammar.items, [])
    try:
        return kind(**values)
    except TypeError as wrong:
        raise InvalidRequest("arguments", f"those of {kind.verb_name}", str(wrong)) from None


def usage_of(kind: type[Request[Any]]) -> str:
    """One line: `FL.ENQUEUE queue payload [HEADER name value ...] [FAIRNESS_KEY text]`."""
    grammar = _grammar_of(kind)
    parts = [f"FL.{kind.verb_name.upper()}", *[field.name for field in grammar.required]]
    for word, record in grammar.records.items():
        parts.append(f"[{word} {' '.join(_parts_of(record))} ...]")
    for field in fields_of(kind):
        if field not in grammar.required and field.name != grammar.items:
            parts.append(_usage_of_option(field))
    return " ".join(parts)


def _usage_of_option(field: Field) -> str:
    name = field.name.upper()
    if _is_map(field):
        return f"[{_singular(name)} name value ...]"
    if is_text_list(field):
        return f"[{_singular(name)} text ...]"
    return f"[{name} {'json' if is_json(field) else 'value'}]"


def _parts_of(record: type) -> list[str]:
    grammar = _grammar_of(record)
    named = [f"[{field.name.upper()} value]" for field in fields_of(record) if field not in grammar.required]
    required = ["id lease" if field.name == "delivery" else field.name for field in grammar.required]
    return [*required, *named]


def _read_record(grammar: _Grammar, words: Sequence[bytes], at: int, what: str) -> tuple[dict[str, Any], int]:
    """Read the required fields and the pairs after them. Also returns the position of the first word that
    does not belong to the record.
    """
    values: dict[str, Any] = {}
    for field in grammar.required:
        count = 2 if field.name == "delivery" else 1
        if at + count > len(words):
            must = " ".join(one.name for one in grammar.required)
            raise InvalidRequest("command", f"{what} {must}", f"{len(words)} words without {field.name}")
        if field.name == "delivery":
            values[field.name] = DeliveryRef(_text(words[at], "id"), _text(words[at + 1], "lease"))
        else:
            values[field.name] = _first_value(field, words[at])
        at += count
    while at < len(words):
        name = _text(words[at], "command").upper()
        if name in grammar.records:
            break
        is_read, at_next = _read_pair(grammar, name, words, at, values)
        if not is_read:
            break
        at = at_next
    return values, at


def _read_pair(
    grammar: _Grammar, name: str, words: Sequence[bytes], at: int, values: dict[str, Any]
) -> tuple[bool, int]:
    """Returns whether the word is the name of a field, and the position of the next word."""
    field = grammar.named.get(name)
    if field is None and "OPTION" in grammar.named:
        # The options of a queue may be given by their own names.
        return True, _read_entry(grammar.named["OPTION"], words, at, values)
    if field is None:
        return False, at
    if at + 1 >= len(words):
        raise InvalidRequest(field.name, f"a value behind {name}", "the end of the command")
    if _is_map(field) and name != field.name.upper():
        return True, _read_entry(field, words, at + 1, values)
    word = words[at + 1]
    if is_text_list(field):
        _append(field, word, values)
    elif field.name in values:
        raise InvalidRequest(field.name, f"{name} once", "it twice")
    else:
        values[field.name] = _value(field, word)
    return True, at + 2


def _read_entry(field: Field, words: Sequence[bytes], at: int, values: dict[str, Any]) -> int:
    """Read one entry of a map."""
    if at + 1 >= len(words):
        raise InvalidRequest(field.name, "a name and a value", "the end of the command")
    name, value = _text(words[at], field.name), _text(words[at + 1], field.name)
    entries = values.setdefault(field.name, {})
    if field.name == "options":
        name = name.lower()
    if name in entries:
        raise InvalidRequest(field.name, f"{name} once", "it twice")
    entries[name] = _json_or_text(value) if field.name == "options" else value
    return at + 2


def _append(field: Field, word: bytes, values: dict[str, Any]) -> None:
    found = _text(word, field.name)
    items = from_text(field, found) if found.startswith("[") else [found]
    before = values.get(field.name, [])
    values[field.name] = [*([before] if isinstance(before, str) else before), *items]


def _first_value(field: Field, word: bytes) -> Any:
    if not is_text_list(field):
        return _value(field, word)
    found = _text(word, field.name)
    if found.startswith("["):
        return from_text(field, found)
    return found if str in field.kinds else [found]


def _value(field: Field, word: bytes) -> Any:
    kinds = field.kinds
    if bytes in kinds:
        return word
    text = _text(word, field.name)
    if is_json(field):
        return from_text(field, text)
    if kinds == (bool,):
        return _BOOLEANS.get(text.lower(), text)
    if int in kinds and (str not in kinds or text.isdigit()):
        return _number(text)
    return text


def _number(text: str) -> Any:
    """Text that is not a number is left unchanged, and the engine refuses it."""
    digits = text.removeprefix("-")
    return int(text) if digits.isascii() and digits.isdigit() and len(digits) < 20 else text


def _json_or_text(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return text


def _text(word: bytes, field: str) -> str:
    try:
        return word.decode()
    except UnicodeDecodeError:
        raise InvalidRequest(field, "text in UTF-8", word[:80]) from None


@cache
def _grammar_of(record: type) -> _Grammar:
    fields = fields_of(record)
    items = next((field.name for field in fields if field.name in _ITEMS and field.required), "")
    named = {field.name.upper(): field for field in fields}
    by_name = {field.name: field for field in fields}
    for field in fields:
        if is_text_list(field) or _is_map(field):
            named.setdefault(_singular(field.name.upper()), field)
    for short, name in _SHORT.items():
        if name in by_name:
            named.setdefault(short, by_name[name])
    required = [field for field in fields if field.required and field.name != items]
    return _Grammar(required, named, items, _ITEMS.get(items, {}))


def _is_map(field: Field) -> bool:
    return field.name in ("headers", "options")


def _singular(name: str) -> str:
    return name.removesuffix("S")


def _names(grammar: _Grammar) -> str:
    return ", ".join([*grammar.records, *grammar.named]) or "nothing, it has no options"
