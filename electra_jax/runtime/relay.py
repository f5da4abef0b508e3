"""A relay for the connection to process 0, so that its loss can be reported.

JAX (0.10, 0.11) aborts a process with a page of text as soon as its connection to process 0 closes; nothing can be
registered for that moment. So other processes connect to process 0 through a thread of their own, which keeps their
side of the connection open when the other side closes.
"""

import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Any

_CONNECT_TIMEOUT = 10.0  # seconds
_CHUNK = 1 << 16


class Relay:
    """Listens on a local port, and passes on what is sent to it.

    Attributes:
      address: where it listens, HOST:PORT.
    """

    def __init__(self, target: str, lost: Callable[[], None]):
        """Starts to listen.

        Args:
          target: where to pass connections on to, HOST:PORT.
          lost: called in a thread of its own when the target closes a connection on which it has answered before.
        """
        host, _, port = target.rpartition(":")
        self._target = (host.strip("[]"), int(port))
        self._lost = lost
        self._transparent = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        _start(self._accept)

    def stop(self) -> None:
        """From now on, closed connections are closed on both sides, as without a relay."""
        self._transparent.set()

    def _accept(self) -> None:
        while True:
            client, _ = self._listener.accept()
            _start(self._connect, client)

    def _connect(self, client: socket.socket) -> None:
        try:
            server = socket.create_connection(self._target, _CONNECT_TIMEOUT)
        except OSError:  # process 0 does not listen yet: JAX tries again
            client.close()
            return
        for end in (client, server):
            end.settimeout(None)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client_closed = threading.Event()
        _start(self._pass_requests, client, server, client_closed)
        if self._pass(server, client) and not (client_closed.is_set() or self._transparent.is_set()):
            self._lost()
        _close(client)

    def _pass_requests(self, client: socket.socket, server: socket.socket, client_closed: threading.Event) -> None:
        self._pass(client, server)
        client_closed.set()
        _close(server)

    def _pass(self, source: socket.socket, target: socket.socket) -> bool:
        """Passes on until `source` closes; whether anything came."""
        passed = False
        with contextlib.suppress(OSError):
            while data := source.recv(_CHUNK):
                passed = True
                target.sendall(data)
        return passed


def _close(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()


def _start(function: Callable[..., None], *args: Any) -> None:
    threading.Thread(target=function, args=args, name="relay", daemon=True).start()
