"""An error about TLS says what to type, and nothing of Python."""

from __future__ import annotations

import ssl

import pytest

from fairlead.cli.error_output import print_error
from fairlead.cli.global_options import GlobalOptions, set_options
from fairlead.client import diagnosis
from fairlead.client.tls import Tls
from fairlead.errors import TlsFailed


def distrust(code: int) -> str:
    error = ssl.SSLCertVerificationError("distrusted")
    error.verify_code, error.verify_message = code, "self-signed certificate"
    return diagnosis._distrust(error, "localhost", Tls("ca.pem"))


@pytest.mark.parametrize(
    ("what", "said"),
    [
        (diagnosis.SPEAKS_TLS, "give --tls-ca the path of its authority's certificate, or `system`"),
        (diagnosis._SPEAKS_PLAINLY, "leave --tls-ca out, or set tls.cert and tls.key at the server"),
        (diagnosis._WANTS_CERTIFICATE, "client certificate; give --tls-cert and --tls-key"),
        (distrust(62), "is not for 'localhost'; connect to a name that it has"),
        (distrust(18), "(self-signed certificate); give --tls-ca the certificate of the server's authority"),
    ],
)
def test_an_error_about_tls_names_options_and_no_python(
    what: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    set_options(GlobalOptions())
    print_error(TlsFailed("localhost:5554", what))
    printed = capsys.readouterr().err
    assert said in printed
    assert "tls=" not in printed
    assert "fairlead.Tls" not in printed
