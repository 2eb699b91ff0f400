"""Diagnosis of a failed connection. gRPC often reports only that a socket was closed.

A separate connection is tried with Python's TLS, which reports more. The causes it finds do not pass by
themselves: a wrong authority stays wrong. So the caller need not wait for more attempts.
"""

from __future__ import annotations

import socket
import ssl
import time
from typing import NamedTuple

from fairlead.client.tls import Tls, TlsFiles

_CONNECT_S = 1.0
_SHAKE_S = 3.0
_LEAVING_S = 0.1

#: OpenSSL's numbers of certificate errors. They are stable, its texts are not.
_NOT_YET = 9
_EXPIRED = 10
_NAMES = (62, 64)

SPEAKS_TLS = (
    "the server speaks TLS and this client does not; give tls= the path of its authority's certificate, or True for those the system trusts"
    " (on the command line --tls-ca)"
)
_SPEAKS_PLAINLY = "the server does not speak TLS and this client does; leave tls= (--tls-ca) out, or set tls.cert and tls.key at the server"
_WANTS_CERTIFICATE = (
    "the server asks for a client certificate; give fairlead.Tls(ca=, cert=, key=) (--tls-cert and --tls-key)"
)


class Diagnosis(NamedTuple):
    """`hopeless`: the cause of the failure, "" if another attempt may help. `silent`: the server did not
    answer, and another diagnosis costs time.
    """

    hopeless: str = ""
    silent: bool = False


def diagnose(host: str, port: int, tls: Tls | None, files: TlsFiles | None) -> Diagnosis:
    try:
        connection = socket.create_connection((host, port), timeout=_CONNECT_S)
    except (OSError, UnicodeError) as error:
        return Diagnosis(silent=isinstance(error, TimeoutError))
    with connection:
        connection.settimeout(_SHAKE_S)
        try:
            if tls is None or files is None:
                return Diagnosis(SPEAKS_TLS if answers_in_tls(connection) else "")
            return Diagnosis(_wrong_with(connection, host, port, tls, files))
        except TimeoutError:
            return Diagnosis(silent=True)


def trusting_context() -> ssl.SSLContext:
    """A context that accepts every certificate. Use it only to test whether a server speaks TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    return context


def answers_in_tls(connection: socket.socket) -> bool:
    try:
        with trusting_context().wrap_socket(connection):
            return True
    except ssl.SSLError as error:
        # A server that refuses the handshake with a TLS alert does speak TLS.
        return "ALERT" in (error.reason or "")
    except TimeoutError:
        raise
    except OSError:
        return False


def _wrong_with(connection: socket.socket, host: str, port: int, tls: Tls, files: TlsFiles) -> str:
    name = tls.server_name or host
    try:
        with files.context.wrap_socket(connection, server_hostname=name) as secure:
            if not _ends_at_once(secure):
                return ""
    except ssl.SSLError as error:
        if "ALERT" not in (error.reason or ""):
            return explain(error, name, tls)
    except TimeoutError:
        raise
    except OSError:
        return ""
    # In TLS 1.3 the client's handshake ends before the server has seen the certificate, and a server that
    # refuses it, or is stopping, just closes. In TLS 1.2 a successful handshake shows that the certificate
    # was not the reason.
    return say_refused(tls) if _is_refused_in_older_tls(host, port, name, files) else ""


def explain(error: ssl.SSLError, name: str, tls: Tls) -> str:
    """The cause of a failed handshake, or of a refusal right after it; "" if another attempt may help."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _distrust(error, name, tls)
    if error.reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG"):
        return _SPEAKS_PLAINLY
    return say_refused(tls) if "ALERT" in (error.reason or "") else ""


def _ends_at_once(secure: ssl.SSLSocket) -> bool:
    """Whether the server closes right after the handshake. A gRPC server otherwise sends first."""
    try:
        return secure.version() == "TLSv1.3" and not secure.recv(1)
    except (ssl.SSLError, ConnectionResetError):
        return True


def _is_refused_in_older_tls(host: str, port: int, name: str, files: TlsFiles) -> bool:
    # By then a server that is stopping, or changing its certificates, will have finished.
    time.sleep(_LEAVING_S)
    newest = files.context.maximum_version
    files.context.maximum_version = ssl.TLSVersion.TLSv1_2
    try:
        with socket.create_connection((host, port), timeout=_CONNECT_S) as connection:
            connection.settimeout(_SHAKE_S)
            with files.context.wrap_socket(connection, server_hostname=name):
                return False
    except (ssl.SSLError, ConnectionResetError):
        return True
    except OSError:
        return False
    finally:
        files.context.maximum_version = newest


def say_refused(tls: Tls) -> str:
    if tls.cert is None:
        return _WANTS_CERTIFICATE
    return f"the server does not accept the client certificate {tls.cert}; is it expired, or signed by another authority than tls.client_ca there?"


def _distrust(error: ssl.SSLCertVerificationError, name: str, tls: Tls) -> str:
    if error.verify_code == _EXPIRED:
        return "the certificate of the server, or of its authority, has expired; have it renewed there"
    if error.verify_code == _NOT_YET:
        return "the certificate of the server is not valid yet; are the clocks right?"
    if error.verify_code in _NAMES:
        return f"the certificate of the server is not for {name!r}; connect to a name that it has, or say it with fairlead.Tls(server_name=)"
    whom = (
        f"not signed by the authority in {tls.ca}"
        if tls.ca is not None
        else "not signed by an authority that the system trusts"
    )
    return f"the certificate of the server is {whom} ({error.verify_message}); give tls= (--tls-ca) the certificate of the server's authority"
