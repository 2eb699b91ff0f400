"""Which engine the tests run on. The module goes with the old engine."""

from __future__ import annotations

from fairlead.which_engine import is_new_engine as is_new_engine
