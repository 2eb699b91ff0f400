"""Regular expressions that take time in proportion to the text, whatever the expression.

`re` tries one way to match after the other, so that an expression like `(a+)+$` can take years over forty characters; and
it holds the interpreter all the while, so neither a timeout nor another thread helps. Here all ways are followed at once,
one character at a time, and what was worked out for one text serves the next.

Python's own parser reads the expression, and Python's own `re` says which characters each of its places takes. What can
only be had by going back is refused: look-around, back references, conditions, atomic and possessive groups.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from re import _compiler, _parser  # type: ignore[attr-defined] # there is no public parser; these are the same from 3.11 on
from typing import Any, NamedTuple

#: Places of an expression, its counted repeats written out: bounds what one character of text can cost.
MOST_PLACES = 500
#: Reading an expression takes time too.
MOST_CHARACTERS = 10_000
#: Steps that are remembered; past it they are worked out anew.
_MOST_KNOWN = 20_000

_ONE_CHARACTER = ("LITERAL", "NOT_LITERAL", "ANY", "IN")
_ALPHABETS = re.ASCII | re.UNICODE | re.LOCALE
_FINAL_NEWLINE = "\n\n"
_END = ""


class Refused(ValueError):
    """An expression that is none, or one that cannot be searched for in one pass."""


class Sort(NamedTuple):
    """What `^`, `$` and `\\b` need to know about a character."""

    newline: bool
    word: bool
    ascii_word: bool


class State:
    """How far every way to match has come before some character, and what follows from each that may come."""

    __slots__ = ("before", "next", "places")

    def __init__(self, places: frozenset[int], before: Sort | None) -> None:
        self.places = places
        self.before = before
        self.next: dict[str, State] = {}


_FOUND = State(frozenset(), None)


class Pattern:
    def __init__(self, expression: str) -> None:
        #: Each place either takes a character, is a condition on where it stands, or is a fork; its number is its order.
        self._takes: dict[int, re.Pattern[str]] = {}
        self._conditions: dict[int, tuple[str, int]] = {}
        self._forks: dict[int, tuple[int, ...]] = {}
        self._size = 0
        if len(expression) > MOST_CHARACTERS:
            raise Refused(f"more than {MOST_CHARACTERS} characters")
        try:
            tree = _parser.parse(expression)
            self._add(tree, tree.state.flags)
        except (re.error, OverflowError) as wrong:
            raise Refused(str(wrong)) from None
        except RecursionError:
            raise Refused("nested too deeply") from None
        self._start = State(frozenset([0]), None)
        self._known: dict[tuple[frozenset[int], Sort], State] = {}
        self._steps = 0

    def search(self, text: str) -> bool:
        state = self._start
        for character in text[:-1]:
            state = state.next.get(character) or self._step(state, character)
            if state is _FOUND:
                return True
        if text:
            last = _FINAL_NEWLINE if text[-1] == "\n" else text[-1]
            state = state.next.get(last) or self._step(state, last)
        return state is _FOUND or (state.next.get(_END) or self._step(state, _END)) is _FOUND

    # Reading the expression

    def _add(self, items: Iterable[tuple[Any, Any]], flags: int) -> None:
        for operator, argument in items:
            kind = str(operator)
            if kind in _ONE_CHARACTER:
                self._takes[self._place()] = _one_character(operator, argument, flags)
            elif kind == "AT":
                self._conditions[self._place()] = str(argument), flags
            elif kind == "SUBPATTERN":
                _, more, less, body = argument
                # What counts as a letter is said by one of these alone: an inner one takes the place of the outer.
                kept = flags & ~_ALPHABETS if more & _ALPHABETS else flags
                self._add(body, (kept | more) & ~less)
            elif kind == "BRANCH":
                self._add_branches(argument[1], flags)
            elif kind in ("MAX_REPEAT", "MIN_REPEAT"):
                least, most, body = argument
                self._add_repeat(least, most, body, flags)
            else:
                raise Refused(f"{kind.lower().replace('_', ' ')} cannot be searched for in one pass")

    def _add_branches(self, branches: list[Any], flags: int) -> None:
        fork, starts, ends = self._place(), [], []
        for branch in branches:
            starts.append(self._size)
            self._add(branch, flags)
            ends.append(self._place())
        self._forks[fork] = tuple(starts)
        self._forks.update((end, (self._size,)) for end in ends)

    def _add_repeat(self, least: int, most: Any, body: Any, flags: int) -> None:
        """Whether it takes as much or as little as it can makes no difference to whether there is a match."""
        for _ in range(least):
            before = self._size
            self._add(body, flags)
            if self._size == before:
                return
        if most is _parser.MAXREPEAT:
            fork = self._place()
            self._add(body, flags)
            self._forks[self._place()] = (fork,)
            self._forks[fork] = (fork + 1, self._size)
            return
        forks = []
        for _ in range(most - least):
            forks.append(self._place())
            self._add(body, flags)
        self._forks.update((fork, (fork + 1, self._size)) for fork in forks)

    def _place(self) -> int:
        if self._size >= MOST_PLACES:
            raise Refused(f"more than {MOST_PLACES} places, its counted repeats written out")
        self._size += 1
        return self._size - 1

    # Following the text

    def _step(self, state: State, coming: str) -> State:
        character = coming[:1]
        after = _sort_of(character) if character else None
        reached = self._reach(state, after, at_end=coming in (_END, _FINAL_NEWLINE))
        if self._size in reached:
            found = _FOUND
        elif after is None:
            found = state
        else:
            # A match may begin anywhere, so its first place is always among them.
            places = frozenset([0, *(place + 1 for place in reached if place in self._takes and self._takes[place].match(character))])
            found = self._known.setdefault((places, after), State(places, after))
        self._remember(state, coming, found)
        return found

    def _reach(self, state: State, after: Sort | None, *, at_end: bool) -> set[int]:
        """All places that can be come to before the next character."""
        reached: set[int] = set()
        waiting = list(state.places)
        while waiting:
            place = waiting.pop()
            if place in reached:
                continue
            reached.add(place)
            if place in self._forks:
                waiting.extend(self._forks[place])
            elif place in self._conditions and _holds(*self._conditions[place], state.before, after, at_end):
                waiting.append(place + 1)
        return reached

    def _remember(self, state: State, coming: str, found: State) -> None:
        self._steps += 1
        if self._steps > _MOST_KNOWN:
            self._steps, self._known, self._start = 0, {}, State(self._start.places, None)
        state.next[coming] = found


def _one_character(operator: Any, argument: Any, flags: int) -> re.Pattern[str]:
    state = _parser.State()
    state.flags = flags
    compiled: re.Pattern[str] = _compiler.compile(_parser.SubPattern(state, [(operator, argument)]), flags)
    return compiled


def _holds(condition: str, flags: int, before: Sort | None, after: Sort | None, at_end: bool) -> bool:
    """`at_end`: nothing more comes, or a newline and nothing more."""
    lines = bool(flags & re.MULTILINE)
    if condition == "AT_BEGINNING":
        return before is None or (lines and before.newline)
    if condition == "AT_BEGINNING_STRING":
        return before is None
    if condition == "AT_END":
        return at_end or (lines and after is not None and after.newline)
    if condition == "AT_END_STRING":
        return after is None
    at = 2 if flags & re.ASCII else 1
    boundary = (before is not None and before[at]) != (after is not None and after[at])
    if condition == "AT_BOUNDARY":
        return boundary
    return not boundary and not (before is None and after is None)


_WORD = re.compile(r"\w")


def _sort_of(character: str) -> Sort:
    word = _WORD.match(character) is not None
    return Sort(character == "\n", word, word and character.isascii())
