"""An HTTP transport that connects only where AddressRules permit it, whatever a name resolves to, and when.

Each request's host is looked up once; the connection is made to the addresses that were looked at, never to the name.
So a name whose next answer is another one changes nothing, and every redirect is a request of its own that is judged
as the first was. TLS and the `Host` header keep the name.
"""

import socket
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import httpx2
import trio

from engine.hosted.addresses import AddressRules

# Host and port to addresses. Raises OSError.
Resolve = Callable[[str, int], Awaitable[list[str]]]
_PORTS: Final = {"http": 80, "https": 443}


class Refused(httpx2.ConnectError):
    """No connection may be made there. The message is for the model."""


async def resolve(host: str, port: int) -> list[str]:
    """The addresses of a host, as the system's resolver orders them."""
    found = await trio.socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


class GuardedTransport(httpx2.AsyncBaseTransport):
    """See the module."""

    def __init__(
        self,
        rules: AddressRules,
        *,
        resolve: Resolve = resolve,
        new_inner: Callable[[], httpx2.AsyncBaseTransport] | None = None,
    ) -> None:
        """new_inner: makes the transport for one host; a fresh httpx2 one unless a test brings its own."""
        self._rules = rules
        self._resolve = resolve
        self._new_inner = new_inner or partial(httpx2.AsyncHTTPTransport, trust_env=False)
        # One for each host: a pool knows connections by address, and two hosts of one address must not share any.
        self._inner: dict[str, httpx2.AsyncBaseTransport] = {}

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Raises Refused, or what httpx2 raises."""
        addresses = await self._permitted(request)
        inner = self._inner[request.url.host] = self._inner.get(request.url.host) or self._new_inner()
        for address in addresses[:-1]:
            try:
                return await inner.handle_async_request(_pinned(request, address))
            except (httpx2.ConnectError, httpx2.ConnectTimeout):
                continue  # nothing was sent: the next address is as good
        return await inner.handle_async_request(_pinned(request, addresses[-1]))

    async def aclose(self) -> None:
        for inner in self._inner.values():
            await inner.aclose()

    async def _permitted(self, request: httpx2.Request) -> list[str]:
        """The addresses to connect to, at least one; all of a host are permitted, or none is."""
        url = request.url
        if url.scheme not in _PORTS:
            raise Refused(f"Only http and https can be fetched, not {url.scheme or 'a URL without a scheme'}.")
        if not self._rules.takes_host(url.host):
            raise Refused(f"{url.host} is not one of the hosts that may be fetched.")
        try:
            addresses = await self._resolve(url.host, url.port or _PORTS[url.scheme])
        except (OSError, UnicodeError) as error:
            raise httpx2.ConnectError(f"{url.host} has no address.") from error
        if not addresses:
            raise httpx2.ConnectError(f"{url.host} has no address.")
        if not all(map(self._rules.takes_address, addresses)):
            raise Refused(f"{url.host} has an address that may not be fetched (private, local or of the machine).")
        return addresses


def _pinned(request: httpx2.Request, address: str) -> httpx2.Request:
    """The same request to an address; its headers already say the host's name."""
    return httpx2.Request(
        request.method,
        request.url.copy_with(host=address),
        headers=request.headers,
        stream=request.stream,
        extensions={**request.extensions, "sni_hostname": request.url.host},
    )
