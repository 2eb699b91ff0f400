"""Which queues have a label of their own: a bounded number, so that no producer can fill the memory of a
monitoring system.
"""

from __future__ import annotations

from fairlead.model.queue import QueueRecord
from fairlead.server.metric_names import OTHER


class QueueLabels:
    """The first `most` queues have their names as labels, each with its dead letters; the rest share one
    label.

    A deleted queue frees its label for the next new one.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._records: dict[int, QueueRecord] = {}
        #: Ids of queues with a label of their own, without dead-letter queues.
        self._own: set[int] = set()
        self._labels: dict[int, str] = {}

    @property
    def in_other(self) -> int:
        return sum(1 for record in list(self._records.values()) if not record.source_id) - len(self._own)

    def of(self, queue_id: int) -> str:
        label = self._labels.get(queue_id)
        return self._find(queue_id) if label is None else label

    def saved(self, record: QueueRecord) -> None:
        queue_id = record.queue_id
        if not record.name:
            # Unlinked: its remains are still counted under its name.
            return
        self._records[queue_id] = record
        if not record.source_id and queue_id not in self._own and len(self._own) < self._most:
            self._own.add(queue_id)
            self._labels.pop(queue_id, None)
            self._labels.pop(record.dlq_id, None)

    def cleared(self, queue_id: int) -> str | None:
        """Forget a queue; returns its label, if no other queue has it."""
        label = self.of(queue_id)
        self._records.pop(queue_id, None)
        self._labels.pop(queue_id, None)
        self._own.discard(queue_id)
        return label if label != OTHER and label not in [self.of(other) for other in self._records] else None

    def _find(self, queue_id: int) -> str:
        record = self._records.get(queue_id)
        if record is None:
            return OTHER
        label = record.name if (record.source_id or queue_id) in self._own else OTHER
        self._labels[queue_id] = label
        return label
