"""Tasks of `quarantine` in one process and without a JVM, against a real server."""

from __future__ import annotations

import inspect
import io
import json
import pickle
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql.types import LongType, StringType, StructField, StructType

import fairlead
from fairlead.errors import FairleadError, Forbidden, RowsRefused, ServerUnreachable, SparkNotReady
from fairlead.model.limits import MAX_KEY_BYTES, MAX_PAYLOAD_BYTES, MAX_QUEUE_NAME
from fairlead.spark.bad_rows import dead_letters as bad_rows
from fairlead.spark.bad_rows.checks import ColumnCheck, RowDefect, check_of
from fairlead.spark.bad_rows.dead_letters import BadRows
from fairlead.spark.bad_rows.quarantining import _MAX_NAME_BYTES, _MAX_TOKEN_BYTES, QuarantineTask, quarantine
from fairlead.spark.bad_rows.returning import returned
from fairlead.spark.connection import forget_clients
from fairlead.spark.data_source.task import BATCH_ID, QUERY_ID, InputCutShort, check_input_ended
from fairlead.spark.options import read_options
from fairlead.testing import ServerProcess, run_server
from fairlead.testing.server import free_ports

SCHEMA = StructType([StructField("id", LongType()), StructField("name", StringType())])
#: Spark sends this mark after the last row.
MARK = (-4).to_bytes(4, "big", signed=True)


def is_even(row: dict[str, Any]) -> str | None:
    return None if row["id"] % 2 == 0 else f"{row['id']} is odd"


def complain(row: dict[str, Any]) -> str:
    return f"{row['id']} " + "é" * 5000


def stammer(row: dict[str, Any]) -> str:
    return "half \ud83d"


Make = Callable[..., QuarantineTask]


@pytest.fixture
def make(server: ServerProcess, queue: str) -> Make:
    def make(
        check: Any = is_even,
        *,
        run: str | None = "load-7",
        name: str = "check",
        hidden: tuple[str, ...] = (),
        **connection: str,
    ) -> QuarantineTask:
        options = read_options({"endpoint": server.address, "queue": queue, **connection}).for_direction(
            "quarantine"
        )
        judge = check_of(check, "validation_failure") if callable(check) else check
        return QuarantineTask(
            options, judge, SCHEMA, ("__fairlead_partition", *hidden), run, name, {"job": "nightly"}
        )

    return make


def worker(**module: Any) -> Any:
    """Calls a function as Spark's worker does, in a module with the connection of the rows."""
    exec("def invoke_udf(task, batches, input_data_stream):\n    return list(task(batches))", module)
    return module["invoke_udf"]


_WORKER = worker(__name__="pyspark.worker")


@pytest.fixture
def work() -> Iterator[Callable[..., list[int]]]:
    """Run one attempt of a task, and return the ids of the good rows."""

    def work(
        task: QuarantineTask,
        *batches: list[int],
        partition: int = 0,
        attempt: int = 0,
        query: str = "",
        batch: int = 0,
        behind: bytes = MARK,
        **hidden: Any,
    ) -> list[int]:
        properties = {QUERY_ID: query, BATCH_ID: str(batch)} if query else {}
        TaskContext._setTaskContext(None)
        TaskContext(
            partitionId=90,
            attemptNumber=attempt,
            taskAttemptId=partition + 10 * attempt,
            localProperties=properties,
        )
        try:
            rows = iter([rows_of(ids, partition, **hidden) for ids in batches])
            given = _WORKER(pickle.loads(pickle.dumps(task)), rows, io.BufferedReader(io.BytesIO(behind)))
        finally:
            # If this variable stayed, Spark would take this process for a worker.
            TaskContext._setTaskContext(None)
        assert all(one.schema.names == SCHEMA.names for one in given)
        return [number for one in given for number in one.column("id").to_pylist()]

    return work


def rows_of(ids: list[int], partition: int, **hidden: Callable[[int], Any]) -> pa.RecordBatch:
    beside = {name: pa.array([value(number) for number in ids]) for name, value in hidden.items()}
    columns = {"id": pa.array(ids, pa.int64()), "name": pa.array([f"n{number}" for number in ids])}
    columns["__fairlead_partition"] = pa.array([partition] * len(ids), pa.int32())
    return pa.RecordBatch.from_pydict({**columns, **beside})


