from __future__ import annotations

import threading

from fairlead.hooks.fifo_lock import FifoLock


def test_the_thread_that_waited_longest_is_next() -> None:
    fifo_lock, came_in = FifoLock(), []

    def pass_through(name: int) -> None:
        with fifo_lock:
            came_in.append(name)

    threads = []
    with fifo_lock:
        for name in range(5):
            threads.append(threading.Thread(target=pass_through, args=(name,)))
            threads[-1].start()
            while len(fifo_lock._waiting) <= name:
                threads[-1].join(0.001)
        assert came_in == []
    for thread in threads:
        thread.join()
    assert came_in == [0, 1, 2, 3, 4]
    with fifo_lock:
        pass
