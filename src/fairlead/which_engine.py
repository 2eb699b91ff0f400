"""Which engine `fairlead.open` opens: today's, or with TEST_ENGINE=new the one that will replace it.

For our own tests and the processes that they start; the module goes with the old engine.
"""

from __future__ import annotations

import os


def is_new_engine() -> bool:
    return os.environ.get("TEST_ENGINE") == "new"
