"""The committed classes come from the committed .proto text, and both are Fila's protocol to the byte."""

from __future__ import annotations

import ast
import importlib.util
import re
from pathlib import Path

import pytest

from fairlead.server.fila.proto.generate import GENERATED, generate

MODULES = ("messages_pb2.py", "service_pb2.py", "admin_pb2.py")


def descriptor_in(module: Path) -> bytes:
    """What a generated module would register, read without importing it: a process can register each file
    only once.
    """
    found = re.search(r"AddSerializedFile\((b'.*')\)", module.read_text())
    assert found is not None
    raw = ast.literal_eval(found[1])
    assert isinstance(raw, bytes)
    return raw


@pytest.fixture(scope="module")
def regenerated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    into = tmp_path_factory.mktemp("fila-v1")
    generate(into)
    return into


@pytest.mark.parametrize("module", MODULES)
def test_the_committed_classes_are_what_the_proto_text_gives(regenerated: Path, module: str) -> None:
    assert descriptor_in(GENERATED / module) == descriptor_in(regenerated / module)


@pytest.mark.parametrize(
    "module",
    ["service_pb2_grpc.py", "admin_pb2_grpc.py", "service_pb2.pyi", "admin_pb2.pyi", "messages_pb2.pyi"],
)
def test_so_are_the_stubs_and_services(regenerated: Path, module: str) -> None:
    assert _without_versions(GENERATED / module) == _without_versions(regenerated / module)


def _without_versions(module: Path) -> str:
    return re.sub(r"GRPC_GENERATED_VERSION = .*", "", module.read_text())


@pytest.mark.parametrize("module", MODULES)
def test_the_protocol_is_that_of_the_published_client(module: str) -> None:
    package = importlib.util.find_spec("fila.v1")
    assert package is not None
    assert package.origin is not None
    assert descriptor_in(GENERATED / module) == descriptor_in(Path(package.origin).parent / module)
