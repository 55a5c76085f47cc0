"""TCP connections between every other rank and rank 0, independent of MPI."""

from __future__ import annotations

import contextlib
import os
import socket
import time

from .mpi import Comm

CONNECT_SECONDS = 20.0  # for all ranks to connect
TRY_SECONDS = 3.0  # for one address, and for the handshake of one connection
TOKEN_BYTES = 16  # shared over MPI; proves that a process belongs to this run
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
    token, answer = os.urandom(TOKEN_BYTES), os.urandom(TOKEN_BYTES)
    hosts, port, fault, token, answer = comm.bcast((here, port, fault, token, answer))
    if fault:  # raised after the broadcast, so that no rank waits for it
        raise OSError(fault)
    if server is None:
        return {_call(hosts, port, token + comm.rank.to_bytes(4, "big"), answer): 0}
    with server:
        return _accept(server, comm.size - 1, token, answer)


def addresses() -> list[str]:
    """Return the host name and IPv4 addresses of this host. The name comes first but may not resolve elsewhere."""
    import psutil  # only several hosts need it

    ipv4 = [a.address for each in psutil.net_if_addrs().values() for a in each if a.family == socket.AF_INET]
    return [socket.gethostname(), *(a for a in ipv4 if not a.startswith("127."))]


def _call(hosts: list[str], port: int, greeting: bytes, answer: bytes) -> socket.socket:
    """Connect to the first of a host's names that answers the handshake correctly."""
    faults = []
    for host in hosts:
        try:
            link = socket.create_connection((host, port), TRY_SECONDS)
            with contextlib.ExitStack() as stack:
                stack.callback(link.close)
                link.sendall(greeting)
                if link.recv(TOKEN_BYTES, socket.MSG_WAITALL) != answer:
                    raise OSError("another program answers")
                stack.pop_all()
            return link
        except OSError as error:
            faults.append(f"{host}: {error}")
    raise OSError("; ".join(faults))


def _accept(server: socket.socket, others: int, token: bytes, answer: bytes) -> dict[socket.socket, int]:
    """Accept the connections of all other ranks; close connections without the token."""
    peers: dict[socket.socket, int] = {}
    deadline = time.monotonic() + CONNECT_SECONDS
    while len(peers) < others:
        server.settimeout(max(0.001, deadline - time.monotonic()))
        link, _ = server.accept()
        link.settimeout(TRY_SECONDS)
        try:
            greeting = link.recv(TOKEN_BYTES + 4, socket.MSG_WAITALL)
            if greeting[:TOKEN_BYTES] == token:
                link.sendall(answer)
                peers[link] = int.from_bytes(greeting[TOKEN_BYTES:], "big")
                continue
        except OSError:
            pass
        link.close()
    return peers
