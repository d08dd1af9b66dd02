"""Ports on this machine, kept for a server from before it starts until it listens."""

from __future__ import annotations

import socket

from lr_sglang.errors import LaunchError

HOST = "127.0.0.1"
ANY = "0.0.0.0"  # a server's own processes meet at a port of all of them


class Reservation:
    """Reserves a port for the many seconds that a server takes until it listens.

    A bound socket that does not listen keeps the port from the kernel's own choices and from every program that binds
    plainly. With SO_REUSEADDR set on both sides Linux still lets the server bind and listen beside it.

    Args:
        port: the wanted one, or 0 for any free one.
        role: for the error.

    Raises:
        LaunchError: the port is in use.
    """

    def __init__(self, port: int = 0, role: str | None = None, host: str = HOST) -> None:
        self._socket = socket.socket()
        # A port of our choice is bound plainly at first, so that two launchers never choose the same one. A given
        # port is bound with the option: connections of an earlier server that linger do not stand in the way.
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(bool(port)))
        try:
            self._socket.bind((host, port))
        except OSError as error:
            self.release()
            hint = "give another 'port', or leave it out and a free one is chosen"
            raise LaunchError(
                f"port {port} of {host} cannot be used: {error.strerror}", role=role, hint=hint
            ) from error
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.port: int = self._socket.getsockname()[1]

    def release(self) -> None:
        """Gives the port up; idempotent."""
        self._socket.close()
