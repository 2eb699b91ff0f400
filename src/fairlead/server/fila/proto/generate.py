"""Generate the classes of fila.v1: `python -m fairlead.server.fila.proto.generate [FOLDER]`.

Needs grpcio-tools. The file names inside the descriptors stay those of Fila (`fila/v1/...`), so that a
program can import a published Fila client next to this server: Protocol Buffers accepts the same file twice,
but not two files that differ.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

SOURCES = Path(__file__).parent
GENERATED = SOURCES.parent / "v1"
_FILES = ("fila/v1/messages.proto", "fila/v1/service.proto", "fila/v1/admin.proto")


def generate(into: Path) -> None:
    """Write the modules and their stubs into an existing folder."""
    with tempfile.TemporaryDirectory() as scratch:
        outputs = [f"--{kind}_out={scratch}" for kind in ("python", "pyi", "grpc_python")]
        subprocess.run(
            [sys.executable, "-m", "grpc_tools.protoc", f"--proto_path={SOURCES}", *outputs, *_FILES],
            check=True,
        )
        for made in sorted((Path(scratch) / "fila" / "v1").iterdir()):
            # protoc uses the path of a file as its Python package.
            text = made.read_text().replace("from fila.v1 import", "from fairlead.server.fila.v1 import")
            (into / made.name).write_text(text)


if __name__ == "__main__":
    generate(Path(sys.argv[1]) if len(sys.argv) > 1 else GENERATED)
