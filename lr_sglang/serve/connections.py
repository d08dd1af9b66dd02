"""Connections of clients: timeouts of slow clients, and which connection is closed when there are
too many.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import resource
import select
from asyncio import BaseTransport
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from typing import Any

import h11
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.h11_impl import H11Protocol

from lr_sglang.serve.errors import refusal, response_of
from lr_sglang.serve.logs import log
from lr_sglang.serve.metrics import Metrics
from lr_sglang.serve.settings import Service

FILES = 2**16  # the highest limit of open files that the process sets for itself
TOLD_SECONDS = 10.0  # at least, between two log lines about closed connections
PART = (
    2**16
)  # bytes of a response: a client must read as many, or the rest, within ``send_timeout``
TURN = (
    2**12
)  # bytes of one client that are processed in one turn: 10 ms if they are chunks of one byte


class Flow(FlowControl):
    """uvicorn's flow control; it also pauses reading while received data is unprocessed."""

    held = False

    def hold(self) -> None:
        self.held = self.read_paused = True
        # uvicorn may have resumed it: it ignores the flag at the end of a body
        self._transport.pause_reading()

    def let_go(self) -> None:
        self.held = False
        self.resume_reading()

    def resume_reading(self) -> None:
        if not self.held:
            super().resume_reading()


