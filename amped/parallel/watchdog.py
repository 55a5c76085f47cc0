"""Notices a rank that is dead, frozen or hung, so that no run waits for ever.

MPI and NCCL wait without a deadline. Beside them each rank keeps a TCP connection to rank 0 and a thread that
sends a beat over it every second. What ends the run: a connection that breaks or is silent, a rank whose main thread
does not come to its next step in time (`Recorder.limit`), and ranks that all wait in collectives for too long.
Each rank then says where it was, aborts its communicators and ends with an error code, upon which the launcher ends
what is left. A process that is alone has the thread, too. A job that is suspended as a whole goes on when it may.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import selectors
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator

from ..errors import EXIT_FAILURE
from .mpi import Comm, launched
from .recorder import HERE

BEAT_SECONDS = 1.0
SILENCE_SECONDS = 15.0
CONNECT_SECONDS = 20.0
ABORT_SECONDS = 3.0
START_SECONDS = 120.0  # for all ranks to load Python and MPI, from a slow file system say
ENDING_SECONDS = 25
LAST_WORDS_SECONDS = 1.0  # before the launcher learns that a rank has ended, and kills the others
BEAT, WAIT, BYE, FAILED = b".", b"w", b"q", b"f"


@contextlib.contextmanager
def starting() -> Iterator[None]:
    """End this process if what is within, the start of MPI say, waits too long for another rank."""
    if not launched():
        yield
        return
    faulthandler.dump_traceback_later(START_SECONDS, exit=True)  # needs no interpreter, which MPI may hold
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


@contextlib.contextmanager
def ending(comm: Comm) -> Iterator[None]:
    """Let this process end in time after what is within, though MPI waits for ranks that do not."""
    try:
        yield
    finally:
        if comm.size > 1:  # the interpreter is all but gone when MPI waits
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(ENDING_SECONDS)


class Watchdog:
    """Watch all ranks until `close`; a context manager. Making one is collective.

    Parameters
    ----------
    comm : Comm
    deadline : float, optional
        Seconds after which a rank that sends no beat is taken to be dead, if fewer than those that are usual.
    """

    def __init__(self, comm: Comm, deadline: float | None = None) -> None:
        """Start to watch."""
        self._rank = comm.rank
        self._silence = min(SILENCE_SECONDS, deadline or SILENCE_SECONDS)
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._peers: dict[socket.socket, int] = {}
        self._heard: dict[socket.socket, float] = {}
        self._waiting: set[socket.socket] = set()
        self.aborts: list[Callable[[], object]] = []
        """Called, each in a thread of its own, before this process ends with a fault."""
        if comm.size == 1 or self._connected(comm):
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
        for link in self._peers:
            link.setblocking(False)
            selector.register(link, selectors.EVENT_READ, link)
            self._heard[link] = time.monotonic()
        while not self._closing.is_set():
            self._check_here()
            until = time.monotonic() + BEAT_SECONDS
            while (left := until - time.monotonic()) > 0 and not self._closing.is_set():
                if not self._heard:
                    self._closing.wait(left)
                for key, _ in selector.select(left) if self._heard else ():
                    if self._said_bye(key.data):
                        selector.unregister(key.data)
                        del self._heard[key.data]
            self._excuse(time.monotonic() - until)
            self._check_silence()

    def _check_here(self) -> None:
        """Look at what this process is at, and tell the others."""
        hung, waiting = HERE.overdue()
        if hung:
            self._fail(f"does not go on: more than {HERE.limit:.0f} s in one step")
        # Rank 0 hears all others; where a rank hears nobody any more, nobody will come to where it waits.
        if waiting and (self._rank == 0 or not self._heard) and self._waiting.issuperset(self._heard):
            self._fail(f"and all others have waited for each other for more than {HERE.limit:.0f} s")
        self._send(list(self._heard), WAIT if waiting else BEAT)

    def _excuse(self, late: float) -> None:
        """Do not count the time in which this process did not run at all, and with it, it may be, the others."""
        if late > BEAT_SECONDS:
            HERE.excuse(late)
            self._heard = {link: last + late for link, last in self._heard.items()}

    def _check_silence(self) -> None:
        now = time.monotonic()
        for link, last in self._heard.items():
            if now - last > self._silence:
                self._fail_with(self._peers[link], f"has not answered for {now - last:.0f} s")

    def _said_bye(self, link: socket.socket) -> bool:
        try:
            data = link.recv(4096)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        self._heard[link] = time.monotonic()
        self._waiting.discard(link)
        if data.endswith(WAIT):
            self._waiting.add(link)
        if FAILED in data:
            self._fail_with(self._peers[link], "has ended the run")
        if not data and not self._closing.is_set():
            self._fail_with(self._peers[link], "has died")
        return not data or BYE in data  # a last beat may follow it

    @staticmethod
    def _send(links: list[socket.socket], message: bytes) -> None:
        for link in links:
            try:
                link.send(message)
            except OSError:
                continue  # full: the peer is silent, or broken: reading finds that out

    def _fail_with(self, peer: int, what: str) -> None:
        self._end(f"rank {peer} {what}; rank {self._rank} ends")

    def _fail(self, what: str) -> None:
        self._end(f"rank {self._rank} {what}")

    def _end(self, why: str) -> None:
        """Tell all, say where this rank is, abort the communicators and end this process."""
        began = time.monotonic()
        self._send(list(self._peers), FAILED)
        print(f"amped: {why}: {HERE.where()}; in {HERE.stack()}", file=sys.stderr, flush=True)
        threads = [threading.Thread(target=self._quietly, args=(abort,), daemon=True) for abort in self.aborts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.0, began + ABORT_SECONDS - time.monotonic()))
        time.sleep(max(0.0, began + LAST_WORDS_SECONDS - time.monotonic()))
        os._exit(EXIT_FAILURE)

    @staticmethod
    def _quietly(abort: Callable[[], object]) -> None:
        with contextlib.suppress(Exception):
            abort()

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
