"""A standalone Spark cluster from the pip package: a master and workers, in processes on loopback."""

from __future__ import annotations

import json
import os
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fairlead.spark import use_java
from fairlead.testing.server import free_ports
from tests.spark.processes import Family, wait_until

#: For the short life of a test: only the faster compiler, and the garbage collector without extra threads.
SHORT_JOBS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


class Cluster:
    """Made by `run_cluster`. One application at a time gets all cores."""

    def __init__(self, directory: Path, family: Family, *, worker_memory: str) -> None:
        self.family = family
        self.workers: list[subprocess.Popen[bytes]] = []
        self._directory = directory
        self._worker_memory = worker_memory
        port, self._page_port = free_ports(2)
        self.url = f"spark://127.0.0.1:{port}"
        self.master = self._start(
            "master",
            "master.Master",
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
            "--webui-port",
            str(self._page_port),
        )
        wait_until(
            lambda: self._state().get("status") == "ALIVE",
            "the master to be alive",
            explain=self.family.report,
        )

    def add_worker(self) -> None:
        name = f"worker-{len(self.workers)}"
        work = self.family.logs / name
        worker = self._start(
            name,
            "worker.Worker",
            "--host",
            "127.0.0.1",
            "--port",
            "0",
            "--webui-port",
            "0",
            "--cores",
            "1",
            "--memory",
            self._worker_memory,
            "--work-dir",
            str(work),
            self.url,
        )
        self.workers.append(worker)

    def wait_for_workers(self, count: int) -> None:
        wait_until(
            lambda: self._state().get("aliveworkers") == count,
            f"{count} workers to be known",
            explain=self.family.report,
        )

    def wait_until_free(self) -> None:
        """Wait until the last application has ended and all cores are free."""
        wait_until(
            lambda: self._state().get("coresused") == 0,
            "the last application to leave",
            explain=self.family.report,
        )

    def kill_executor(self) -> list[int]:
        """Send SIGKILL to every running executor JVM."""
        return self.family.kill("CoarseGrainedExecutorBackend")

    def _start(self, name: str, main: str, *arguments: str) -> subprocess.Popen[bytes]:
        spark = find_spec("pyspark")
        assert spark is not None
        assert spark.origin is not None
        home = Path(spark.origin).parent
        for folder in ("conf", "local"):
            (self._directory / folder).mkdir(exist_ok=True)
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("SPARK_", "PYSPARK_", "FAIRLEAD_"))
        }
        environment |= {
            "SPARK_HOME": str(home),
            "SPARK_CONF_DIR": str(self._directory / "conf"),
            "SPARK_LOCAL_DIRS": str(self._directory / "local"),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_PUBLIC_DNS": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
            "JDK_JAVA_OPTIONS": SHORT_JOBS,
        }
        use_java(environ=environment)
        return self.family.start(
            name, [home / "bin" / "spark-class", f"org.apache.spark.deploy.{main}", *arguments], environment
        )

    def _state(self) -> dict[str, Any]:
        died = [process.returncode for process in (self.master, *self.workers) if process.poll() is not None]
        assert not died, f"a process of the cluster ended with {died}\n{self.family.report()}"
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._page_port}/json/", timeout=10) as answer:
                state: dict[str, Any] = json.load(answer)
                return state
        except (OSError, ValueError):
            return {}


@contextmanager
def run_cluster(directory: Path, *, workers: int = 2, worker_memory: str = "1g") -> Iterator[Cluster]:
    """Run a cluster whose workers are all registered. At the end all its processes, and those of its
    applications, are stopped.
    """
    family = Family(directory / "logs")
    try:
        cluster = Cluster(directory, family, worker_memory=worker_memory)
        for _ in range(workers):
            cluster.add_worker()
        cluster.wait_for_workers(workers)
        yield cluster
    finally:
        family.end()
