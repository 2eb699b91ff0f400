"""Settings from a file, the environment and flags: every mistake is named at once, and nothing unknown is let
through.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

from fairlead.config.reading import read_value
from fairlead.config.server import (
    BOOTSTRAP_KEY_VARIABLE,
    DOORS,
    AuthSettings,
    RedactSettings,
    ServerSettings,
    TlsSettings,
    contradictions,
)
from fairlead.errors import InvalidRequest, SettingInvalid

#: Those that are no settings, most of them not read by a server. A * stands for any ending.
OTHER_VARIABLES = (
    BOOTSTRAP_KEY_VARIABLE,
    "FAIRLEAD_CONFIG",
    "FAIRLEAD_ADDR",
    "FAIRLEAD_PROJECT",
    "FAIRLEAD_SIM_*",
    "FAIRLEAD_PROPERTY_*",
    "FAIRLEAD_DEMO_*",
    "FAIRLEAD_API_KEY",
    "FAIRLEAD_API_KEY_FILE",
    "FAIRLEAD_CLIENT_TLS_*",
    "FAIRLEAD_ITEM_*",
    "FAIRLEAD_STEP_*",
)


class Setting(NamedTuple):
    """One setting: where its value goes, and what it may be."""

    path: str
    group: Any
    name: str
    hint: Any
    default: Any

    @property
    def variable(self) -> str:
        return "FAIRLEAD_" + self.path.replace(".", "_").upper()

    def read(self, given: object) -> Any:
        """The value, or `InvalidRequest`. Text is accepted for every kind, because the environment has
        nothing else.
        """
        value = read_value(self.path, self.hint, given)
        if self.group is not None:
            self.group(**{self.name: value})  # knows the range of its field
        return value


def _all_settings() -> Iterator[Setting]:
    hints = get_type_hints(ServerSettings)
    for top in fields(ServerSettings):
        group = hints[top.name]
        if not is_dataclass(group):
            yield Setting(top.name, None, top.name, group, None if top.default is MISSING else top.default)
            continue
        inner = get_type_hints(group)
        for one in fields(group):
            if not is_dataclass(inner[one.name]):
                yield Setting(f"{top.name}.{one.name}", group, one.name, inner[one.name], one.default)


SETTINGS: dict[str, Setting] = {setting.path: setting for setting in _all_settings()}
_BY_VARIABLE = {setting.variable: setting.path for setting in SETTINGS.values()}
_GROUPS = {path.partition(".")[0] for path in SETTINGS if "." in path}


#: A device never ends.
_MAX_FILE_BYTES = 1024 * 1024


class LoadedSettings(NamedTuple):
    """`sources` says where each setting that was given came from; what it lacks is a default."""

    settings: ServerSettings
    sources: Mapping[str, str]


class _GivenSetting(NamedTuple):
    source: str
    path: str
    value: object


def load_settings(
    file: Path | None, environ: Mapping[str, str], flags: Mapping[str, object]
) -> ServerSettings:
    """Flags beat the environment, which beats the file. `flags` maps a setting's path to its value; None is
    not given.

    Without `file` the one named by `FAIRLEAD_CONFIG` is read, if any. Raises `SettingInvalid` for the first
    thing wrong, with a note for each of the others; also for values that a stronger source would have
    replaced.
    """
    return load_with_sources(file, environ, flags).settings


def load_with_sources(
    file: Path | None, environ: Mapping[str, str], flags: Mapping[str, object]
) -> LoadedSettings:
    """As `load_settings`."""
    if file is None and environ.get("FAIRLEAD_CONFIG"):
        file = Path(environ["FAIRLEAD_CONFIG"])
    problems: list[tuple[str, str, str]] = []
    chosen: dict[str, Any] = {}
    source_of: dict[str, str] = {}
    for given in (*_from_file(file, problems), *_from_environment(environ, problems), *_from_flags(flags)):
        setting = SETTINGS.get(given.path)
        if setting is None:
            problems.append((given.source, given.path, _unknown(given.path)))
            continue
        try:
            chosen[given.path] = setting.read(given.value)
            source_of[given.path] = given.source
        except InvalidRequest as error:
            problems.append(
                (given.source, given.path, f"expected {error.expected}, got {_shown(given.value)}")
            )
    if "data" not in chosen and not any(path == "data" for _, path, _ in problems):
        problems.append(
            (
                "settings",
                "data",
                'expected a directory; give --data DIR, FAIRLEAD_DATA, or data = "DIR" in the settings file',
            )
        )
    addresses = {
        door: address for door in DOORS if (address := chosen.get(door, SETTINGS[door].default)) != "off"
    }
    tls, auth = TlsSettings(**_of_group("tls", chosen)), AuthSettings(**_of_group("auth", chosen))
    for path, what in contradictions(addresses, chosen.get("insecure_public", False), tls, auth):
        problems.append((source_of.get(path, "settings"), path, what))
    if problems:
        refused = SettingInvalid(*problems[0])
        for problem in problems[1:]:
            refused.add_note(": ".join(problem))
        raise refused
    return LoadedSettings(_built(chosen), source_of)


def load_redaction(environ: Mapping[str, str]) -> RedactSettings:
    """What is redacted by whoever opens a data directory without a server: as a server with this environment
    would.

    Of all other settings nothing is asked. Raises `SettingInvalid`.
    """
    problems: list[tuple[str, str, str]] = []
    file = Path(environ["FAIRLEAD_CONFIG"]) if environ.get("FAIRLEAD_CONFIG") else None
    chosen: dict[str, Any] = {}
    for given in (*_from_file(file, problems), *_from_environment(environ, [])):
        if given.path in SETTINGS and given.path.startswith("redact."):
            try:
                chosen[given.path] = SETTINGS[given.path].read(given.value)
            except InvalidRequest as error:
                problems.append(
                    (given.source, given.path, f"expected {error.expected}, got {_shown(given.value)}")
                )
    for problem in problems:
        raise SettingInvalid(*problem)
    return RedactSettings(**_of_group("redact", chosen))


def _built(chosen: Mapping[str, Any]) -> ServerSettings:
    top = {path: value for path, value in chosen.items() if "." not in path}
    hints = get_type_hints(ServerSettings)
    for group in _GROUPS:
        top[group] = hints[group](**_of_group(group, chosen))
    return ServerSettings(**top)


def _of_group(group: str, chosen: Mapping[str, Any]) -> dict[str, Any]:
    return {path.partition(".")[2]: value for path, value in chosen.items() if path.startswith(group + ".")}


def _from_file(file: Path | None, problems: list[tuple[str, str, str]]) -> Iterator[_GivenSetting]:
    if file is None:
        return
    try:
        with file.open("rb") as opened:
            raw = opened.read(_MAX_FILE_BYTES + 1)
        if len(raw) > _MAX_FILE_BYTES:
            problems.append(
                (str(file), "settings file", f"expected at most {_MAX_FILE_BYTES} bytes, got more")
            )
            return
        text = raw.decode("utf-8")
        tree = tomllib.loads(text)
    except OSError as error:
        problems.append(
            (str(file), "settings file", f"expected a file that can be read, got: {error.strerror}")
        )
        return
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        problems.append((str(file), "settings file", f"expected TOML in UTF-8: {error}"))
        return
    for path, value in _leaves(tree, ""):
        line = _line_of(text, path)
        yield _GivenSetting(str(file) if line is None else f"{file}:{line}", path, value)


def _leaves(tree: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, object]]:
    for name, value in tree.items():
        path = prefix + name
        if isinstance(value, dict) and value:
            yield from _leaves(value, path + ".")
        elif not (isinstance(value, dict) and path in _GROUPS):
            yield path, value


def _line_of(text: str, path: str) -> int | None:
    """Where a setting stands, for files written in the usual way; None for inline tables and the like."""
    table = ""
    for number, line in enumerate(text.splitlines(), 1):
        if header := re.match(r"\s*\[\s*([\w.\"-]+)\s*\]", line):
            table = header[1] + "."
        elif (key := re.match(r"\s*([\w.\"-]+)\s*=", line)) and (table + key[1]).replace('"', "") == path:
            return number
    return None


def _from_environment(
    environ: Mapping[str, str], problems: list[tuple[str, str, str]]
) -> Iterator[_GivenSetting]:
    for variable, value in sorted(environ.items()):
        if variable in _BY_VARIABLE:
            yield _GivenSetting(variable, _BY_VARIABLE[variable], value)
        elif variable.startswith("FAIRLEAD_") and not any(
            re.fullmatch(other.replace("*", ".*"), variable) for other in OTHER_VARIABLES
        ):
            problems.append(
                (
                    "environment",
                    variable,
                    _did_you_mean("expected a known variable", variable, [*_BY_VARIABLE, *OTHER_VARIABLES]),
                )
            )


def _from_flags(flags: Mapping[str, object]) -> Iterator[_GivenSetting]:
    for path, value in flags.items():
        if value is not None:
            yield _GivenSetting("command line", path, value)


def _unknown(path: str) -> str:
    if path in _GROUPS:
        return f"expected a table [{path}] of settings, got a value"
    # A name in the wrong table is likelier than one that merely looks alike.
    elsewhere = [known for known in SETTINGS if known.rpartition(".")[2] == path.rpartition(".")[2]]
    return _did_you_mean("expected a known setting", path, elsewhere or list(SETTINGS))


def _did_you_mean(what: str, name: str, known: list[str]) -> str:
    near = known if len(known) == 1 else difflib.get_close_matches(name, known, 1)
    return f"{what}, did you mean {near[0]}?" if near else f"{what}; see docs/reference/settings.md"


def _shown(given: object) -> str:
    shown = repr(given)
    return shown if len(shown) <= 120 else shown[:117] + "..."
