"""A Spark driver in a separate process: it runs a program of a test with any master, and the test may kill
it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.spark.processes import PATIENCE_S, Family

#: The variable with the master, for driver scripts:
#: `fairlead.spark.session(master=os.environ["FAIRLEAD_SPARK_MASTER"])`.
MASTER_VARIABLE = "FAIRLEAD_SPARK_MASTER"


class Driver:
    """`program` is the text of a Python script. It runs in its own directory, and can import modules of the
    tests as `tests.…`.
    """

    def __init__(
        self,
        directory: Path,
        program: str,
        master: str,
        *arguments: object,
        environment: Mapping[str, str | None] | None = None,
        name: str = "driver",
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        script = directory / f"{name}.py"
        script.write_text(program)
        self.family = Family(directory / "logs")
        self._name = name
        path = os.pathsep.join(
            [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
        )
        given = {**os.environ, MASTER_VARIABLE: master, "PYTHONPATH": path, **(environment or {})}
        self.process: subprocess.Popen[bytes] = self.family.start(
            name,
            [sys.executable, script, *map(str, arguments)],
            {key: value for key, value in given.items() if value is not None},
            cwd=directory,
        )

    @property
    def out(self) -> str:
        return (self.family.logs / f"{self._name}.out").read_text()

    @property
    def err(self) -> str:
        return (self.family.logs / f"{self._name}.err").read_text()

    @property
    def answer(self) -> Any:
        """The last line on stdout, decoded from JSON."""
        return json.loads(self.out.splitlines()[-1])

    def wait(self) -> int:
        try:
            return self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"the driver still runs after {PATIENCE_S:.0f} s\n{self.family.report()}"
            ) from None

    def kill(self) -> None:
        """Send SIGKILL to the driver, its JVM and all its Python workers. Returns when all have ended."""
        self.family.kill()
        self.family.end()


def run_driver(
    directory: Path,
    program: str,
    master: str,
    *arguments: object,
    environment: Mapping[str, str | None] | None = None,
    name: str = "driver",
) -> Driver:
    """Run a driver that must end with success; a failure shows its logs. A variable with the value None is
    removed from the environment.
    """
    driver = Driver(directory, program, master, *arguments, environment=environment, name=name)
    try:
        code = driver.wait()
        assert code == 0, f"the driver ended with {code}\n{driver.family.report()}"
    finally:
        driver.family.end()
    return driver
