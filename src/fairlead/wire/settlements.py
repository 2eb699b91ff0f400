"""Settlements as columns."""

from __future__ import annotations

import pyarrow as pa

from fairlead.model.settle import Complete, LeaseRef, Settlement
from fairlead.wire.columns import BatchColumns
from fairlead.wire.schemas import SETTLEMENTS
from fairlead.wire.settlement_rows import COMPLETE, OPTIONAL, read_settlement


def decode_settlements(batch: pa.RecordBatch) -> list[Settlement]:
    columns = BatchColumns(batch, SETTLEMENTS)
    actions, ids, leases = columns.read("action", -1), columns.ids(), columns.read("lease", 0)
    refs = [*map(LeaseRef, ids, leases)]
    rest = [columns.find(name) for name in OPTIONAL]
    if not any(rest) and actions.count(COMPLETE) == len(actions):
        return [*map(Complete, refs)]
    filled = [column or [None] * columns.length for column in rest]
    return [
        read_settlement(action, ref, *fields)
        for action, ref, *fields in zip(actions, refs, *filled, strict=True)
    ]
