"""Plays runs on the `fairlead` that it imports: reads seeds from standard input, and writes transcripts to standard output
as pickles.
"""

from __future__ import annotations

import os
import pickle
import sys

from tests.differential.lend import lend_names


def main() -> None:
    lend_names()
    from tests.differential.player import play

    transcripts = os.fdopen(os.dup(1), "wb")
    # Other output must not get between them.
    os.dup2(2, 1)
    for line in sys.stdin:
        pickle.dump(play(int(line)), transcripts)
        transcripts.flush()


if __name__ == "__main__":
    main()