def dead(client: fairlead.Client, queue: str) -> list[fairlead.Delivery]:
    found = client.claim(f"{queue}.dlq", limit=10_000)
    client.settle([fairlead.Release(one) for one in found])
    return found


def dead_ids(client: fairlead.Client, queue: str) -> list[int]:
    return sorted(json.loads(one.payload)["id"] for one in dead(client, queue))


Work = Callable[..., list[int]]


def test_good_rows_flow_on_and_bad_ones_are_dead_letters_that_say_why(
    client: fairlead.Client, queue: str, make: Make, work: Work
) -> None:
    assert work(make(), [1, 2, 3], [4], [5], partition=3) == [2, 4]
    found = dead(client, queue)
    assert [json.loads(one.payload) for one in found] == [
        {"id": number, "name": f"n{number}"} for number in (1, 3, 5)
    ]
    assert [one.failures[-1].error for one in found] == ["1 is odd", "3 is odd", "5 is odd"]
    assert {fairlead.FailureReason(one.failures[-1].reason) for one in found} == {
        fairlead.FailureReason.VALIDATION_FAILURE
    }
    assert found[0].headers == {"job": "nightly", "fairlead-run": "load-7", "fairlead-partition": "3"}
    assert client.stats(queue).ready == 0


def test_the_same_work_done_again_changes_nothing_also_in_another_order(
    client: fairlead.Client, queue: str, make: Make, work: Work
) -> None:
    assert work(make(), [1, 2, 3], [5]) == [2]
    assert work(make(), [5, 2], [3, 1], attempt=1) == [2]
    assert dead_ids(client, queue) == [1, 3, 5]
    assert not [write for write in client.staging.list() if queue == write.queue and not write.published]


def test_work_that_turns_out_otherwise_loses_no_row(
    client: fairlead.Client, queue: str, make: Make, work: Work
) -> None:
    """A check with another result, or a partition with other rows: every row that is not good is a dead
    letter.
    """
    work(make(), [1, 2])
    work(make(), [1, 2, 3])
    assert dead_ids(client, queue) == [1, 1, 3]


def test_equal_rows_of_two_partitions_and_of_two_checks_are_all_there(
    client: fairlead.Client, queue: str, make: Make, work: Work
) -> None:
    work(make(), [1], partition=0)
    work(make(), [1], partition=1)
    work(make(name="other"), [1], partition=0)
    work(make(), [1, 1], partition=0)
    assert dead_ids(client, queue) == [1, 1, 1, 1, 1]


def test_equal_rows_of_two_queues_are_in_both(
    client: fairlead.Client, queue: str, make: Make, work: Work
) -> None:
    other = f"{queue}-too"
    client.create_queue(other)
    work(make(), [1])
    work(make(queue=other), [1])
    assert dead_ids(client, queue) == dead_ids(client, other) == [1]


def test_the_longest_names_make_a_token(client: fairlead.Client, work: Work, make: Make) -> None:
    queue = "q" * (MAX_QUEUE_NAME - len(".dlq"))
    client.create_queue(queue)
    work(make(queue=queue, run="t" * _MAX_TOKEN_BYTES, name="n" * _MAX_NAME_BYTES), [1], partition=2**31 - 1)
    assert dead_ids(client, queue) == [1]


def test_a_task_that_is_cut_short_leaves_nothing(
    client: fairlead.Client, queue: str, make: Make, work: Work
) -> None:
    for behind in (b"", b"\0\0\0\4"):
        with pytest.raises(InputCutShort):
            work(make(), [1, 2], behind=behind)
    assert dead_ids(client, queue) == []
    assert not [write for write in client.staging.list() if queue == write.queue]
    assert work(make(), [2, 4], behind=b"") == [2, 4], "without bad rows there is nothing to be sure of"


def test_outside_of_a_worker_nobody_believes_that_the_rows_have_ended(make: Make) -> None:
    with pytest.raises(SparkNotReady):
        list(make()(iter([rows_of([1], 0)])))


