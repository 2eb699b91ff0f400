"""Journals of several lives made into one history: operations with a begin and an end, deliveries,
settlements.

An operation took effect, if at all, somewhere between its two lines. One without a second line was cut off by
the kill and may or may not have happened; its end is the kill.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from .journal import Line


@dataclass(slots=True)
class Operation:
    """`begin` and `end` are positions in the history, `began_ms` and `ended_ms` the victim's clock."""

    do: str
    life: int
    begin: int
    began_ms: int
    told: Line
    end: int = -1
    ended_ms: int = 0
    confirmed: bool = False
    refused: bool = False
    answer: Line = field(default_factory=dict)

    @property
    def may_have_happened(self) -> bool:
        return not self.refused

    @property
    def goes_on(self) -> bool:
        """Of a resumable operation: its steps may run on after its end, also in later lives."""
        return not self.confirmed or bool(self.told.get("goes_on"))


@dataclass(frozen=True, slots=True)
class Enqueue:
    """`delay_ms` counts from some moment of the operation. `id` is None while unconfirmed."""

    tag: str
    queue: str
    dedup_key: str | None
    delay_ms: int
    id: str | None
    operation: Operation


@dataclass(frozen=True, slots=True)
class Delivery:
    tag: str
    id: str
    queue: str
    lease: str
    consumer: str
    started: bool
    attempts: int
    until_ms: int
    source: str
    dead_since: int
    failures: int
    last_error: str
    operation: Operation
    #: Before the operation began, for a loop: the server may send a delivery ahead as started, and its lease may be
    #: over when the loop hands it out.
    granted_after: int

    @property
    def turn(self) -> int:
        """Lease tokens hold a boot number and a count, in that order, so they grow with every claim of a
        store.
        """
        return int(self.lease, 16)


@dataclass(frozen=True, slots=True)
class Settlement:
    """`outcome` is None when nobody knows. `lease` is None for the by-id forms."""

    kind: str
    id: str
    lease: str | None
    error: str
    duration_ms: int
    outcome: str | None
    due_ms: int
    until_ms: int
    operation: Operation


class History:
    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self.enqueues: list[Enqueue] = []
        self.deliveries: list[Delivery] = []
        self.settlements: dict[str, list[Settlement]] = defaultdict(list)
        self._open: dict[int, Operation] = {}
        self._begun: dict[int, int] = {}
        self._position = 0

    def add_life(self, lines: Iterable[Line]) -> None:
        """Read one life, or several side by side. What is open at the last line, or when its own life died,
        was cut off there.
        """
        last_ms = 0
        for line in lines:
            self._position += 1
            last_ms = line["at"]
            if line["ev"] == "begin":
                operation = Operation(line["do"], line["life"], self._position, line["at"], line)
                self._open[line["op"]] = operation
                self._begun[line["op"]] = self._position
                self.operations.append(operation)
            elif line["ev"] == "died":
                self._cut_off(
                    [number for number, operation in self._open.items() if operation.life == line["who"]],
                    last_ms,
                )
            else:
                self._end(self._open.pop(line["op"]), line)
        self._position += 1
        self._cut_off([*self._open], last_ms)

    def _cut_off(self, numbers: list[int], at_ms: int) -> None:
        for operation in map(self._open.pop, numbers):
            operation.end, operation.ended_ms = self._position, at_ms
            self._enter(operation)

    def of(self, *verbs: str) -> list[Operation]:
        return [o for o in self.operations if o.do in verbs and o.may_have_happened]

    def _end(self, operation: Operation, line: Line) -> None:
        operation.end, operation.ended_ms, operation.answer = self._position, line["at"], line
        operation.confirmed, operation.refused = line["ev"] == "done", line["ev"] == "refused"
        self._enter(operation)

    def _enter(self, operation: Operation) -> None:
        told, answer = operation.told, operation.answer
        match operation.do:
            case "enqueue" | "quarantine":
                ids: list[Any] = answer.get("ids") or [None] * len(told["messages"])
                for (tag, dedup_key, delay_ms), message_id in zip(told["messages"], ids, strict=True):
                    self.enqueues.append(
                        Enqueue(tag, told["queue"], dedup_key, delay_ms, message_id, operation)
                    )
            case "claim":
                for d in answer.get("deliveries", ()):
                    self.deliveries.append(
                        Delivery(
                            d["tag"],
                            d["id"],
                            d["queue"],
                            d["lease"],
                            told["consumer"],
                            told["started"],
                            d["attempts"],
                            d["until"],
                            d["source"] or "",
                            d["dead_since"] or 0,
                            d["failures"],
                            d["last_error"],
                            operation,
                            self._begun.get(told.get("since", -1), operation.begin),
                        )
                    )
            case "settle" if not operation.refused:
                results: list[Any] = answer.get("results") or [[None, 0, 0]] * len(told["items"])
                for (kind, message_id, lease, error, duration_ms), (outcome, due_ms, until_ms) in zip(
                    told["items"], results, strict=True
                ):
                    self.settlements[message_id].append(
                        Settlement(
                            kind, message_id, lease, error, duration_ms, outcome, due_ms, until_ms, operation
                        )
                    )
            case "ack" | "nack" if not operation.refused:
                kind = "complete" if operation.do == "ack" else "fail"
                self.settlements[told["id"]].append(
                    Settlement(kind, told["id"], None, "", 0, answer.get("outcome"), 0, 0, operation)
                )
