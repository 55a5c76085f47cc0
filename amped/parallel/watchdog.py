"""Watchdog: ends the run if a rank is dead, frozen or hung, because MPI and NCCL wait without a time limit.

Each rank has a TCP connection to rank 0 and a thread that sends a heartbeat over it every second. The run ends if a
connection breaks or is silent, if a rank's main thread exceeds the time limit of a step (`Recorder.limit`), or if all
ranks wait in collectives for longer than that. Each rank then reports its position, aborts its communicators and exits
with an error code; the launcher ends the rest, and if it waits for a lost host, it is ended too (`launcher`). A single
process runs the thread as well. A job that is suspended as a whole continues when it is resumed.
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
from . import launcher, links
from .mpi import Comm, launched
from .progress import CURRENT

BEAT_SECONDS = 1.0
SILENCE_SECONDS = 15.0
ABORT_SECONDS = 3.0
START_SECONDS = 120.0  # for all ranks to load Python and MPI, possibly from a slow file system
ENDING_SECONDS = 25
LAST_WORDS_SECONDS = 1.0  # for the other ranks to report before the launcher kills them
BEAT, WAIT, BYE, FAILED = b".", b"w", b"q", b"f"


@contextlib.contextmanager
def starting() -> Iterator[None]:
    """End this process if the block, such as the start of MPI, waits more than `START_SECONDS` for another rank."""
    if not launched():
        yield
        return
    faulthandler.dump_traceback_later(START_SECONDS, exit=True)  # works while MPI holds the GIL
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


@contextlib.contextmanager
def ending(comm: Comm) -> Iterator[None]:
    """Kill this process if it does not exit within `ENDING_SECONDS` after the block: MPI may wait for other ranks."""
    try:
        yield
    finally:
        if comm.size > 1:  # an alarm signal, because MPI waits when the interpreter has already shut down
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(ENDING_SECONDS)


class Watchdog:
    """Watches all ranks until `close`; a context manager. The constructor is collective.

    A rank counts as dead after `SILENCE_SECONDS` without a heartbeat, or after `deadline` seconds if that is shorter.
    """

    def __init__(self, comm: Comm, deadline: float | None = None) -> None:
        """Connect the ranks and start the thread."""
        self._rank, self._several_hosts = comm.rank, comm.size > comm.local_size
        self._silence = min(SILENCE_SECONDS, deadline or SILENCE_SECONDS)
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._peers: dict[socket.socket, int] = {}
        self._heard: dict[socket.socket, float] = {}
        self._waiting: set[socket.socket] = set()
        self.aborts: list[Callable[[], object]] = []
        """Called before this process exits after a failure, each in its own thread."""
        if comm.size == 1 or self._connected(comm):
            self._thread = threading.Thread(target=self._watch, name="amped-watchdog", daemon=True)
            self._thread.start()

    def _connected(self, comm: Comm) -> bool:
        """Connect the ranks. On failure print a warning and continue without a watchdog."""
        fault = ""
        try:
            self._peers = links.connect(comm)
        except OSError as error:
            fault = f"rank {comm.rank}: {error}"
        faults = [f for f in comm.allgather(fault) if f]
        if faults and comm.rank == 0:
            print(f"amped: no watchdog, the ranks cannot connect to each other ({faults[0]})", file=sys.stderr)
        return not faults

    def _watch(self) -> None:
        selector = selectors.DefaultSelector()
        for link in self._peers:
            link.setblocking(False)
            selector.register(link, selectors.EVENT_READ, link)
            self._heard[link] = time.monotonic()
        while not self._closing.is_set():
            self._check_here()
            until = time.monotonic() + BEAT_SECONDS
            while (remaining := until - time.monotonic()) > 0 and not self._closing.is_set():
                if not self._heard:
                    self._closing.wait(remaining)
                for key, _ in selector.select(remaining) if self._heard else ():
                    if self._has_left(key.data):
                        selector.unregister(key.data)
                        del self._heard[key.data]
            self._excuse(time.monotonic() - until)
            self._check_silence()

    def _check_here(self) -> None:
        """Check this process's main thread and send the heartbeat."""
        hung, waiting = CURRENT.overdue()
        if hung:
            self._fail(f"makes no progress: more than {CURRENT.limit:.0f} s in one step")
        # Rank 0 receives all heartbeats. A rank without connections decides for itself.
        if waiting and (self._rank == 0 or not self._heard) and self._waiting.issuperset(self._heard):
            self._fail(f"and all others have waited for each other for more than {CURRENT.limit:.0f} s")
        self._send(list(self._heard), WAIT if waiting else BEAT)

    def _excuse(self, late: float) -> None:
        """Exclude time during which this process, and perhaps the others, was suspended."""
        if late > BEAT_SECONDS:
            CURRENT.excuse(late)
            self._heard = {link: last + late for link, last in self._heard.items()}

    def _check_silence(self) -> None:
        now = time.monotonic()
        for link, last in self._heard.items():
            if now - last > self._silence:
                self._fail_with(self._peers[link], f"has not answered for {now - last:.0f} s")

    def _has_left(self, link: socket.socket) -> bool:
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
        return not data or BYE in data  # a last heartbeat may follow BYE

    @staticmethod
    def _send(links: list[socket.socket], message: bytes) -> None:
        for link in links:
            try:
                link.send(message)
            except OSError:
                continue  # buffer full (silent peer) or connection broken: detected on reading

    def _fail_with(self, peer: int, cause: str) -> None:
        self._end(f"rank {peer} {cause}; rank {self._rank} ends")

    def _fail(self, cause: str) -> None:
        self._end(f"rank {self._rank} {cause}")

    def _end(self, cause: str) -> None:
        """Notify all ranks, report the position of this one, abort the communicators and exit."""
        began = time.monotonic()
        self._send(list(self._peers), FAILED)
        print(f"amped: {cause}: {CURRENT.where()}; in {CURRENT.stack()}", file=sys.stderr, flush=True)
        threads = [threading.Thread(target=self._quietly, args=(abort,), daemon=True) for abort in self.aborts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.0, began + ABORT_SECONDS - time.monotonic()))
        time.sleep(max(0.0, began + LAST_WORDS_SECONDS - time.monotonic()))
        if self._several_hosts:
            launcher.end_soon()
        os._exit(EXIT_FAILURE)

    @staticmethod
    def _quietly(abort: Callable[[], object]) -> None:
        with contextlib.suppress(Exception):
            abort()

    def close(self) -> None:
        """Notify the other ranks that this one is done, and stop watching."""
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
