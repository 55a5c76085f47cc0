"""Two hosts on one machine, connected by a cable, for tests of communication between hosts.

A host is a network namespace with its own host name. Its processes have separate mounts, so that a folder can be hidden
from one host; cores and all other folders are shared. Creating hosts requires root.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import psutil
import pytest
from command import Result, finish, mpirun_line

NAMESPACES = Path("/run/netns")  # of `ip`
NAME = re.compile(r"amped(\d+)-\d+[ab]")
NUMBERS = count()
NOISE = re.compile(r".*plm:ssh: Warning: setpgid.*\n")  # of mpirun, if the agent is quick
SUBNET = "10.77.0"  # of every pair, because pairs are isolated from each other
# Hosts share no memory. Their ranks share the same cores, so waiting ranks must yield.
NETWORK = {
    "PRTE_MCA_prte_if_include": f"{SUBNET}.0/24",
    "OMPI_MCA_btl_tcp_if_include": f"{SUBNET}.0/24",
    "OMPI_MCA_btl": "self,tcp,sm",
    "OMPI_MCA_mpi_yield_when_idle": "1",
}

# mpirun calls this script instead of ssh: [options] HOST COMMAND... Like ssh, it stays on mpirun's host, and it is not
# notified of the command's end if the cable is cut.
AGENT = """#!/bin/sh -u
while case $1 in -*) true ;; *) false ;; esac do shift; done
host=$1
shift
nsenter --wd=. --mount=/proc/{pid}/ns/mnt --net="{namespaces}/$host" unshare --mount --uts sh -euc '
    hostname "$1"
    export HOST_HERE="$1"
    mount --bind "{folder}/hosts" /etc/hosts
    if [ -e "{folder}/hidden-$1" ]; then mount -t tmpfs none "$(cat "{folder}/hidden-$1")"; fi
    shift
    exec sh -c "$*"' - "$host" "$@"
code=$?
while [ -e "{folder}/cut" ] && [ "${{HOST_HERE-}}" ]; do sleep 0.2; done
[ "$code" -lt 128 ] || code=255
exit "$code"
"""


class Hosts:
    """Two hosts and the cable between them, with files in a new `folder`; see `two_hosts`.

    They resolve each other's names only if they are `named`.
    """

    def __init__(self, folder: Path, named: bool = True) -> None:
        stem = f"amped{os.getpid()}-{next(NUMBERS)}"
        self.first, self.second = self.names = f"{stem}a", f"{stem}b"
        self._agent, self._folder = folder / "agent", folder
        folder.mkdir(parents=True)
        known = [f"{SUBNET}.{k} {name}" for k, name in enumerate(self.names, 1) if named]
        (folder / "hosts").write_text("\n".join(["127.0.0.1 localhost", *known]) + "\n")
        (folder / "slots").write_text("".join(f"{name} slots=1\n" for name in self.names))
        self._agent.write_text(AGENT.format(pid=os.getpid(), namespaces=NAMESPACES, folder=folder))
        self._agent.chmod(0o755)

    def create(self) -> None:
        """Create the namespaces and connect them."""
        first, second = self.names
        for name in self.names:
            _ip("netns", "add", name)
        _ip("link", "add", "cable", "netns", first, "type", "veth", "peer", "name", "cable", "netns", second)
        for k, name in enumerate(self.names, 1):
            _ip("-n", name, "address", "add", f"{SUBNET}.{k}/24", "dev", "cable")
            for device in ("lo", "cable"):
                _ip("-n", name, "link", "set", device, "up")

    def hide(self, host: str, path: Path) -> None:
        """Show an empty folder instead of `path` to processes that are started on a host later."""
        (self._folder / f"hidden-{host}").write_text(str(path))

    def mpirun(self, each: int, *line: object) -> list[str]:
        """Return the command line that runs a program on `each` ranks per host, started on the first host."""
        hosts = ",".join(f"{name}:{each}" for name in self.names)
        return self.on(self.first, *mpirun_line(2 * each), "--host", hosts, "--map-by", f"ppr:{each}:node", *line)

    def on(self, host: str, *line: object) -> list[str]:
        """Return the command line that runs a program on a host."""
        return [str(self._agent), host, "exec", shlex.join(map(str, line))]

    def variables(self, **extra: str) -> dict[str, str]:
        """Return additional environment variables for `mpirun`; without --host, each host has one rank."""
        own = {"PRTE_MCA_plm_ssh_agent": str(self._agent), "PRTE_MCA_prte_default_hostfile": f"{self._folder}/slots"}
        return {**NETWORK, **own, **extra}

    def run(self, each: int, *line: object, **options: Any) -> Result:
        """Run a program; see `mpirun`."""
        done = finish(self.mpirun(each, *line), env=self.variables(), **options)
        return replace(done, err=re.sub(NOISE, "", done.err))

    def cut(self) -> None:
        """Disconnect the hosts: packets are lost, and neither side is notified."""
        (self._folder / "cut").touch()
        _ip("-n", self.first, "link", "set", "cable", "down")


def processes(host: str) -> list[int]:
    """Return the PIDs of the processes on a host."""
    return list(map(int, _ip("netns", "pids", host).split()))


def kill(host: str) -> None:
    """End all processes on a host at once."""
    for number in processes(host):
        with suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)


def remove(host: str) -> None:
    """Kill all processes on a host, and remove it."""
    with suppress(subprocess.CalledProcessError):  # already removed
        kill(host)
        _ip("netns", "delete", host)


def _ip(*words: str) -> str:
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout


@contextmanager
def two_hosts(folder: Path, named: bool = True) -> Iterator[Hosts]:
    """Create two hosts; skip the test if this is not possible."""
    missing = [name for name in ("ip", "unshare", "nsenter") if shutil.which(name) is None]
    if missing:
        pytest.skip(f"no {', '.join(missing)} (Debian: iproute2 util-linux)")
    if os.geteuid() != 0:
        pytest.skip("only root can create hosts")
    if "Open MPI) 5." not in finish([mpirun_line(1)[0], "--version"]).out:
        pytest.skip("mpirun is not Open MPI 5")
    remove_stale()
    hosts = Hosts(folder, named)
    try:
        try:
            hosts.create()
            subprocess.run(hosts.on(hosts.first, "true"), check=True, capture_output=True, text=True)
        except subprocess.CalledProcessError as error:
            pytest.skip(f"this machine permits no namespaces: {error.stderr.strip()}")
        yield hosts
    finally:
        for name in hosts.names:
            remove(name)


def remove_stale() -> None:
    """Remove hosts left behind by killed tests."""
    for path in NAMESPACES.glob("amped*"):
        match = NAME.fullmatch(path.name)
        if match and not psutil.pid_exists(int(match[1])):
            remove(path.name)
