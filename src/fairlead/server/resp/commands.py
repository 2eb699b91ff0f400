"""Commands that are not verbs: the commands that Redis clients send when they connect, and help."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec.structs import astuple

import fairlead
import fairlead.verbs  # fills the table
from fairlead.errors import InvalidRequest, Unauthenticated
from fairlead.request import VERBS, Request, summary_of
from fairlead.server.resp.arguments import usage_of
from fairlead.server.resp.replies import OK, PONG, bulk, value_of
from fairlead.server.resp.streams.commands import COMMANDS as STREAM_COMMANDS
from fairlead.wire.numbered import PACKED, read_place
from fairlead.wire.subscriptions import COMMANDS as SUBSCRIPTION_COMMANDS

if TYPE_CHECKING:
    from fairlead.server.resp.connection import Connection

PREFIX = b"FL."
#: Requests of verbs, by the name of the command.
REQUESTS: dict[bytes, type[Request[Any]]] = {
    PREFIX + verb.name.upper().encode(): verb.request for verb in VERBS.values()
}

#: The prefix of a verb's command that gives the request its number in a session.
ONCE = b"FL.ONCE"
_ONCE_USAGE = "FL.ONCE session number arrived FL.<VERB> ..., with whole numbers from 0 on"
#: The number of words before the first word that may be large: with a place in plain words, and with a packed
#: place.
_ONCE_WORDS, _PACKED_ONCE_WORDS = 5, 2


class Place(NamedTuple):
    """The place of a request in a session, in the form of the fields of `Caller`."""

    session: str | None = None
    number: int = 0
    arrived: int = 0


NO_PLACE = Place()

#: Documented commands and their requests: the verbs, and the commands of subscriptions.
_DOCUMENTED: dict[bytes, type[Request[Any]]] = REQUESTS | SUBSCRIPTION_COMMANDS

_NO_TRANSACTIONS = (
    "commands that fairlead has; MULTI is not needed, because commands that arrive together are one write, and"
    " FL.EXCHANGE carries out several requests as one"
)


def count_heads(words: list[bytes]) -> int:
    """The number of words that must be read before the request of the command can be parsed."""
    if words[0].upper() != ONCE:
        return 1
    return _PACKED_ONCE_WORDS if words[1:2] and words[1][:1] == PACKED else _ONCE_WORDS


def read_once(words: list[bytes]) -> tuple[Place, list[bytes]]:
    """The place of a request in its session, and the command of the request."""
    if len(words) == 3 and words[1][:1] == PACKED:
        *packed, name = astuple(read_place(words[1]))
        place, command = Place(*packed), [name.encode(), words[2]]
    else:
        place, command = _place_of(words[1:4]), words[4:]
    if not command or command[0].upper() not in REQUESTS:
        raise InvalidRequest("command", _ONCE_USAGE, _shown(b" ".join(words[:5])))
    return place, command


def _place_of(words: list[bytes]) -> Place:
    session, number, arrived = words if len(words) == 3 else (b"", b"", b"")
    if not (number.isdigit() and arrived.isdigit() and len(number) < 20 and len(arrived) < 20):
        raise InvalidRequest("command", _ONCE_USAGE, _shown(b" ".join(words)))
    try:
        return Place(session.decode(), int(number), int(arrived))
    except UnicodeDecodeError:
        raise InvalidRequest("session", "text in UTF-8", _shown(session)) from None


def run_command(connection: Connection, name: bytes, words: list[bytes]) -> bytes:
    """Return the reply. `name` is in upper case; `words` are the words after the name."""
    found = _COMMANDS.get(name)
    if found is None:
        raise InvalidRequest(
            "command",
            "FL.<VERB>, see FL.HELP, a command of Redis Streams, or one of a connection",
            _shown(name),
        )
    run, needs_key = found
    if needs_key and connection.caller is None:
        raise Unauthenticated("send AUTH <key> or HELLO 3 AUTH default <key> first")
    return run(connection, words)


def _ping(connection: Connection, words: list[bytes]) -> bytes:
    return bulk(words[0]) if words else PONG


def _echo(connection: Connection, words: list[bytes]) -> bytes:
    return bulk(_one(words, "ECHO message"))


def _hello(connection: Connection, words: list[bytes]) -> bytes:
    protocol = connection.protocol
    if words:
        if words[0] not in (b"2", b"3"):
            raise InvalidRequest("protocol", "2 or 3", _shown(words[0]))
        protocol = int(words[0])
    if protocol == 2 and connection.subscriptions:
        raise InvalidRequest("protocol", "3 while there are subscriptions: send FL.CANCEL first", protocol)
    rest = words[1:]
    while rest:
        option, count = rest[0].upper(), {b"AUTH": 2, b"SETNAME": 1}.get(rest[0].upper(), -1)
        if len(rest) <= count or count < 0:
            raise InvalidRequest("command", "HELLO 3 [AUTH user key] [SETNAME name]", _shown(rest[0]))
        if option == b"AUTH":
            connection.authenticate(rest[2])
        else:
            connection.client_name = rest[1][:200]
        rest = rest[count + 1 :]
    if connection.caller is None:
        raise Unauthenticated("the call brought none (HELLO 3 AUTH default <key>)")
    connection.protocol = protocol
    about = {
        "server": "fairlead",
        "version": fairlead.__version__,
        "proto": protocol,
        "id": connection.number,
        "mode": "standalone",
        "role": "master",
        "modules": [],
    }
    if flight := connection.door.flight_address():
        # The address that carries out bulk verbs.
        about["flight"] = flight
    return value_of(about, protocol)


def _auth(connection: Connection, words: list[bytes]) -> bytes:
    """The user name is optional and has no effect, because a key has a name of its own."""
    if not 1 <= len(words) <= 2:
        raise InvalidRequest("command", "AUTH [user] key", f"{len(words)} words")
    connection.authenticate(words[-1])
    return OK


def _client(connection: Connection, words: list[bytes]) -> bytes:
    match words[0].upper() if words else b"":
        case b"ID":
            return b":%d\r\n" % connection.number
        case b"SETNAME":
            connection.client_name = _one(words[1:], "CLIENT SETNAME name")[:200]
            return OK
        case b"GETNAME":
            return bulk(connection.client_name)
        case b"INFO" | b"LIST":
            return bulk(connection.info().encode(errors="replace"))
        case b"SETINFO" | b"NO-EVICT" | b"NO-TOUCH":
            return OK
    expected = "ID, SETNAME, GETNAME, INFO, LIST, SETINFO, NO-EVICT or NO-TOUCH"
    raise InvalidRequest("CLIENT", expected, _shown(words[0]) if words else "nothing")


def _select(connection: Connection, words: list[bytes]) -> bytes:
    if _one(words, "SELECT 0") != b"0":
        raise InvalidRequest("SELECT", "0, there is one database", _shown(words[0]))
    return OK


def _command(connection: Connection, words: list[bytes]) -> bytes:
    names = [name.decode() for name in _DOCUMENTED]
    match words[0].upper() if words else b"":
        case b"COUNT":
            return b":%d\r\n" % (len(names) + len(_COMMANDS) + len(STREAM_COMMANDS))
        case b"DOCS":
            wanted = {word.upper() for word in words[1:]}
            docs = {
                name: {"summary": summary_of(kind), "group": "fairlead", "usage": usage_of(kind)}
                for name, kind in _DOCUMENTED.items()
                if not wanted or name in wanted
            }
            return value_of(docs, connection.protocol)
        case b"LIST":
            return value_of([*names, *_COMMANDS, *STREAM_COMMANDS], connection.protocol)
        case b"" | b"INFO":
            # Redis's description of a command. It lists no keys, because no argument is a key of Redis.
            found = [[name.lower(), -1, [], 0, 0, 0, [], [], [], []] for name in names]
            named = {word.lower().decode(errors="replace") for word in words[1:]}
            return value_of([one for one in found if not named or one[0] in named], connection.protocol)
    raise InvalidRequest("COMMAND", "COUNT, DOCS, LIST or INFO", _shown(words[0]))


def _info(connection: Connection, words: list[bytes]) -> bytes:
    lines = {
        "fairlead_version": fairlead.__version__,
        "redis_mode": "standalone",
        "tcp_port": connection.door.address.rpartition(":")[2],
        "connected_clients": connection.door.connection_count,
        "blocked_clients": connection.door.waiting_count,
    }
    return bulk(b"# Server\r\n" + "".join(f"{name}:{value}\r\n" for name, value in lines.items()).encode())


def _acl(connection: Connection, words: list[bytes]) -> bytes:
    if not words or words[0].upper() != b"WHOAMI" or connection.caller is None:
        raise InvalidRequest("ACL", "WHOAMI", _shown(words[0]) if words else "nothing")
    name = connection.caller.name if connection.caller.key_id is not None else "default"
    return bulk(name.encode(errors="replace"))


def _help(connection: Connection, words: list[bytes]) -> bytes:
    wanted = words[0].upper().removeprefix(PREFIX) if words else b""
    found = [kind for name, kind in _DOCUMENTED.items() if not wanted or name == PREFIX + wanted]
    if not found:
        raise InvalidRequest("verb", "one of " + ", ".join(VERBS), _shown(words[0]))
    lines = [f"{usage_of(kind)}: {' '.join(summary_of(kind).split())}" for kind in found]
    return value_of(lines, connection.protocol)


def _quit(connection: Connection, words: list[bytes]) -> bytes:
    connection.quit()
    return OK


def _reset(connection: Connection, words: list[bytes]) -> bytes:
    connection.reset()
    return b"+RESET\r\n"


def _multi(connection: Connection, words: list[bytes]) -> bytes:
    raise InvalidRequest("command", _NO_TRANSACTIONS, "MULTI, EXEC, DISCARD, WATCH or UNWATCH")


def _one(words: list[bytes], usage: str) -> bytes:
    if len(words) != 1:
        raise InvalidRequest("command", usage, f"{len(words)} words")
    return words[0]


def _shown(word: bytes) -> str:
    return word[:80].decode(errors="replace")


#: Each command with whether it needs an authenticated connection.
_COMMANDS: dict[bytes, tuple[Callable[[Connection, list[bytes]], bytes], bool]] = {
    b"PING": (_ping, False),
    b"HELLO": (_hello, False),
    b"AUTH": (_auth, False),
    b"QUIT": (_quit, False),
    b"RESET": (_reset, False),
    b"ECHO": (_echo, True),
    b"CLIENT": (_client, True),
    b"SELECT": (_select, True),
    b"COMMAND": (_command, True),
    b"INFO": (_info, True),
    b"ACL": (_acl, True),
    b"FL.HELP": (_help, True),
    **dict.fromkeys((b"MULTI", b"EXEC", b"DISCARD", b"WATCH", b"UNWATCH"), (_multi, True)),
}