def test_a_worker_that_is_the_program_of_its_process_is_one_too() -> None:
    """The worker is the main module, as with `spark.python.use.daemon=false`."""

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[None]:
        yield check_input_ended()

    alone = worker(__name__="__main__", __spec__=ModuleSpec("pyspark.worker", None))
    assert alone(task, iter([]), io.BufferedReader(io.BytesIO(MARK))) == [None]
    with pytest.raises(SparkNotReady):
        worker(__name__="__main__", __spec__=None)(task, iter([]), io.BufferedReader(io.BytesIO(MARK)))


def test_a_micro_batch_that_is_replayed_gives_its_rows_once_and_the_next_one_again(
    client: fairlead.Client, queue: str, make: Make, work: Work
) -> None:
    for batch in (0, 0, 1):
        work(make(run=None), [1], query="q", batch=batch)
    work(make(run=None), [1], query="r", batch=0)
    assert dead_ids(client, queue) == [1, 1, 1]


def test_rows_that_do_not_fit_in_memory_wait_in_a_file(
    client: fairlead.Client, queue: str, make: Make, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[BadRows] = []

    def small(options: Any) -> BadRows:
        made.append(BadRows(options, max_in_memory=200))
        return made[-1]

    monkeypatch.setattr("fairlead.spark.bad_rows.quarantining.BadRows", small)
    monkeypatch.setattr(bad_rows, "_CHUNK_ROWS", 7)
    assert work(make(), *[[number, number + 1] for number in range(0, 60, 2)]) == list(range(0, 60, 2))
    assert dead_ids(client, queue) == list(range(1, 60, 2))
    assert made[0]._file is not None
    assert made[0]._file.closed


def test_many_rows_with_long_errors_of_their_own_fit_into_a_request(
    client: fairlead.Client, queue: str, make: Make, work: Work
) -> None:
    assert work(make(complain), list(range(bad_rows._CHUNK_ROWS))) == []
    found = dead(client, queue)
    assert len(found) == bad_rows._CHUNK_ROWS
    assert found[17].failures[-1].error.startswith(f"{json.loads(found[17].payload)['id']} éé")


def test_a_row_that_no_message_can_carry_ends_the_task_with_what_to_do(
    client: fairlead.Client, queue: str, make: Make, work: Work
) -> None:
    task = make(hidden=("__fairlead_payload",))
    with pytest.raises(RowsRefused, match="payload= the column that a dead letter carries"):
        work(task, [1], __fairlead_payload=lambda _: b"x" * (MAX_PAYLOAD_BYTES + 1))
    assert dead_ids(client, queue) == []


def test_a_dead_letter_may_carry_a_column_and_have_a_key(
    client: fairlead.Client, queue: str, make: Make, work: Work
) -> None:
    keys = {1: "ann", 3: None, 5: "", 7: "é" * MAX_KEY_BYTES}
    task = make(hidden=("__fairlead_key", "__fairlead_payload"))
    work(
        task,
        [1, 2, 3, 5, 7],
        __fairlead_key=lambda n: keys.get(n, "x"),
        __fairlead_payload=lambda n: b"raw %d" % n,
    )
    found = {one.payload: one.fairness_key for one in dead(client, queue)}
    assert found == {
        b"raw 1": "ann",
        b"raw 3": "default",
        b"raw 5": "default",
        b"raw 7": "é" * (MAX_KEY_BYTES // 2),
    }


def as_spark_has_it(raw: bytes) -> Any:
    """A string of Spark or Arrow may hold any bytes; a Python text may not."""
    return pa.array([raw], pa.binary()).view(pa.utf8())[0]


def test_a_bad_row_with_text_that_is_not_utf_8_is_a_dead_letter(
    client: fairlead.Client, queue: str, make: Make, work: Work
) -> None:
    condition = make(ColumnCheck("id <> 3", "unknown"), hidden=("__fairlead_good", "__fairlead_key"))
    given = {
        "name": lambda n: as_spark_has_it(b"n\xff%d" % n),
        "__fairlead_key": lambda n: as_spark_has_it(b"k\xff%d" % n),
    }
    assert work(condition, [1, 3], __fairlead_good=lambda n: n != 3, **given) == [1]
    [found] = dead(client, queue)
    assert (json.loads(found.payload), found.fairness_key) == ({"id": 3, "name": "n\ufffd3"}, "k\ufffd3")


def test_a_row_that_a_function_cannot_be_shown_is_a_dead_letter(
    client: fairlead.Client, queue: str, make: Make, work: Work
) -> None:
    assert work(make(), [2, 4], name=lambda n: as_spark_has_it(b"\xff" if n == 2 else b"four")) == [4]
    [found] = dead(client, queue)
    assert json.loads(found.payload) == {"id": 2, "name": "\ufffd"}
    assert found.failures[-1].error.startswith("Python cannot hold this row")


def test_a_verdict_with_half_a_character_is_published(
    client: fairlead.Client, queue: str, make: Make, work: Work
) -> None:
    assert work(make(stammer), [1]) == []
    assert [one.failures[-1].error for one in dead(client, queue)] == ["half ?"]


def test_a_payload_of_its_own_is_carried_byte_for_byte(
    client: fairlead.Client, queue: str, make: Make, work: Work
) -> None:
    task = make(hidden=("__fairlead_payload",))
    work(task, [1], name=lambda n: as_spark_has_it(b"\xff"), __fairlead_payload=lambda n: b"\xff\0")
    assert [one.payload for one in dead(client, queue)] == [b"\xff\0"]


def test_a_condition_that_spark_has_looked_at_is_not_asked_again(
    client: fairlead.Client, queue: str, make: Make, work: Work
) -> None:
    task = make(ColumnCheck("id <> 3", "poison_message"), hidden=("__fairlead_good",))
    said = {3: False, 4: None}
    assert work(task, [1, 2, 3, 4], [5], __fairlead_good=lambda n: said.get(n, True)) == [1, 2, 5]
    assert {(one.failures[-1].reason, one.failures[-1].error) for one in dead(client, queue)} == {
        (7, "id <> 3 is false"),
        (7, "id <> 3 is null"),
    }


def test_a_task_fails_while_the_broker_is_away(make: Make, work: Work) -> None:
    with pytest.raises(ServerUnreachable):
        work(make(endpoint=f"127.0.0.1:{free_ports(1)[0]}", timeout="100ms"), [1])


def test_it_takes_the_right_to_quarantine_and_no_other(tmp_path: Path, work: Work) -> None:
    with run_server(tmp_path / "data", settings={"durability": "os", "auth.mode": "keys"}) as locked:
        admin = (locked.data / "bootstrap.key").read_text().strip()
        with fairlead.connect(locked.address, api_key=admin) as client:
            client.create_queue("orders")

            def task(grant: str) -> QuarantineTask:
                (tmp_path / grant).write_text(client.keys.create(grant, grants=[f"{grant}:orders"]).secret)
                options = read_options(
                    {"endpoint": locked.address, "queue": "orders", "apiKeyFile": str(tmp_path / grant)}
                )
                return QuarantineTask(
                    options,
                    check_of(is_even, "unknown"),
                    SCHEMA,
                    ("__fairlead_partition",),
                    "load-7",
                    "check",
                    {},
                )

            for grant in ("produce", "consume"):
                with pytest.raises(Forbidden, match="quarantine on 'orders'"):
                    work(task(grant), [1])
            assert work(task("quarantine"), [1, 2]) == [2]
            assert dead_ids(client, "orders") == [1]
        forget_clients()


def test_what_the_broker_refuses_fails_the_task(
    client: fairlead.Client, queue: str, make: Make, work: Work
) -> None:
    client.delete_queue(queue)
    with pytest.raises(FairleadError, match=queue):
        work(make(), [1])


def test_a_verdict_of_one_kind_travels_once() -> None:
    kept = pa.RecordBatch.from_pydict({"reason": ["unknown"] * 2, "error": ["no", "no"]})
    assert bad_rows._deaths(kept) == RowDefect("unknown", "no")


@pytest.mark.parametrize("function", [quarantine, returned], ids=lambda function: function.__name__)
def test_the_reference_has_every_parameter(function: Callable[..., Any]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "spark.md").read_text()
    section = page.partition(f"## `fairlead.spark.{function.__name__}(")[2].partition("\n## ")[0]
    documented = [line.split("`")[1] for line in section.splitlines() if line.startswith("| `")]
    assert documented == list(inspect.signature(function).parameters)
