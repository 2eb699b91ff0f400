"""Answers of the HTTP door other than pages."""

from __future__ import annotations

import json
from collections.abc import Mapping
from http import HTTPStatus

from starlette.responses import Response

from fairlead.errors import FairleadError
from fairlead.wire.statuses import status_of


def as_json(status: int, body: Mapping[str, object], headers: Mapping[str, str] | None = None) -> Response:
    return Response(json.dumps(body) + "\n", status, headers, "application/json")


def problem(status: int, code: str, message: str, headers: Mapping[str, str] | None = None) -> Response:
    return as_json(status, {"error": {"code": code, "message": message}}, headers)


def refusal(error: FairleadError) -> Response:
    status = status_of(error).http
    headers = {"WWW-Authenticate": "Bearer"} if status == HTTPStatus.UNAUTHORIZED else None
    return problem(status, error.code, error.message, headers)


def written_out(answer: Response) -> bytes:
    """The last answer on a connection, for a client that has sent no request."""
    status = HTTPStatus(answer.status_code)
    headers = [*answer.raw_headers, (b"cache-control", b"no-store"), (b"connection", b"close")]
    lines = [b"HTTP/1.1 %d %s" % (status, status.phrase.encode()), *(b"%s: %s" % pair for pair in headers)]
    return b"\r\n".join([*lines, b"", bytes(answer.body)])
