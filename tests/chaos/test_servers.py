"""The servers of the suite are gone when it is, however it ends."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import pytest

from chaos.fleet import TESTS
from processes import Processes
from waiting import wait_until

pytestmark = pytest.mark.skipif(os.name != "posix", reason="the servers are stopped by a shell")


@pytest.mark.parametrize("how", ["by an interrupt", "by a kill"])
def test_nothing_is_left(processes: Processes, pytestconfig: pytest.Config, how: str) -> None:
    """No server and no folder is left, whether the suite is interrupted or killed."""
    child = processes.script(
        """
        import signal
        import sys
        import threading

        from chaos.servers import Servers

        # A test run in the background of a shell, say, has interrupts ignored, and so would its children.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with Servers(sys.argv[1]) as servers:
            [(data,)] = servers.execute("SHOW data_directory")
            print(data, flush=True)
            threading.Event().wait()
        """,
        str(pytestconfig.getoption("--pg")),
        env={"PYTHONPATH": str(TESTS)},
    )
    child.wait_for_output("data0", timeout=60)
    data = Path(child.output().strip())
    port = int(data.joinpath("postmaster.pid").read_text().splitlines()[3])
    if how == "by a kill":
        child.kill()
    else:
        child.popen.send_signal(signal.SIGINT)
        child.wait()
    wait_until(lambda: not data.parent.exists(), timeout=30, what="the folder being removed")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))