class Connection(H11Protocol):
    """A client's connection with timeouts. uvicorn itself limits the time between two requests
    only.

    Attributes:
        address: for the limit of each address; empty for this machine's own, such as a proxy's.
    """

    def __init__(self, among: Connections, **given: Any) -> None:
        super().__init__(**given)
        self._among, self._doing, self._since = among, "headers", self.loop.time()
        self._unread, self._waits, self._behind = bytearray(), False, False
        self.address = ""

    def connection_made(self, transport: BaseTransport) -> None:
        super().connection_made(transport)  # type: ignore[arg-type]
        self.flow: Flow = Flow(self.transport)
        self.address = _counted(self.client[0] if self.client else "")
        self._among.enter(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._among.leave(self)
        super().connection_lost(exc)
        # after an error uvicorn's timer would keep this object in memory
        self._unset_keepalive_if_required()

    def data_received(self, data: bytes) -> None:
        self._unread += data
        if not self._waits:
            self.go_on()

    def handle_events(self) -> None:
        """Processes received data; a pipelined request waits for the one before it."""
        if self._behind and (self._unread or self.conn.trailing_data[0]):
            self._wait()
        else:
            super().handle_events()

    def go_on(self) -> None:
        """Processes a part of the received data, or the next pipelined request."""
        self._waits = False
        if self.transport.is_closing():
            return
        if not self.writes:
            self.flow.hold()  # until the answer is complete
            return
        part = bytes(self._unread[:TURN])
        del self._unread[:TURN]
        if not self._unread:
            self.flow.let_go()
        if part:
            super().data_received(part)
        else:
            self.handle_events()
        if self._unread and not self.transport.is_closing():
            self._wait()

    def _wait(self) -> None:
        self.flow.hold()
        if not self._waits:
            self._waits = True
            self._among.wait(self)

    def on_response_complete(self) -> None:
        self._doing, self._behind = "", True
        self._among.used(self)
        super().on_response_complete()
        self._behind = False

    def pause_writing(self) -> None:
        self._doing = ""
        super().pause_writing()

    def send_400_response(self, msg: str) -> None:
        """Closes the connection if a response has begun, where uvicorn would raise h11's error."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.close()

    def _unsupported_upgrade_warning(self) -> None:
        """Logs nothing: uvicorn would advise to install a package because of a client's header."""

    @property
    def reads(self) -> bool:
        """Whether the client has not taken all that was sent."""
        return self.flow.write_paused or self.transport.is_closing()

    @property
    def writes(self) -> bool:
        """Whether it is the client's turn to send something."""
        return self.conn.their_state in (h11.IDLE, h11.SEND_BODY)

    def late(self, now: float, limits: Mapping[str, float]) -> str:
        """What the client takes too long for, by the seconds in ``limits``: headers, body or
        answer; else empty.
        """
        doing = self._what()
        if doing != self._doing:
            self._doing, self._since = doing, now
        kind = doing.partition(" ")[0]
        return kind if now - self._since > limits.get(kind, now) else ""

    def _what(self) -> str:
        """What we wait for: headers, body or answer. The body of an unanswered request has a
        timeout in its route.
        """
        if self.reads:
            return f"answer {self.transport.get_write_buffer_size() // PART}"
        if self.conn.their_state is h11.SEND_BODY and self.cycle.response_complete:
            return "body"
        if self.conn.their_state is h11.IDLE and (self.cycle is None or self.conn.trailing_data[0]):
            return "headers"
        return ""


class Connections:
    """All connections of one process, within its part of the service's limits and of the open
    files.

    When there are too many, a new one replaces the least recently used of those that wait for their
    client; if there is none, the new one is refused.
    """

    def __init__(self, service: Service, metrics: Metrics) -> None:
        # the other files are for runtimes, the page and the log
        self.most = min(service.max_connections, files() // 2)
        self._share = service.max_connections_per_address
        self._limits = {
            "headers": service.header_timeout,
            "body": service.body_timeout,
            "answer": service.send_timeout,
        }
        self._open: dict[Connection, None] = {}  # in the order of their last use
        self._of: Counter[str] = Counter()
        self._untold: Counter[str] = Counter()
        self._told, self._metrics = -TOLD_SECONDS, metrics
        self._turns: deque[Connection] = deque()
        metrics.watch(metrics.connections, lambda: len(self._open))

    def protocol(self, **given: Any) -> Connection:
        return Connection(self, **given)

    def enter(self, one: Connection) -> None:
        """Admits a new connection, closes another one for it, or refuses it."""
        self._open[one] = None
        self._of[one.address] += 1
        if one.address and self._of[one.address] > self._share:
            self._make_room(one, [other for other in self._open if other.address == one.address])
        elif len(self._open) > self.most:
            self._make_room(one, self._open)

    def leave(self, one: Connection) -> None:
        if one in self._open:
            del self._open[one]
            self._of[one.address] -= 1
            if not self._of[one.address]:
                del self._of[one.address]

    def used(self, one: Connection) -> None:
        if one in self._open:
            del self._open[one]
            self._open[one] = None

    def wait(self, one: Connection) -> None:
        """Queues a connection for ``go_on``. Each iteration of the event loop processes one, so
        that a client that sends much delays no other."""
        self._turns.append(one)
        if len(self._turns) == 1:
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        try:
            self._turns[0].go_on()
        finally:
            self._turns.popleft()
            if self._turns:
                asyncio.get_running_loop().call_soon(self._next)

    def look(self, now: float) -> None:
        """Closes late connections; ``now`` is the event loop's time."""
        for one in list(self._open):
            if what := one.late(now, self._limits):
                self._close(one, what)
        self._let_go_of_who_left()
        if self._untold and now - self._told > TOLD_SECONDS:
            for reason, count in self._untold.items():
                log(
                    "connections closed",
                    logging.WARNING,
                    reason=reason,
                    count=count,
                    open=len(self._open),
                )
            self._untold.clear()
            self._told = now

    def _let_go_of_who_left(self) -> None:
        """Closes connections whose client has gone, which asyncio does not notice while reading is
        paused.
        """
        paused = (one for one in self._open if one.flow.read_paused)
        files = {one.transport.get_extra_info("socket").fileno(): one for one in paused}
        poll = select.poll()
        for file in files:
            poll.register(file, select.POLLRDHUP)
        for file, _ in poll.poll(0) if files else ():
            files[file].transport.abort()

    def _make_room(self, new: Connection, among: Iterable[Connection]) -> None:
        others = [one for one in among if one is not new]
        waiting = next((one for one in others if one.writes), None) or next(
            (one for one in others if one.reads), None
        )
        if waiting is not None:
            self._close(waiting, "crowded")
            return
        self._count("refused")
        self.leave(new)
        new.transport.write(_refused())
        new.transport.close()

    def _close(self, one: Connection, reason: str) -> None:
        self._count(reason)
        self.leave(one)
        one.transport.abort()  # close() would wait until the client has read the rest

    def _count(self, reason: str) -> None:
        self._metrics.hung_up.labels(reason).inc()
        self._untold[reason] += 1


def files() -> int:
    """Raises the soft limit of open files, and returns it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = FILES if hard == resource.RLIM_INFINITY else min(hard, FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        soft = most
    return FILES if soft == resource.RLIM_INFINITY else soft


def _counted(host: str) -> str:
    """The address that limits count: for IPv6 the /64 network, because one customer usually has all
    of it.
    """
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return ""  # a Unix socket
    address = getattr(address, "ipv4_mapped", None) or address
    if address.is_loopback:
        return ""
    return (
        str(ipaddress.ip_network((address, 64), strict=False))
        if address.version == 6
        else str(address)
    )


def _refused() -> bytes:
    response = response_of(refusal("overloaded", close=True))
    head = b"".join(b"%s: %s\r\n" % (name.title(), value) for name, value in response.raw_headers)
    return b"HTTP/1.1 503 Service Unavailable\r\n" + head + b"\r\n" + bytes(response.body)
