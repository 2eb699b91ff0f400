"""The victim: `fairlead.spark.run_worker` until SIGTERM, in a process of its own, with a `Life` as JSON."""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path

import msgspec

import fairlead.spark
from fairlead.config import LogSettings
from fairlead.server import logs
from tests.crash.pipeline.switch import MARK
from tests.crash.worker.fates import WORKER
from tests.crash.worker.trial import runbook_of
from tests.spark.crash.driver import QUICK, find_tests


class Life(msgspec.Struct, frozen=True):
    """`batch` is the maximum messages of a claim: small, so that a round has many claims."""

    home: str
    address: str
    master: str
    batch: int = 50_000
    slices: int = 2
    burst: bool = False
    config: dict[str, str] = {}


def main(life: Life) -> None:
    logs.set_up(LogSettings(level="info", format="text"))
    stop = threading.Event()
    config = {**QUICK, **find_tests(), f"spark.executorEnv.{MARK}": life.home, **life.config}
    spark = fairlead.spark.session("trial", life.master, memory="512m", config=config)
    # After the session, because Spark sets its own handler.
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    try:
        summary = fairlead.spark.run_worker(
            WORKER,
            endpoint=life.address,
            spark=spark,
            runbook=runbook_of(Path(life.home)),
            burst=life.burst,
            max_messages=life.batch,
            slices=life.slices,
            stop=stop,
        )
        print(summary, file=sys.stderr)
    finally:
        spark.stop()


if __name__ == "__main__":
    main(msgspec.json.decode(sys.argv[1], type=Life))
