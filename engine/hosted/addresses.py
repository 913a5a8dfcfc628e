"""Which hosts and addresses the server may connect to on behalf of a model, which may have been told to by a page.

A host's name is judged by the allow-list before it is resolved; each address that it resolves to is judged after that.
Only public addresses pass, and networks that the operator names. What embeds another address (IPv4 in IPv6, in four
ways) is as good as that one is.
"""

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

import msgspec

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

# Public by number, but answered by the machine's own cloud: Azure's platform service.
_METADATA: Final = frozenset({ip_address("168.63.129.16")})
_NAT64: Final = ip_network("64:ff9b::/96")
_COMPATIBLE: Final = ip_network("::/96")


class AddressRules(msgspec.Struct, frozen=True):
    """See the module. hosts: names, and `*.name` for all below a name; empty: every name."""

    hosts: tuple[str, ...] = ()
    networks: tuple[Network, ...] = ()

    def takes_host(self, host: str) -> bool:
        """Whether the name is on the allow-list."""
        return not self.hosts or any(is_host_of(pattern, host) for pattern in self.hosts)

    def takes_address(self, address: str) -> bool:
        """Whether a connection to this address may be made. A scope (`fe80::1%eth0`) makes no difference."""
        found = ip_address(address.partition("%")[0])
        inner = _embedded(found)
        if any(one in network for one in (found, inner) for network in self.networks if one.version == network.version):
            return True
        return _is_public(found if inner == found else inner)


def address_rules(hosts: Sequence[str], networks: Sequence[str]) -> AddressRules:
    """Rules from settings. Raises ValueError naming what is no network."""
    return AddressRules(tuple(host.lower() for host in hosts), tuple(ip_network(network) for network in networks))


def is_host_of(pattern: str, host: str) -> bool:
    """Whether a name is the pattern's, or below it for `*.name`. Case and a final dot make no difference."""
    name = host.lower().rstrip(".")
    if pattern.startswith("*."):
        return name.endswith(pattern[1:].lower())
    return name == pattern.lower()


def _is_public(address: Address) -> bool:
    return address.is_global and not address.is_multicast and address not in _METADATA


def _embedded(address: Address) -> Address:
    """The IPv4 address that a packet to this one ends at, or the address itself."""
    if isinstance(address, IPv4Address):
        return address
    if found := address.ipv4_mapped or address.sixtofour:
        return found
    if address.teredo:
        return address.teredo[1]
    if address in _NAT64 or (address in _COMPATIBLE and int(address) > 1):
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    return address
