"""Batch steps as functions: what they may take and return, row by row."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fairlead.errors import StepNotLoaded
from fairlead.model.failure import FailureReason
from fairlead.model.ids import show_id
from fairlead.runbook.model import StepSpec
from fairlead.worker.protocol import BatchCall, BatchDone, CallFailed, PipelineSetup
from fairlead.worker.step_runner import StepRunner

HEAD = "from __future__ import annotations\n"
IMPORTS = "import numpy as np\nimport pandas as pd\nimport pyarrow as pa\nimport fairlead\n"
_NUMBERS = itertools.count()
ROWS = [{"n": 0}, {"n": 1}, {"n": 2}]


@pytest.fixture
def base(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    sys.path.remove(str(tmp_path))


def call(
    base: Path,
    code: str,
    rows: list[Any] = ROWS,
    *,
    values: list[bytes] | None = None,
    reasons: dict[str, str] | None = None,
) -> Any:
    """The answer of `step` in a module with this code. With `values`, it is the second step of its pipeline."""
    module = f"batch_module_{next(_NUMBERS)}"
    (base / f"{module}.py").write_text(code)
    steps = (StepSpec("first", command=("true",)), StepSpec("only", run=f"{module}:step", batch=True))
    at = 0 if values is None else 1
    payloads = [row if isinstance(row, bytes) else json.dumps(row).encode() for row in rows]
    size = len(rows)
    ids = [place.to_bytes(16, "big") for place in range(size)]
    streams = ["s" if place % 2 else "" for place in range(size)]
    asked = BatchCall(7, at, "work", ids, payloads, [b""] * size, streams, list(range(size)), values or [])
    return StepRunner(PipelineSetup("p", steps[1 - at :], reasons or {}, str(base)))(asked)


def values_of(result: Any, size: int = 3) -> list[Any]:
    assert isinstance(result, BatchDone), result
    assert result.failed == []
    return [json.loads(value or b"null") for value in result.values] or [None] * size


def reasons_of(result: Any) -> dict[int, str]:
    assert isinstance(result, BatchDone), result
    return {failure.ticket: FailureReason(failure.reason).word for failure in result.failed}


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (IMPORTS + "def step(b: pa.RecordBatch): return [type(b).__name__] * b.num_rows", "RecordBatch"),
        (
            HEAD + IMPORTS + "def step(b: pa.RecordBatch): return [type(b).__name__] * b.num_rows",
            "RecordBatch",
        ),
        (
            HEAD + "from pyarrow import Table\ndef step(b: Table): return [type(b).__name__] * b.num_rows",
            "Table",
        ),
        (IMPORTS + "def step(b: 'pd.DataFrame'): return [type(b).__name__] * len(b)", "DataFrame"),
        (HEAD + IMPORTS + "def step(b: 'pd.DataFrame'): return [type(b).__name__] * len(b)", "DataFrame"),
        # Imported for the type checker only.
        (HEAD + "def step(b: pd.DataFrame): return [type(b).__name__] * len(b)", "DataFrame"),
        (HEAD + "def step(b: DataFrame): return [type(b).__name__] * len(b)", "DataFrame"),
        (HEAD + "def step(b: pyarrow.Table): return [type(b).__name__] * len(b)", "Table"),
        ("def step(b): return [type(b).__name__] * len(b)", "list"),
        ("def step(b: list[dict[str, int]]): return [type(b).__name__] * len(b)", "list"),
        (
            HEAD
            + "from typing import Any, Sequence\ndef step(b: Sequence[Any]): return [type(b).__name__] * len(b)",
            "list",
        ),
        (HEAD + "def step(b: list[Order]): return [type(b).__name__] * len(b)", "list"),
        (IMPORTS + "async def step(b: pa.Table): return [type(b).__name__] * len(b)", "Table"),
        (
            IMPORTS
            + "class S:\n  def __call__(self, b: pa.Table): return [type(b).__name__] * len(b)\nstep = S()",
            "Table",
        ),
        (
            IMPORTS
            + "class S:\n  def of(self, b: pa.Table): return [type(b).__name__] * len(b)\nstep = S().of",
            "Table",
        ),
    ],
)
def test_the_annotation_selects_the_input(base: Path, code: str, kind: str) -> None:
    assert values_of(call(base, code)) == [kind] * 3


@pytest.mark.parametrize(
    ("code", "got"),
    [
        ("def step(b: dict): ...", "got dict"),
        ("def step(b: str): ...", "got str"),
        (HEAD + "def step(b: pl.DataFrame): ...", "got pl.DataFrame"),
        (IMPORTS + "def step(b: pd.Series): ...", "got pandas.Series"),
        (IMPORTS + "def step(b: pa.Table | None): ...", "Union"),
    ],
)
def test_an_unknown_annotation_is_refused_and_the_error_lists_valid_ones(
    base: Path, code: str, got: str
) -> None:
    with pytest.raises(StepNotLoaded) as refused:
        call(base, code)
    assert "pyarrow.RecordBatch, pyarrow.Table, pandas.DataFrame or list, or not at all" in str(refused.value)
    assert got in str(refused.value)


def test_a_missing_package_is_reported_before_anything_is_claimed(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(StepNotLoaded, match=r"takes a pandas\.DataFrame, and pandas cannot be imported"):
        call(base, HEAD + "def step(b: pd.DataFrame): ...")


def test_a_function_without_parameters_is_refused(base: Path) -> None:
    with pytest.raises(StepNotLoaded, match=r"takes the items and optionally a fairlead\.BatchStep"):
        call(base, "def step(): ...")


@pytest.mark.parametrize("kind", ["pa.RecordBatch", "pa.Table", "pd.DataFrame"])
def test_columns_have_the_payload_as_enqueued_and_the_facts_of_each_row(base: Path, kind: str) -> None:
    rows = "b.to_pylist()" if kind.startswith("pa") else "b.to_dict('records')"
    code = (
        f"{IMPORTS}def step(b: {kind}): return [{{**row, 'payload': row['payload'].hex()}} for row in {rows}]"
    )
    found = values_of(call(base, code, [b"\xff", b"", b"{}"], values=[b'{"a":1}', b"null", b'"x"']))
    assert found == [
        {"id": show_id(bytes(16)), "payload": "ff", "stream": None, "attempts": 0, "value": '{"a":1}'},
        {"id": show_id(bytes(15) + b"\1"), "payload": "", "stream": "s", "attempts": 1, "value": None},
        {"id": show_id(bytes(15) + b"\2"), "payload": "7b7d", "stream": None, "attempts": 2, "value": '"x"'},
    ]


def test_columns_of_a_first_step_have_no_values(base: Path) -> None:
    assert values_of(
        call(base, IMPORTS + "def step(b: pa.Table): return [str(b.schema.field('value').type)] + [None] * 2")
    ) == ["string", None, None]


def test_the_second_argument_has_the_step_and_the_facts_of_each_row(base: Path) -> None:
    code = (
        "def step(items, step): return [[step.name, step.pipeline, step.queue, len(step), *row] for row in "
        "zip(step.ids, step.streams, step.attempts, step.headers, step.values)]"
    )
    found = values_of(call(base, code, values=[b"1", b"null", b"[]"]))
    assert found[1] == ["only", "p", "work", 3, show_id(bytes(15) + b"\1"), "s", 1, {}, None]
    assert [row[-1] for row in found] == [1, None, []]
    assert [row[-1] for row in values_of(call(base, code))] == [None] * 3


@pytest.mark.parametrize(
    ("returned", "values"),
    [
        ("None", [None] * 3),
        ("[None, {'a': 1}, 'x']", [None, {"a": 1}, "x"]),
        ("(1, 2, 3)", [1, 2, 3]),
        ("(item['n'] for item in items)", [0, 1, 2]),
        ("map(str, range(3))", ["0", "1", "2"]),
        ("np.arange(3)", [0, 1, 2]),
        ("pd.Series(['a', None, 'b'])", ["a", None, "b"]),
        ("pa.array([1, None, 3])", [1, None, 3]),
        ("pa.chunked_array([[1], [2, 3]])", [1, 2, 3]),
    ],
)
def test_a_step_returns_nothing_or_one_entry_for_each_row(
    base: Path, returned: str, values: list[Any]
) -> None:
    assert values_of(call(base, f"{IMPORTS}def step(items): return {returned}")) == values


@pytest.mark.parametrize(
    ("returned", "got"),
    [
        ("[1, 2]", "got 2"),
        ("[1, 2, 3, 4]", "got 4"),
        ("[]", "got 0"),
        ("iter(int, 1)", "got more"),
        ("{'a': 1, 'b': 2, 'c': 3}", "got dict"),
        ("'abc'", "got str"),
        ("True", "got bool"),
        ("pd.DataFrame({'a': [1], 'b': [2], 'c': [3]})", "got DataFrame"),
        ("pa.table({'a': [1, 2, 3]})", "got Table"),
        ("np.float64(3)", "got float64"),
    ],
)
def test_any_other_result_fails_every_row_and_the_error_names_the_expected_form(
    base: Path, returned: str, got: str
) -> None:
    result = call(base, f"{IMPORTS}def step(items): return {returned}")
    assert reasons_of(result) == dict.fromkeys(range(3), "serialization_error")
    assert all(
        "one entry for each of its 3 rows" in failure.error and got in failure.error
        for failure in result.failed
    )


def test_each_row_fails_by_its_own_entry(base: Path) -> None:
    code = IMPORTS + (
        "class Mine(Exception): ...\n"
        "def step(items): return [ValueError('odd'), None, fairlead.StepFailed('no', reason='validation_failure', dead=True), float('nan'),\n"
        "    {1, 2}, 7, ConnectionError('away'), Mine(), fairlead.StepFailed('later', retry_in='90s'), SystemExit(3), pd.NaT, '\\ud800']"
    )
    result = call(base, code, [{"n": n} for n in range(12)], reasons={"Mine": "dependency_failure"})
    assert reasons_of(result) == {
        0: "handler_exception",
        2: "validation_failure",
        3: "serialization_error",
        4: "serialization_error",
        6: "transport_unavailable",
        7: "dependency_failure",
        8: "handler_exception",
        9: "handler_exception",
        10: "serialization_error",
        11: "serialization_error",
    }
    by_row = {failure.ticket: failure for failure in result.failed}
    assert (by_row[2].dead, by_row[8].retry_in_ms, by_row[0].dead, by_row[0].retry_in_ms) == (
        True,
        90_000,
        False,
        None,
    )
    assert [value for value in result.values if value] == [b"7"]
    assert "step 'only': ValueError: odd" in by_row[0].error


def test_a_single_returned_exception_fails_all_rows(base: Path) -> None:
    result = call(
        base,
        IMPORTS
        + "def step(items): return fairlead.StepFailed('the bank is closed', reason='dependency_failure', retry_in='1m')",
    )
    assert reasons_of(result) == dict.fromkeys(range(3), "dependency_failure")
    assert all(
        failure.retry_in_ms == 60_000 and "the bank is closed" in failure.error for failure in result.failed
    )


@pytest.mark.parametrize(
    "how", ["raise ValueError('odd')", "sys.exit(3)", "yield 1; raise ValueError('odd')"]
)
def test_a_raised_exception_fails_no_single_row(base: Path, how: str) -> None:
    result = call(base, f"import sys\ndef step(items):\n    {how}")
    assert isinstance(result, CallFailed)
    assert result.ticket == 7
    assert not result.spent
    first = next(line for line in result.error.splitlines() if "File" in line)
    assert "batch_module_" in first, result.error


def test_a_call_that_exhausts_memory_ends_the_use_of_its_process(base: Path) -> None:
    result = call(base, "def step(items): raise MemoryError")
    assert isinstance(result, CallFailed)
    assert result.spent
    assert FailureReason(result.reason) is FailureReason.POISON_MESSAGE


BAD = [b"{", {"n": 1}, b"\xff", {"n": 3}, b""]


def test_a_row_that_is_not_json_fails_alone_and_is_not_in_the_list(base: Path) -> None:
    code = (
        "def step(items, step): return [[item['n'], id[-1], attempts, value] for item, id, attempts, value in "
        "zip(items, step.ids, step.attempts, step.values, strict=True)]"
    )
    result = call(base, code, BAD, values=[b"0", b"1", b"2", b"3", b"4"])
    assert reasons_of(result) == dict.fromkeys([0, 2, 4], "serialization_error")
    assert all("expected the payload to be JSON" in failure.error for failure in result.failed)
    assert [json.loads(value) if value else None for value in result.values] == [
        None,
        [1, "1", 1, 1],
        None,
        [3, "3", 3, 3],
        None,
    ]


def test_beside_rows_that_are_not_json_other_failures_keep_their_rows(base: Path) -> None:
    result = call(base, "def step(items): return [None, ValueError('third')]", BAD)
    assert reasons_of(result) == {
        0: "serialization_error",
        2: "serialization_error",
        3: "handler_exception",
        4: "serialization_error",
    }
    result = call(base, "def step(items): return [None]", BAD)
    assert reasons_of(result) == dict.fromkeys(range(5), "serialization_error")
    assert "each of its 2 rows, got 1" in result.failed[-1].error


def test_when_no_row_is_json_nothing_is_called(base: Path) -> None:
    result = call(base, "def step(items): raise ValueError", [b"{", b"}"])
    assert reasons_of(result) == dict.fromkeys([0, 1], "serialization_error")
    assert values_of(call(base, "def step(items): ...", [b"{}"]), 1) == [None]
