"""A job with `quarantine` is killed at critical moments: a Python worker in the middle of a partition, the
driver between the publish of the bad rows and Spark's commit, the broker meanwhile. Every row ends in the
sink or among the dead letters, once.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import fairlead
from fairlead.testing import run_server
from tests.spark.driver import Driver, run_driver
from tests.spark.processes import PATIENCE_S

ROWS = 4000

#: The first run loses a worker, publishes, writes the good rows, and waits before Spark can commit. The
#: second run ends.
PROGRAM = """
import os, signal, sys, time
from pathlib import Path
import fairlead.spark

home, address = Path(sys.argv[1]), sys.argv[2]

def check(row):
    if row["id"] == 1234 and not (home / "worker-killed").exists():
        (home / "worker-killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return row["amount"] != 3

def keep(batch, number):
    batch.write.mode("overwrite").parquet(str(home / f"out/batch={number}"))
    if not (home / "written").exists():
        (home / "written").touch()
        time.sleep(3600)

spark = fairlead.spark.session("sieve", os.environ["FAIRLEAD_SPARK_MASTER"])
rows = spark.readStream.schema("id LONG, amount INT").json(str(home / "inbox"))
good = fairlead.spark.quarantine(rows, check, queue="orders", endpoint=address)
query = good.writeStream.foreachBatch(keep).option("checkpointLocation", str(home / "checkpoint")).trigger(availableNow=True).start()
query.awaitTermination()
print(query.exception() is None and spark.read.parquet(str(home / "out")).selectExpr("to_json(collect_list(id)) AS ids").first().ids)
"""


def test_every_row_is_good_or_dead_once_whoever_is_killed(tmp_path: Path) -> None:
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    for at in range(2):
        lines = [json.dumps({"id": number, "amount": number % 10}) for number in range(at, ROWS, 2)]
        (inbox / f"{at}.json").write_text("\n".join(lines))
    with (
        run_server(tmp_path / "data", settings={"durability": "os"}) as server,
        fairlead.connect(server.address) as client,
    ):
        client.create_queue("orders")
        first = Driver(tmp_path / "first", PROGRAM, "local[2,4]", tmp_path, server.address)
        try:
            _wait_for(tmp_path / "written", first)
        finally:
            first.kill()
        assert (tmp_path / "worker-killed").exists()
        assert client.stats("orders.dlq").ready == ROWS // 10, "published before the sink had committed"
        server.restart(kill=True)
        second = run_driver(tmp_path / "second", PROGRAM, "local[2,4]", tmp_path, server.address)
        dead = [json.loads(one.payload)["id"] for one in client.claim("orders.dlq", limit=ROWS)]
    assert sorted(dead) == list(range(3, ROWS, 10))
    assert sorted([*second.answer, *dead]) == list(range(ROWS))


def _wait_for(sign: Path, driver: Driver) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not sign.exists():
        assert driver.process.poll() is None, (
            f"the driver ended with {driver.process.returncode}\n{driver.family.report()}"
        )
        assert time.monotonic() < deadline, (
            f"no {sign.name} after {PATIENCE_S:.0f} s\n{driver.family.report()}"
        )
        time.sleep(0.05)
