"""Ports on this machine, kept for a server from before it starts until it listens."""

from __future__ import annotations

import socket

from lr_sglang.errors import LaunchError

HOST = "127.0.0.1"
ANY = "0.0.0.0"  # all addresses, as a server's own processes use one of these to meet


class Reservation:
    """Reserves a port for the many seconds that a server takes until it listens.

    A bound socket that does not listen keeps the port from the kernel's own choices and from every
    program that binds plainly. With SO_REUSEADDR set on both sides Linux still lets the server bind
    and listen beside it. It would let another reservation bind as well, were it not for an abstract
    Unix socket name, which only one socket can have.

    Args:
        port: the wanted one, or 0 for any free one.
        role: for the error.

    Raises:
        LaunchError: the port is in use.
    """

    def __init__(self, port: int = 0, role: str | None = None, host: str = HOST) -> None:
        self._socket, self._name = socket.socket(), socket.socket(socket.AF_UNIX)
        # A free port is bound without the option at first, so that two launchers never get the same
        # one. A given port is bound with it, because connections of an earlier server may linger
        # there.
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(bool(port)))
        try:
            self._socket.bind((host, port))
            self.port: int = self._socket.getsockname()[1]
            self._name.bind(f"\0lr-sglang {host}:{self.port}")
        except OSError as error:
            self.release()
            hint = "give another 'port', or leave it out and a free one is chosen"
            raise LaunchError(
                f"port {port} of {host} cannot be used: {error.strerror}", role=role, hint=hint
            ) from error
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)

    def release(self) -> None:
        """Releases the port; idempotent."""
        self._socket.close()
        self._name.close()
