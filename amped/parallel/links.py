"""Connections between ranks beside MPI's: of every rank with rank 0, over TCP."""

from __future__ import annotations

import contextlib
import secrets
import socket
import time

import psutil

from .mpi import Comm

CONNECT_SECONDS = 20.0  # for all ranks
TRY_SECONDS = 3.0  # for one address, and for one who connects to say who it is
TOKEN_BYTES = 16  # told over MPI: whoever has it is of this run
LOCAL = "127.0.0.1"


def connect(comm: Comm) -> dict[socket.socket, int]:
    """Connect every rank to rank 0; return the open connections with their peers' ranks. Collective.

    Raises
    ------
    OSError
        On the ranks that could not connect.
    """
    server, port, fault = None, 0, ""
    one_host = comm.local_size == comm.size
    if comm.rank == 0:
        try:
            server = socket.create_server((LOCAL if one_host else "", 0), backlog=comm.size)
            port = server.getsockname()[1]
        except OSError as error:
            fault = str(error)
    here = [LOCAL] if one_host else addresses()
    token, answer = secrets.token_bytes(TOKEN_BYTES), secrets.token_bytes(TOKEN_BYTES)
    hosts, port, fault, token, answer = comm.bcast((here, port, fault, token, answer))
    if fault:  # said after it was sent, as the others wait
        raise OSError(fault)
    if server is None:
        return {_call(hosts, port, token + comm.rank.to_bytes(4, "big"), answer): 0}
    with server:
        return _accept(server, comm.size - 1, token, answer)


def addresses() -> list[str]:
    """Return the names by which other hosts may find this one: its own, then its addresses, as it may not be known."""
    found = [a.address for each in psutil.net_if_addrs().values() for a in each if a.family == socket.AF_INET]
    return [socket.gethostname(), *(a for a in found if not a.startswith("127."))]


def _call(hosts: list[str], port: int, words: bytes, answer: bytes) -> socket.socket:
    """Return a connection to the first of the `hosts`, all names of one, that gives the right answer."""
    faults = []
    for host in hosts:
        try:
            link = socket.create_connection((host, port), TRY_SECONDS)
            with contextlib.ExitStack() as stack:
                stack.callback(link.close)
                link.sendall(words)
                if link.recv(TOKEN_BYTES, socket.MSG_WAITALL) != answer:
                    raise OSError("another program answers")
                stack.pop_all()
            return link
        except OSError as error:
            faults.append(f"{host}: {error}")
    raise OSError("; ".join(faults))


def _accept(server: socket.socket, others: int, token: bytes, answer: bytes) -> dict[socket.socket, int]:
    """Return the connections of all other ranks; leave out whoever does not know the token."""
    peers: dict[socket.socket, int] = {}
    deadline = time.monotonic() + CONNECT_SECONDS
    while len(peers) < others:
        server.settimeout(max(0.001, deadline - time.monotonic()))
        link, _ = server.accept()
        link.settimeout(TRY_SECONDS)
        try:
            words = link.recv(TOKEN_BYTES + 4, socket.MSG_WAITALL)
            if words[:TOKEN_BYTES] == token:
                link.sendall(answer)
                peers[link] = int.from_bytes(words[TOKEN_BYTES:], "big")
                continue
        except OSError:
            pass
        link.close()
    return peers
