"""Checks whether the gRPC door can open here. Its packages are a separate extra, because the generated
classes require certain versions of gRPC and protobuf, and other programs in the same environment may need
other versions.
"""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module

from fairlead.config import ServerSettings
from fairlead.config.load import LoadedSettings
from fairlead.config.server import Address
from fairlead.errors import SettingInvalid

INSTALL = "pip install 'fairlead[fila]'"
_NEEDED = (
    "fairlead.server.fila.v1.service_pb2_grpc",
    "grpc_health.v1.health",
    "grpc_reflection.v1alpha.reflection",
)


def why_unusable() -> str:
    """The reason why the installed packages cannot serve the door; "" if they can. Imports the packages."""
    try:
        for module in _NEEDED:
            import_module(module)
    except Exception as refused:
        # Any exception, not only ImportError: the generated classes refuse packages that are older than their
        # compiler, each with an error of its own.
        return " ".join(str(refused).split())
    return ""


def settings_without(loaded: LoadedSettings, why: str) -> ServerSettings:
    """The settings of a server whose gRPC door cannot open for the reason `why`. The other doors open.

    Raises `SettingInvalid` if a setting asks for the gRPC door, or if no other door would be open.
    """
    settings, source = loaded.settings, loaded.sources.get("grpc")
    if settings.grpc == "off":
        return settings
    if source is not None or list(settings.addresses()) == ["grpc"]:
        raise SettingInvalid(
            source or "settings", "grpc", f'expected "off", or the packages of this door ({why}): {INSTALL}'
        )
    return replace(settings, grpc=Address("off"))
