"""Who may connect to rank 0, and by which name it is found."""

from __future__ import annotations

import socket
import threading

import pytest

from amped.parallel import links

TOKEN, ANSWER = b"t" * links.TOKEN_BYTES, b"a" * links.TOKEN_BYTES


def server() -> socket.socket:
    """Return a server on this machine."""
    return socket.create_server((links.LOCAL, 0))


def test_one_who_does_not_know_the_token_is_left_out() -> None:
    """A port scanner, say, or a rank of another run."""
    with server() as here, server() as wrong:
        port = here.getsockname()[1]
        strangers = [socket.create_connection((links.LOCAL, port)) for _ in range(2)]
        strangers[0].sendall(b"GET / HTTP/1.1\r\n\r\nmore than rank and token have")
        strangers[1].close()
        found: dict[socket.socket, int] = {}
        thread = threading.Thread(target=lambda: found.update(links._accept(here, 1, TOKEN, ANSWER)))
        thread.start()
        link = links._call([links.LOCAL], port, TOKEN + (7).to_bytes(4, "big"), ANSWER)
        thread.join()
        assert list(found.values()) == [7]
        for each in (link, *found, *strangers, wrong):
            each.close()


def test_other_names_of_a_host_are_tried() -> None:
    """Names that nobody knows, and addresses that another program answers at."""
    with server() as here:
        port = here.getsockname()[1]
        words = TOKEN + (1).to_bytes(4, "big")
        thread = threading.Thread(target=lambda: [each.close() for each in links._accept(here, 1, TOKEN, ANSWER)])
        thread.start()
        links._call(["no-such-host.invalid", "127.0.0.2", links.LOCAL], port, words, ANSWER).close()
        thread.join()


def test_all_names_that_failed_are_told() -> None:
    with server() as here:
        port = here.getsockname()[1]
    with pytest.raises(OSError, match=r"no-such-host\.invalid: .*; 127\.0\.0\.1: "):
        links._call(["no-such-host.invalid", links.LOCAL], port, TOKEN, ANSWER)


def test_this_host_has_a_name() -> None:
    assert links.addresses()[0] == socket.gethostname()
    assert not any(address.startswith("127.") for address in links.addresses()[1:])
