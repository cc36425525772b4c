"""What workers need before their first step, loaded once by the process that they are forked from.

It imports, and plans a few samples in the way that all others begin with: that loads what kernels call, and those that
are compiled already; the others run as Python. It starts no thread, as a lock that one holds while a worker is forked
is never free there; OpenBLAS and jemalloc, which NumPy, SciPy and pyarrow bring in, have some, and see to theirs at a
fork. What is there then is never looked through for garbage, which would write to pages that workers share. Ctrl-C is
for the process that asked for it.
"""

import gc
import signal

gc.disable()
before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # a fork server ignores it once all is imported

import numpy as np  # noqa: E402

import balancer.offline.check  # noqa: E402
import balancer.offline.run  # noqa: E402, F401 (with all that plans and checks)
from balancer.planning.planner import balance  # noqa: E402

balance(np.arange(1, 129), 16, 8, np.arange(128) // 8, method="lpt", placement="any")
gc.freeze()
gc.enable()
signal.signal(signal.SIGINT, before)  # what else a program forks is not to ignore it
