"""The status of each error outside Python: a gRPC status, an HTTP status and an exit code of the command
line.

One table serves all doors; a test asserts that it has every error. Exit code 2 is the shell's code for wrong
usage, and 1 is for errors that are not in the table.
"""

from __future__ import annotations

from typing import NamedTuple

from fairlead import errors
from fairlead.errors import FairleadError


class Status(NamedTuple):
    grpc: str
    http: int
    exit_code: int


_REJECTED = Status("INVALID_ARGUMENT", 400, 3)
_NOT_FOUND = Status("NOT_FOUND", 404, 4)
_EXISTS = Status("ALREADY_EXISTS", 409, 5)
_PRECONDITION = Status("FAILED_PRECONDITION", 409, 6)
_UNAVAILABLE = Status("UNAVAILABLE", 503, 7)
_EXHAUSTED = Status("RESOURCE_EXHAUSTED", 429, 8)
_USER_CODE = Status("INVALID_ARGUMENT", 422, 9)
_UNAUTHENTICATED = Status("UNAUTHENTICATED", 401, 11)
_FORBIDDEN = Status("PERMISSION_DENIED", 403, 12)
_BROKEN = Status("INTERNAL", 500, 10)

STATUSES: dict[type[FairleadError], Status] = {
    errors.InvalidRequest: _REJECTED,
    errors.AmbiguousId: _REJECTED,
    errors.NotADeadLetterQueue: _REJECTED,
    errors.SettingInvalid: _REJECTED,
    errors.RequestExpired: _REJECTED,
    errors.SessionExpired: _REJECTED,
    errors.QueueNotFound: _NOT_FOUND,
    errors.MessageNotFound: _NOT_FOUND,
    errors.LostLease: _NOT_FOUND,
    errors.ConfigKeyNotFound: _NOT_FOUND,
    errors.RunbookNotFound: _NOT_FOUND,
    errors.ExternalQueue: _PRECONDITION,
    errors.ItemInvalid: _REJECTED,
    errors.RowsRefused: _REJECTED,
    errors.KeyNotFound: _NOT_FOUND,
    errors.Unauthenticated: _UNAUTHENTICATED,
    errors.Forbidden: _FORBIDDEN,
    errors.LimitReached: _EXHAUSTED,
    errors.WorkerNotFound: _NOT_FOUND,
    errors.EngineNotInstalled: _PRECONDITION,
    errors.SparkNotReady: _PRECONDITION,
    errors.StagedChunkMissing: _NOT_FOUND,
    errors.StagedQueueGone: _PRECONDITION,
    errors.ConsumerNotFound: _NOT_FOUND,
    errors.StaleConsumer: _PRECONDITION,
    errors.StaleSlice: _PRECONDITION,
    errors.ClaimNotNext: _PRECONDITION,
    errors.ClaimClosed: _PRECONDITION,
    errors.ClaimReleased: _PRECONDITION,
    errors.QueueExists: _EXISTS,
    errors.SourceQueueGone: _PRECONDITION,
    errors.FormatTooNew: _PRECONDITION,
    errors.FormatTooOld: _PRECONDITION,
    errors.ProtocolMismatch: _PRECONDITION,
    errors.BrokerForked: _PRECONDITION,
    errors.ClientForked: _PRECONDITION,
    errors.BrokerClosed: _UNAVAILABLE,
    errors.ClientClosed: _UNAVAILABLE,
    errors.ServerStopping: _UNAVAILABLE,
    errors.AddressUnavailable: _UNAVAILABLE,
    errors.ServerUnreachable: _UNAVAILABLE,
    errors.TlsFailed: _UNAVAILABLE,
    errors.AnswerLost: _UNAVAILABLE,
    errors.StoreLocked: _UNAVAILABLE,
    errors.HookHostUnavailable: _UNAVAILABLE,
    errors.StaleEpoch: _UNAVAILABLE,
    errors.Overloaded: _EXHAUSTED,
    errors.SessionFull: _EXHAUSTED,
    errors.QueueFull: _EXHAUSTED,
    errors.TooManyLanes: _EXHAUSTED,
    errors.StoreFull: _EXHAUSTED,
    errors.HookInvalid: _USER_CODE,
    errors.StepNotLoaded: _USER_CODE,
    errors.RunbookInvalid: _USER_CODE,
    errors.StoreCorrupt: _BROKEN,
    errors.StoreFailed: _BROKEN,
}

_FAMILIES: dict[type[FairleadError], Status] = {
    errors.Rejected: _REJECTED,
    errors.Unavailable: _UNAVAILABLE,
    errors.UserCodeError: _USER_CODE,
    errors.BrokenInvariant: _BROKEN,
}


def status_of(error: BaseException) -> Status:
    """The status of an error. An exception that is not a `FairleadError` is a defect, and has the status of
    one.
    """
    if isinstance(error, FairleadError):
        for kind in type(error).__mro__:
            found = STATUSES.get(kind) or _FAMILIES.get(kind)
            if found is not None:
                return found
    return _BROKEN
