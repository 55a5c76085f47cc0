"""Notices a rank that is dead or frozen, so that no run waits for ever in a collective.

MPI and NCCL wait without a deadline. Beside them each rank keeps a TCP connection to rank 0 and a thread that
sends a beat over it every second; a peer that is silent for too long, or whose connection breaks, ends this process
with an error code, upon which the launcher ends all others.
"""

from __future__ import annotations

import os
import selectors
import socket
import sys
import threading
import time

from .errors import EXIT_FAILURE
from .mpi import Comm

BEAT_SECONDS = 1.0
SILENCE_SECONDS = 15.0
CONNECT_SECONDS = 20.0
BEAT, BYE = b".", b"q"


class Watchdog:
    """Watch the other ranks until `close`; a context manager. Making one is collective."""

    def __init__(self, comm: Comm) -> None:
        """Start to watch."""
        self._rank = comm.rank
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._peers: dict[socket.socket, int] = {}
        if comm.size > 1 and self._connected(comm):
            self._thread = threading.Thread(target=self._watch, name="amped-watchdog", daemon=True)
            self._thread.start()

    def _connected(self, comm: Comm) -> bool:
        """Connect the ranks; without the connections a run is as safe as its launcher makes it, and goes on."""
        fault = ""
        try:
            self._peers = self._connect(comm)
        except OSError as error:
            fault = f"rank {comm.rank}: {error}"
        faults = [f for f in comm.allgather(fault) if f]
        if faults and comm.rank == 0:
            print(f"amped: no watchdog, the ranks cannot connect to each other ({faults[0]})", file=sys.stderr)
        return not faults

    def _connect(self, comm: Comm) -> dict[socket.socket, int]:
        """Connect every rank to rank 0; return the open connections with their peers' ranks."""
        one_node = comm.local_size == comm.size
        server, address, fault = None, ("", 0), ""
        if comm.rank == 0:
            try:
                server = socket.create_server(("127.0.0.1" if one_node else "", 0), backlog=comm.size)
                address = "127.0.0.1" if one_node else socket.gethostname(), server.getsockname()[1]
            except OSError as error:
                fault = str(error)
        address, fault = comm.bcast((address, fault))  # whatever happened: the others wait for it
        if fault:
            raise OSError(fault)
        peers: dict[socket.socket, int] = {}
        if server is None:
            link = socket.create_connection(address, CONNECT_SECONDS)
            link.sendall(comm.rank.to_bytes(4, "big"))
            return {link: 0}
        server.settimeout(CONNECT_SECONDS)
        with server:
            for _ in range(comm.size - 1):
                link, _ = server.accept()
                link.settimeout(CONNECT_SECONDS)
                peers[link] = int.from_bytes(link.recv(4, socket.MSG_WAITALL), "big")
        return peers

    def _watch(self) -> None:
        selector = selectors.DefaultSelector()
        heard = {}
        for link in self._peers:
            link.setblocking(False)
            selector.register(link, selectors.EVENT_READ, link)
            heard[link] = time.monotonic()
        while heard and not self._closing.is_set():
            self._send(list(heard), BEAT)
            until = time.monotonic() + BEAT_SECONDS
            while heard and (left := until - time.monotonic()) > 0 and not self._closing.is_set():
                for key, _ in selector.select(left):
                    link = key.data
                    heard[link] = time.monotonic()
                    if self._said_bye(link):
                        selector.unregister(link)
                        del heard[link]
            now = time.monotonic()
            for link, last in heard.items():
                if now - last > SILENCE_SECONDS:
                    self._fail(self._peers[link], f"has not answered for {now - last:.0f} s")

    def _said_bye(self, link: socket.socket) -> bool:
        try:
            data = link.recv(4096)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data and not self._closing.is_set():
            self._fail(self._peers[link], "has died")
        return not data or BYE in data  # a last beat may follow it

    @staticmethod
    def _send(links: list[socket.socket], message: bytes) -> None:
        for link in links:
            try:
                link.send(message)
            except OSError:
                continue  # full: the peer is silent, or broken: reading finds that out

    def _fail(self, peer: int, what: str) -> None:
        print(f"amped: rank {peer} {what}; rank {self._rank} ends", file=sys.stderr, flush=True)
        os._exit(EXIT_FAILURE)

    def close(self) -> None:
        """Tell the others that this rank is done, and stop watching them."""
        if self._thread is None:
            return
        self._closing.set()
        self._send(list(self._peers), BYE)
        self._thread.join(2 * BEAT_SECONDS)
        for link in self._peers:
            link.close()
        self._thread = None

    def __enter__(self) -> Watchdog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
