"""Which address the service listens on, and under which names it may be called."""

import ipaddress
import socket
from collections.abc import Sequence
from dataclasses import dataclass

from turnwise.errors import InputError, require

LOOPBACK = "127.0.0.1"
MANY = "is every address of this machine at once"


@dataclass(frozen=True)
class Address:
    """An address to listen on.

    host   as the user wrote it
    ip     what it means
    names  further names that the Host header of a request may state
    """

    host: str
    ip: str
    names: tuple[str, ...] = ()

    @property
    def is_loopback(self) -> bool:
        return ipaddress.ip_address(self.ip).is_loopback

    @property
    def family(self) -> socket.AddressFamily:
        return socket.AF_INET6 if ":" in self.ip else socket.AF_INET

    def url(self, port: int) -> str:
        return f"http://{_bracket(self.host)}:{port}"

    def hosts(self, port: int) -> frozenset[str]:
        """Return the values of the Host header that name this server."""
        own = {self.host, self.ip, *self.names, *((LOOPBACK, "localhost") * self.is_loopback)}
        names = {_bracket(name).lower() for name in own}
        bare = names if port == 80 else {name.lower() for name in self.names}
        return frozenset({f"{name}:{port}" for name in names} | bare)


def find_address(host: str, names: Sequence[str] = ()) -> Address:
    """Return the address that `host` means; every address at once needs `names`."""
    try:
        found = socket.getaddrinfo(host or None, 0, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise InputError(f"{host!r} is no address; give one such as {LOOPBACK}.") from error
    ips = [str(entry[4][0]).partition("%")[0] for entry in found]
    ip = next((each for each in ips if ":" not in each), ips[0]) if host else "0.0.0.0"
    require(
        bool(names) or not ipaddress.ip_address(ip).is_unspecified,
        f"{host!r} {MANY}; give the one that others should use, or the names by which they may "
        "call it.",
    )
    for name in names:
        require(
            bool(name) and name.isascii() and not set(name) & set("/ @?#\r\n"),
            f"{name!r} is no name of a host; give one such as example.org.",
        )
    return Address(host, ip, tuple(names))


def _bracket(name: str) -> str:
    return f"[{name}]" if ":" in name and not name.startswith("[") else name
