"""The worker: handlers in slots, and a fixed number of threads and connections beside them.

============ =================================================== ===============
thread       what it does                                        its connection
============ =================================================== ===============
claiming     takes jobs for free slots, and ahead of them        reserved
settling     writes the outcomes of what has ended               reserved
heartbeat    renews the leases of all held jobs                  reserved
upkeep       reaps, deletes what retention lets go               reserved
watchdog     tells attempts that are out of time to stop         none
slots        run handlers: a thread each for ``def``, one event  the user's pool
             loop for all ``async def``, a child process
             where its kind asks for one
============ =================================================== ===============
"""

from .worker import Worker

__all__ = ["Worker"]
