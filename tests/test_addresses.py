"""hosted/addresses.py: which hosts and addresses may be connected to."""

import pytest

from engine.hosted.addresses import address_rules


@pytest.mark.parametrize(
    ("address", "is_taken"),
    [
        ("93.184.216.34", True),
        ("2606:2800:220:1:248:1893:25c8:1946", True),
        ("127.0.0.1", False),
        ("127.8.8.8", False),
        ("0.0.0.0", False),
        ("10.1.2.3", False),
        ("172.16.0.1", False),
        ("192.168.1.1", False),
        ("169.254.169.254", False),  # metadata of most clouds
        ("168.63.129.16", False),  # and of Azure, public by number
        ("100.100.100.200", False),  # and of Alibaba, carrier-grade NAT
        ("192.0.2.1", False),
        ("224.0.0.1", False),
        ("ff0e::1", False),
        ("239.255.255.250", False),
        ("255.255.255.255", False),
        ("240.0.0.1", False),
        ("::", False),
        ("::1", False),
        ("fe80::1", False),
        ("fe80::1%eth0", False),
        ("fc00::1", False),
        ("fd00:ec2::254", False),  # Amazon's metadata
        ("::ffff:127.0.0.1", False),
        ("::ffff:169.254.169.254", False),
        ("::ffff:93.184.216.34", True),
        ("::127.0.0.1", False),
        ("2002:7f00:1::", False),  # 6to4 of 127.0.0.1
        ("2002:5db8:d822::1", True),  # and of 93.184.216.34
        ("2001:0:5ef5:79fd:0:0:80ff:fffe", False),  # Teredo to 127.0.0.1
        ("64:ff9b::7f00:1", False),  # NAT64 of 127.0.0.1
        ("64:ff9b::5db8:d822", True),
    ],
)
def test_only_public_addresses_are_taken(address: str, is_taken: bool) -> None:
    assert address_rules([], []).takes_address(address) is is_taken


@pytest.mark.parametrize(
    ("address", "is_taken"),
    [
        ("10.1.2.3", True),
        ("::ffff:10.1.2.3", True),
        ("10.2.0.1", False),
        ("fd12::5", True),
        ("fd13::5", False),
        ("93.184.216.34", True),
    ],
)
def test_named_networks_are_taken_too(address: str, is_taken: bool) -> None:
    assert address_rules([], ["10.1.0.0/16", "fd12::/16"]).takes_address(address) is is_taken


def test_what_is_no_network_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"10\.1\.0\.0/99"):
        address_rules([], ["10.1.0.0/99"])


@pytest.mark.parametrize(
    ("host", "is_taken"),
    [
        ("example.org", True),
        ("EXAMPLE.org.", True),
        ("www.example.org", False),
        ("docs.python.org", True),
        ("a.b.Python.org", True),
        ("python.org", False),
        ("evilpython.org", False),
        ("python.org.evil.net", False),
        ("10.0.0.1", False),
    ],
)
def test_only_hosts_of_the_list_are_taken(host: str, is_taken: bool) -> None:
    assert address_rules(["Example.org", "*.Python.org"], []).takes_host(host) is is_taken


def test_without_a_list_every_host_is_taken() -> None:
    assert address_rules([], []).takes_host("anything.at.all")
