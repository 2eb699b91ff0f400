"""Reads settings from a file, the environment and flags. All mistakes are reported at once, also unknown
names.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
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

#: Variables that are not settings; a server reads few of them. A * stands for any ending.
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
    """One setting: the field that holds its value, and the type of the value."""

    path: str
    group: Any
    name: str
    hint: Any
    default: Any

    @property
    def variable(self) -> str:
        return "FAIRLEAD_" + self.path.replace(".", "_").upper()

    def read(self, given: object) -> Any:
        """Read a value; every type also accepts text, because the environment has only text.

        Raises `InvalidRequest`.
        """
        value = read_value(self.path, self.hint, given)
        if self.group is not None:
            self.group(**{self.name: value})  # Checks the range.
        return value


def _all_settings() -> Iterator[Setting]:
    hints = get_type_hints(ServerSettings)
    for top in fields(ServerSettings):
        group = hints[top.name]
        if not is_dataclass(group):
            default = None if top.default is MISSING else top.default
            yield Setting(top.name, None, top.name, group, default)
            continue
        inner = get_type_hints(group)
        for one in fields(group):
            if not is_dataclass(inner[one.name]):
                yield Setting(f"{top.name}.{one.name}", group, one.name, inner[one.name], one.default)


SETTINGS: dict[str, Setting] = {setting.path: setting for setting in _all_settings()}
_BY_VARIABLE = {setting.variable: setting.path for setting in SETTINGS.values()}
_GROUPS = {path.partition(".")[0] for path in SETTINGS if "." in path}


#: The bound ends the reading of a device.
_MAX_FILE_BYTES = 1024 * 1024


class LoadedSettings(NamedTuple):
    """`sources` has the origin of each setting that was given; the others have their defaults."""

    settings: ServerSettings
    sources: Mapping[str, str]


#: Mistakes: (source, path, what is wrong).
_Problems = list[tuple[str, str, str]]


class _GivenSetting(NamedTuple):
    source: str
    path: str
    value: object


def load_settings(
    file: Path | None, environ: Mapping[str, str], flags: Mapping[str, object]
) -> ServerSettings:
    """Load the settings. Flags take precedence over the environment, which takes precedence over the file.

    `flags` maps the path of a setting to its value; None means not given. Without `file`, the file named by
    `FAIRLEAD_CONFIG` is read, if any. Raises `SettingInvalid` for the first mistake, with a note for each
    other mistake, also for values that another source replaces.
    """
    return load_with_sources(file, environ, flags).settings


def load_with_sources(
    file: Path | None, environ: Mapping[str, str], flags: Mapping[str, object]
) -> LoadedSettings:
    """Load the settings as `load_settings` does, with their origins."""
    problems: _Problems = []
    given = [
        *_from_file(file or _file_of(environ), problems),
        *_from_environment(environ, problems),
        *_from_flags(flags),
    ]
    accepted = _read_all(given, problems)
    values = _by_path(accepted)
    sources = {setting.path: setting.source for setting in accepted}
    if "data" not in values and not any(path == "data" for _, path, _ in problems):
        what = 'expected a directory; give --data DIR, FAIRLEAD_DATA, or data = "DIR" in the settings file'
        problems.append(("settings", "data", what))
    for path, what in _contradictions(values):
        problems.append((sources.get(path, "settings"), path, what))
    if problems:
        refused = SettingInvalid(*problems[0])
        for problem in problems[1:]:
            refused.add_note(": ".join(problem))
        raise refused
    return LoadedSettings(_built(values), sources)


def load_redaction(environ: Mapping[str, str]) -> RedactSettings:
    """Load the redaction for a process that opens a data directory without a server, as a server would
    redact.

    Other settings are not checked. Raises `SettingInvalid`.
    """
    problems: _Problems = []
    given = (*_from_file(_file_of(environ), problems), *_from_environment(environ, []))
    redaction = [setting for setting in given if setting.path.startswith("redact.")]
    accepted = _read_all([setting for setting in redaction if setting.path in SETTINGS], problems)
    for problem in problems:
        raise SettingInvalid(*problem)
    return RedactSettings(**_of_group("redact", _by_path(accepted)))


def _file_of(environ: Mapping[str, str]) -> Path | None:
    return Path(environ["FAIRLEAD_CONFIG"]) if environ.get("FAIRLEAD_CONFIG") else None


def _read_all(given: Sequence[_GivenSetting], problems: _Problems) -> list[_GivenSetting]:
    """Return the settings with their values read, without those that have mistakes."""
    accepted = []
    for setting in given:
        if setting.path not in SETTINGS:
            problems.append((setting.source, setting.path, _unknown(setting.path)))
            continue
        try:
            accepted.append(setting._replace(value=SETTINGS[setting.path].read(setting.value)))
        except InvalidRequest as error:
            what = f"expected {error.expected}, got {_shown(setting.value)}"
            problems.append((setting.source, setting.path, what))
    return accepted


def _by_path(settings: Sequence[_GivenSetting]) -> dict[str, Any]:
    """The values by path; the last source of a setting takes precedence."""
    return {setting.path: setting.value for setting in settings}


def _contradictions(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    open_doors = {door: values.get(door, SETTINGS[door].default) for door in DOORS}
    addresses = {door: address for door, address in open_doors.items() if address != "off"}
    tls, auth = TlsSettings(**_of_group("tls", values)), AuthSettings(**_of_group("auth", values))
    return contradictions(addresses, values.get("insecure_public", False), tls, auth)


def _built(chosen: Mapping[str, Any]) -> ServerSettings:
    top = {path: value for path, value in chosen.items() if "." not in path}
    hints = get_type_hints(ServerSettings)
    for group in _GROUPS:
        top[group] = hints[group](**_of_group(group, chosen))
    return ServerSettings(**top)


def _of_group(group: str, chosen: Mapping[str, Any]) -> dict[str, Any]:
    return {path.partition(".")[2]: value for path, value in chosen.items() if path.startswith(group + ".")}


def _from_file(file: Path | None, problems: _Problems) -> Iterator[_GivenSetting]:
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
    """Return the line of a setting in a file of the usual form; None for inline tables and similar forms."""
    table = ""
    for number, line in enumerate(text.splitlines(), 1):
        if header := re.match(r"\s*\[\s*([\w.\"-]+)\s*\]", line):
            table = header[1] + "."
        elif (key := re.match(r"\s*([\w.\"-]+)\s*=", line)) and (table + key[1]).replace('"', "") == path:
            return number
    return None


def _from_environment(environ: Mapping[str, str], problems: _Problems) -> Iterator[_GivenSetting]:
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
    # A setting in the wrong table is more likely than a name that only looks similar.
    elsewhere = [known for known in SETTINGS if known.rpartition(".")[2] == path.rpartition(".")[2]]
    return _did_you_mean("expected a known setting", path, elsewhere or list(SETTINGS))


def _did_you_mean(what: str, name: str, known: list[str]) -> str:
    near = known if len(known) == 1 else difflib.get_close_matches(name, known, 1)
    return f"{what}, did you mean {near[0]}?" if near else f"{what}; see docs/reference/settings.md"


def _shown(given: object) -> str:
    shown = repr(given)
    return shown if len(shown) <= 120 else shown[:117] + "..."
