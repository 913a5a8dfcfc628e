"""TLS before a server that speaks none: a certificate made for this comparison alone, and what terminates with it."""

import ipaddress
import ssl
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import trio
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from engine.compare.link import Direction, Traffic, carry_both, start_forwarder

_HOST: Final = "127.0.0.1"


@dataclass(frozen=True)
class Contexts:
    """Both ends' TLS: the client trusts the server's certificate and no other."""

    server: ssl.SSLContext
    client: ssl.SSLContext


def make_contexts() -> Contexts:
    """A key and a certificate for this machine's loopback address, valid for a day, kept nowhere."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "longloop compare")])
    now = datetime.now(UTC)
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(_HOST))])
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - timedelta(hours=1)).not_valid_after(now + timedelta(days=1))
    certificate = builder.add_extension(address, critical=False).sign(key, hashes.SHA256())
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.TemporaryDirectory() as folder:  # ssl reads keys from files only
        file = Path(folder) / "server.pem"
        file.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
            + pem
        )
        server.load_cert_chain(file)
    return Contexts(server, ssl.create_default_context(cadata=pem.decode()))


async def start_terminator(nursery: trio.Nursery, target_port: int, context: ssl.SSLContext) -> int:
    """A port of this machine that speaks TLS and leads to `target_port`, which does not."""

    async def carry(accepted: trio.SocketStream, target: trio.SocketStream) -> None:
        # https_compatible: clients leave without saying so.
        client = trio.SSLStream(accepted, context, server_side=True, https_compatible=True)
        at_once = Direction(0.0, 0.0, 0.0), Direction(0.0, 0.0, 0.0)
        await carry_both(client, target, *at_once, Traffic())

    return await start_forwarder(nursery, carry, target_port)


def wrap(stream: trio.SocketStream, context: ssl.SSLContext) -> "trio.SSLStream[trio.SocketStream]":
    """The client's end. The handshake is done with the first bytes."""
    return trio.SSLStream(stream, context, server_hostname=_HOST, https_compatible=True)
