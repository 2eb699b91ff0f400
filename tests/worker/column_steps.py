"""Batch steps that take columns, in a module of their own: a process that loads pandas takes a second to
start.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pandas as pd
import pyarrow as pa

import fairlead
from tests.worker.batch_steps import misbehave, outcome


def arrow(batch: pa.RecordBatch) -> list[Any]:
    assert batch.schema.names == ["id", "payload", "stream", "attempts", "value"]
    return rows_of(batch.to_pylist())


def table(batch: pa.Table, step: fairlead.BatchStep) -> list[Any]:
    assert batch.column("id").to_pylist() == step.ids
    return rows_of(batch.to_pylist())


def frame(batch: pd.DataFrame) -> Iterator[Any]:
    assert list(batch.columns) == ["id", "payload", "stream", "attempts", "value"]
    return iter(rows_of(batch.to_dict("records")))


def rows_of(rows: list[dict[str, Any]]) -> list[Any]:
    items = [json.loads(row["payload"]) for row in rows]
    misbehave(items)
    return [
        outcome(item) if row["value"] is None else {"before": json.loads(row["value"])}
        for item, row in zip(items, rows, strict=True)
    ]
