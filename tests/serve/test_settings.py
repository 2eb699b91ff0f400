"""Settings from a file, the environment and flags."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fairlead import HookSettings, Settings
from fairlead.config import LimitSettings, RedactSettings, ServerSettings
from fairlead.config.load import SETTINGS, load_redaction, load_settings
from fairlead.config.server import listens_on_loopback
from fairlead.errors import SettingInvalid


def load(
    toml: str = "", environ: Mapping[str, str] | None = None, *, tmp_path: Path | None = None, **flags: object
) -> ServerSettings:
    file = None
    if toml:
        assert tmp_path is not None
        file = tmp_path / "fairlead.toml"
        file.write_text(toml)
    return load_settings(
        file,
        environ or {},
        {"data": "d", **{name.replace("__", "."): value for name, value in flags.items()}},
    )


def complaints(error: SettingInvalid) -> list[str]:
    return [error.message, *getattr(error, "__notes__", [])]


def test_without_any_the_defaults_are_those_of_the_classes() -> None:
    assert load() == ServerSettings(data=Path("d"))
    assert load().engine() == Settings(checkpoint_dir=f"{Path('d').absolute()}.checkpoints")
    assert load().addresses() == {
        "resp": "127.0.0.1:5554",
        "flight": "127.0.0.1:5556",
        "grpc": "127.0.0.1:5555",
        "http": "127.0.0.1:5557",
    }


def test_a_flag_beats_the_environment_which_beats_the_file(tmp_path: Path) -> None:
    toml = 'flight = "127.0.0.1:1"\ngrpc = "127.0.0.1:1"\nhttp = "127.0.0.1:1"\n'
    environ = {"FAIRLEAD_GRPC": "127.0.0.1:2", "FAIRLEAD_HTTP": "127.0.0.1:2"}
    loaded = load(toml, environ, tmp_path=tmp_path, http="127.0.0.1:3")
    assert (loaded.flight, loaded.grpc, loaded.http) == ("127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3")


def test_the_file_may_be_named_by_the_environment_and_a_flag_beats_that(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('durability = "os"')
    (tmp_path / "b.toml").write_text('durability = "fsync"')
    environ = {"FAIRLEAD_CONFIG": str(tmp_path / "a.toml"), "FAIRLEAD_DATA": "d"}
    assert load_settings(None, environ, {}).durability == "os"
    assert load_settings(tmp_path / "b.toml", environ, {}).durability == "fsync"


@pytest.mark.parametrize("path", SETTINGS)
def test_every_setting_can_be_given_in_a_file_and_in_the_environment(path: str, tmp_path: Path) -> None:
    setting = SETTINGS[path]
    other = {
        "durability": "os",
        "log.level": "debug",
        "log.format": "json",
        "insecure_public": True,
        "data": "else",
        "lua.confinement": "require",
        "auth.mode": "keys",
        "resp_socket": "/a",
        "tls.cert": "/a",
        "tls.key": "/a",
        "tls.client_ca": "/a",
        "store.checkpoint_dir": "/a",
        "redact.headers": "x-mine, x-other-*",
        "redact.json_paths": "$.a, $..b",
    }.get(path)
    if other is None:
        other = 77 if setting.hint is int else "127.0.0.1:77"
    table, _, name = path.rpartition(".")
    written = str(other).lower() if isinstance(other, bool | int) else f'"{other}"'
    (tmp_path / "all.toml").write_text((f"[{table}]\n" if table else "") + f"{name} = {written}\n")
    data = {} if path == "data" else {"data": "d"}
    if table == "tls":
        data |= {partner: "/b" for partner in ("tls.cert", "tls.key") if partner != path}
    for loaded in (
        load_settings(tmp_path / "all.toml", {}, data),
        load_settings(None, {setting.variable: str(other)}, data),
    ):
        value: Any = loaded
        for part in path.split("."):
            value = getattr(value, part)
        assert value == (
            Path("else") if path == "data" else tuple(str(other).split(", ")) if table == "redact" else other
        )
        assert value != setting.default


def test_names_may_be_a_list_in_a_file_and_one_that_is_none_is_refused(tmp_path: Path) -> None:
    assert load(
        '[redact]\nheaders = ["x-a", "x-b*"]\njson_paths = []\n', tmp_path=tmp_path
    ).redact.headers == ("x-a", "x-b*")
    for wrong in (
        'headers = ["a*b"]',
        'json_paths = ["card"]',
        "headers = 7",
        "headers = [7]",
        f"json_paths = {['$.a'] * 101}",
    ):
        with pytest.raises(SettingInvalid, match=r"redact\.(headers|json_paths)"):
            load(f"[redact]\n{wrong}\n", tmp_path=tmp_path)


def test_what_is_redacted_without_a_server_is_what_a_server_there_would_redact(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(
        'grpc = "0.0.0.0:1"\n[redact]\nheaders = ["x-a"]\njson_paths = ["$.a"]\n'
    )
    assert load_redaction({}) == RedactSettings()
    environ = {
        "FAIRLEAD_CONFIG": str(tmp_path / "a.toml"),
        "FAIRLEAD_REDACT_JSON_PATHS": "$.b",
        "FAIRLEAD_NONSENSE": "x",
    }
    assert load_redaction(environ) == RedactSettings(("x-a",), ("$.b",))
    with pytest.raises(SettingInvalid, match=r"FAIRLEAD_REDACT_JSON_PATHS: redact\.json_paths"):
        load_redaction({"FAIRLEAD_REDACT_JSON_PATHS": "card"})


def test_no_two_settings_share_a_variable() -> None:
    assert len({setting.variable for setting in SETTINGS.values()}) == len(SETTINGS)


def test_the_engine_gets_its_part(tmp_path: Path) -> None:
    loaded = load("[store]\nread_ahead_rows = 10\n[lua]\nkill_after_ms = 7\n", tmp_path=tmp_path)
    expected = Settings(
        read_ahead_rows=10,
        lua=HookSettings(kill_after_ms=7),
        checkpoint_dir=f"{Path('d').absolute()}.checkpoints",
    )
    assert loaded.engine() == expected
    assert load(store__checkpoint_dir="/backups").engine().checkpoint_dir == "/backups"
    with pytest.raises(SettingInvalid, match=r"store\.checkpoint_dir|checkpoint_dir"):
        load(store__checkpoint_dir="backups")


@pytest.mark.parametrize(
    ("path", "given", "value"),
    [
        ("limits.drain_grace_ms", "30s", 30_000),
        ("limits.drain_grace_ms", "1m30s", 90_000),
        ("limits.drain_grace_ms", "250", 250),
        ("limits.drain_grace_ms", 0, 0),
        ("lua.circuit_breaker_cooldown_ms", "1h", 3_600_000),
        ("store.body_cache_bytes", "64MiB", 64 << 20),
        ("store.body_cache_bytes", "1.5 GiB", 3 << 29),
        ("store.body_cache_bytes", "64MB", 64_000_000),
        ("store.body_cache_bytes", "10kB", 10_000),
        ("store.body_cache_bytes", "4096", 4096),
        ("limits.max_calls", "12", 12),
        ("insecure_public", "1", True),
        ("insecure_public", "False", False),
        ("flight", "[::1]:0", "[::1]:0"),
        ("flight", "localhost:5556", "localhost:5556"),
        ("flight", "off", "off"),
        ("tracing.service_name", "", ""),
    ],
)
def test_a_value_is_read_in_the_forms_people_write(path: str, given: object, value: object) -> None:
    read = SETTINGS[path].read(given)
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize(
    ("path", "given", "expected"),
    [
        ("limits.max_calls", 0, "a whole number of at least 1"),
        ("limits.max_calls", "many", "a whole number"),
        ("limits.max_calls", True, "a whole number"),
        ("limits.max_calls", 1.5, "a whole number"),
        ("limits.max_calls", "64MiB", "a whole number"),
        ("limits.drain_grace_ms", -1, "a whole number of at least 0"),
        ("limits.drain_grace_ms", "soon", 'a number of milliseconds or a duration such as "30s"'),
        ("limits.drain_grace_ms", 1.5, 'a number of milliseconds or a duration such as "30s"'),
        ("lua.kill_after_ms", 0, "a whole number of at least 1"),
        ("store.body_cache_bytes", "64 apples", 'a number of bytes or a size such as "64MiB"'),
        ("store.body_cache_bytes", "-1", "a whole number from 0 to"),
        ("store.body_cache_bytes", ["x"], 'a number of bytes or a size such as "64MiB"'),
        ("insecure_public", "perhaps", "true or false"),
        ("insecure_public", 1, "true or false"),
        ("durability", "paper", '"fsync" or "os"'),
        ("log.level", 3, '"debug" or "info" or "warning" or "error"'),
        ("flight", "5556", "host:port"),
        ("flight", ":5556", "host:port"),
        ("flight", "127.0.0.1:65536", "host:port"),
        ("flight", "http://127.0.0.1:1", "host:port"),
        ("flight", "::1:5556", "host:port"),
        ("flight", 5556, "text"),
        ("data", "", "a path"),
        ("tracing.service_name", 3, "text"),
    ],
)
def test_a_value_that_is_not_what_it_must_be_is_refused_by_name(
    path: str, given: object, expected: str
) -> None:
    with pytest.raises(SettingInvalid) as refused:
        load_settings(None, {}, {"data": "d", path: given})
    assert refused.value.path == path
    assert refused.value.what.startswith(f"expected {expected}")
    assert refused.value.what.endswith(f"got {given!r}")


def test_everything_wrong_is_said_at_once_with_where_it_stands(tmp_path: Path) -> None:
    toml = 'durabilty = "os"\n\n[lua]\nkill_after = 3\n  default_timeout_ms = "soon"\n[limits]\nkill_after_ms = 3\n[nonsense]\nx = 1\n'
    environ = {"FAIRLEAD_LIMITS_MAX_CALS": "3", "FAIRLEAD_HTTP": "nowhere", "HOME": "/"}
    with pytest.raises(SettingInvalid) as refused:
        load(toml, environ, tmp_path=tmp_path, log__level="loud")
    file = tmp_path / "fairlead.toml"
    assert complaints(refused.value) == [
        "environment: FAIRLEAD_LIMITS_MAX_CALS: expected a known variable, did you mean FAIRLEAD_LIMITS_MAX_CALLS?",
        f"{file}:1: durabilty: expected a known setting, did you mean durability?",
        f"{file}:4: lua.kill_after: expected a known setting, did you mean lua.kill_after_ms?",
        f"{file}:5: lua.default_timeout_ms: expected a number of milliseconds or a duration such as \"30s\", got 'soon'",
        f"{file}:7: limits.kill_after_ms: expected a known setting, did you mean lua.kill_after_ms?",
        f"{file}:9: nonsense.x: expected a known setting; see docs/reference/settings.md",
        "FAIRLEAD_HTTP: http: expected host:port, such as 127.0.0.1:5554 (port 0: any free one), or \"off\", got 'nowhere'",
        'command line: log.level: expected "debug" or "info" or "warning" or "error", got \'loud\'',
    ]


def test_a_bad_value_in_the_file_is_refused_although_a_flag_replaces_it(tmp_path: Path) -> None:
    with pytest.raises(SettingInvalid, match=r"fairlead\.toml:1: durability"):
        load('durability = "paper"', tmp_path=tmp_path, durability="os")


@pytest.mark.parametrize(
    ("toml", "what"),
    [
        ("a = = b", "expected TOML in UTF-8: .*line 1"),
        ("limits = 3", r"1: limits: expected a table \[limits\] of settings, got a value"),
        ("[flight]\nport = 3", "2: flight.port: expected a known setting, did you mean flight?"),
        ("[limits.max_calls]\nx = 3", "2: limits.max_calls.x: expected a known setting"),
        (
            '"lua".default_timeout = 3',
            "1: lua.default_timeout: expected a known setting, did you mean lua.default_timeout_ms?",
        ),
    ],
)
def test_a_file_of_the_wrong_shape_is_refused(toml: str, what: str, tmp_path: Path) -> None:
    with pytest.raises(SettingInvalid, match=what):
        load(toml, tmp_path=tmp_path)


def test_an_empty_table_is_fine(tmp_path: Path) -> None:
    assert load("[lua]\n[limits]\n", tmp_path=tmp_path) == load()


def test_a_file_that_was_asked_for_and_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(
        SettingInvalid,
        match=r"none\.toml: settings file: expected a file that can be read, got: No such file",
    ):
        load_settings(tmp_path / "none.toml", {}, {"data": "d"})


def test_the_data_directory_must_be_given() -> None:
    with pytest.raises(SettingInvalid, match="data: expected a directory; give --data DIR"):
        load_settings(None, {}, {})


def test_variables_of_clients_and_tests_are_left_alone() -> None:
    names = (
        "FAIRLEAD_ADDR",
        "FAIRLEAD_API_KEY",
        "FAIRLEAD_API_KEY_FILE",
        "FAIRLEAD_CLIENT_TLS_CA",
        "FAIRLEAD_SIM_FIRST",
        "OTHER",
    )
    assert load("", dict.fromkeys(names, "x")) == load()


PUBLIC = pytest.mark.parametrize("address", ["0.0.0.0:1", "[::]:1", "192.168.1.4:1", "example.org:1"])
TLS = {"tls.cert": "/server.pem", "tls.key": "/server.key"}


@PUBLIC
def test_a_public_address_is_refused_unless_insisted_on(address: str) -> None:
    with pytest.raises(SettingInvalid, match="flight: expected a loopback address, or TLS and keys"):
        load(flight=address)
    with pytest.raises(SettingInvalid, match="flight: expected a loopback address, or TLS and keys"):
        ServerSettings(data=Path("d"), flight=address)  # type: ignore[arg-type]
    assert load(flight=address, insecure_public=True).flight == address


@PUBLIC
@pytest.mark.parametrize(
    ("given", "missing"),
    [
        ({}, "with no TLS .* and no keys"),
        (TLS, r"with no keys \(set auth.mode"),
        ({"auth.mode": "keys"}, r"with no TLS \(set tls.cert and tls.key[^)]*\);"),
    ],
)
def test_a_public_address_needs_tls_and_somebody_who_is_known(
    address: str, given: dict[str, object], missing: str
) -> None:
    with pytest.raises(SettingInvalid, match=missing):
        load(http=address, **given)


@PUBLIC
@pytest.mark.parametrize("known_by", [{"auth.mode": "keys"}, {"tls.client_ca": "/ca.pem"}])
def test_a_public_address_is_fine_with_tls_and_keys_or_client_certificates(
    address: str, known_by: dict[str, object]
) -> None:
    assert load(grpc=address, **TLS, **known_by).grpc == address


@pytest.mark.parametrize("name", ["tls.cert", "tls.key", "tls.client_ca"])
def test_a_relative_path_of_a_certificate_is_refused(name: str) -> None:
    with pytest.raises(SettingInvalid, match=rf"{name}: expected an absolute path, got 'certs/server.pem'"):
        load(**{name: "certs/server.pem"})


@pytest.mark.parametrize(
    ("given", "missing"),
    [
        ("tls.cert", "tls.key: expected the private key"),
        ("tls.key", "because tls.key is set"),
        ("tls.client_ca", "tls.cert: "),
    ],
)
def test_half_of_tls_is_refused(given: str, missing: str) -> None:
    with pytest.raises(SettingInvalid, match=missing):
        load(**{given: "/file.pem"})


def test_all_doors_off_is_refused() -> None:
    with pytest.raises(SettingInvalid, match="expected at least one door to be open"):
        load(resp="off", flight="off", grpc="off", http="off")


def test_a_loopback_address_is_known_by_its_host() -> None:
    assert [
        listens_on_loopback(a) for a in ("127.9.9.9:1", "[::1]:1", "localhost:1", "[::]:1", "local.host:1")
    ] == [
        True,
        True,
        True,
        False,
        False,
    ]


def test_limits_given_in_process_are_checked_too() -> None:
    with pytest.raises(Exception, match=r"limits\.max_channels"):
        LimitSettings(max_channels=0)
