"""An address is judged by what it means, not by how it is written."""

import socket

import pytest

from turnwise.deploy.addresses import find_address
from turnwise.errors import InputError


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "0", "0x0", "", "00", "0.0"])
def test_every_address_at_once_is_refused_however_it_is_written(host):
    with pytest.raises(InputError, match="every address"):
        find_address(host)
    assert find_address(host, ["example.org"]).names == ("example.org",)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.1", "127.0.0.2"])
def test_loopback_is_recognised(host):
    found = find_address(host)
    assert found.is_loopback and found.hosts(9) >= {f"{host}:9", "127.0.0.1:9", "localhost:9"}


def test_an_address_of_version_6_has_brackets():
    try:
        found = find_address("::1")
    except InputError:
        pytest.skip("this machine has no IPv6")
    assert found.is_loopback and found.family == socket.AF_INET6
    assert found.url(80) == "http://[::1]:80" and "[::1]:9" in found.hosts(9)


def test_other_addresses_have_their_own_names_only():
    found = find_address("203.0.113.1", ["Example.org"])
    assert not found.is_loopback
    assert found.hosts(80) == {"203.0.113.1:80", "203.0.113.1", "example.org:80", "example.org"}
    assert found.hosts(9) == {"203.0.113.1:9", "example.org:9", "example.org"}


@pytest.mark.parametrize("host", ["no such host", "256.1.1.1", "x" * 300])
def test_what_is_no_address_is_refused(host):
    with pytest.raises(InputError, match="is no address"):
        find_address(host)


@pytest.mark.parametrize("name", ["", "a b", "http://a", "a\r\nb"])
def test_what_is_no_name_is_refused(name):
    with pytest.raises(InputError, match="is no name"):
        find_address("127.0.0.1", [name])
