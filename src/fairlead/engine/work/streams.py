"""The operator's switch for a blocked stream."""

from __future__ import annotations

from fairlead.decide.fronts import next_to_open
from fairlead.engine.transaction import Transaction, WorkTable
from fairlead.errors import InvalidRequest
from fairlead.model.checks import check_text
from fairlead.model.limits import MAX_KEY_BYTES
from fairlead.records.facts import PassAllowed
from fairlead.verbs.operate import ReleaseStream


def release_stream(tx: Transaction, request: ReleaseStream) -> bool:
    name = check_text(request.stream, "stream", MAX_KEY_BYTES)
    queue = tx.queue(request.queue)
    stream = queue.streams.find(name)
    if stream is None:
        raise InvalidRequest("stream", f"a stream of queue {request.queue!r} with live messages", name)
    found = next_to_open(stream, tx.memory.seq_of, tx.memory.waits)
    if found is None:
        return False
    all_after, number = found
    if number or all_after > stream.all_after:
        tx.add(PassAllowed(queue.record.queue_id, name, [number] if number else [], all_after))
    return True


WORK: WorkTable = {ReleaseStream: release_stream}
