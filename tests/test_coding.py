"""coding.py: bodies under each content coding, cut anywhere, broken, and far larger than they look."""

import gzip
import json
import random
import tracemalloc
import zlib
from collections.abc import Callable

import pytest

from engine.errors import RequestError
from engine.server.coding import body_decoder, zstd
from engine.server.exchange import HttpError

TEXT = json.dumps({"input": [random.Random(1).random() for _ in range(2000)]}).encode()
MIB = 1 << 20
CODINGS: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "x-gzip": gzip.compress, "zstd": zstd.compress}
COMPRESSED = [pytest.param(name, compress, id=name) for name, compress in CODINGS.items()]


def decoded(coding: str, *parts: bytes) -> bytes:
    decoder = body_decoder([coding])
    body = b"".join(piece for part in parts for piece in decoder.decode(part))
    decoder.finish()
    return body


@pytest.mark.parametrize("codings", [[], ["identity"], ["identity", "identity"]])
def test_a_plain_body_stays_as_it_is(codings: list[str]) -> None:
    decoder = body_decoder(codings)
    assert [*decoder.decode(b"ab"), *decoder.decode(b"c")] == [b"ab", b"c"]
    decoder.finish()


@pytest.mark.parametrize(("coding", "compress"), COMPRESSED)
def test_a_body_may_be_cut_anywhere(coding: str, compress: Callable[[bytes], bytes]) -> None:
    text = TEXT[:300]
    wire = compress(text)
    for cut in range(len(wire) + 1):
        assert decoded(coding, wire[:cut], wire[cut:]) == text, f"cut at {cut}"
    assert decoded(coding, *(bytes([byte]) for byte in wire)) == text


@pytest.mark.parametrize(("coding", "compress"), COMPRESSED)
@pytest.mark.parametrize("num_bytes", [0, 1, MIB - 1, MIB, MIB + 1, 3 * MIB])
def test_any_length_comes_whole_in_pieces_of_a_mebibyte(
    coding: str, compress: Callable[[bytes], bytes], num_bytes: int
) -> None:
    decoder = body_decoder([coding])
    pieces = list(decoder.decode(compress(b"x" * num_bytes)))
    decoder.finish()
    assert b"".join(pieces) == b"x" * num_bytes
    assert all(0 < len(piece) <= MIB for piece in pieces)


@pytest.mark.parametrize(("coding", "compress"), COMPRESSED)
def test_several_members_are_one_body(coding: str, compress: Callable[[bytes], bytes]) -> None:
    wire = compress(b"one ") + compress(b"") + compress(b"two")
    for cut in range(len(wire) + 1):
        assert decoded(coding, wire[:cut], wire[cut:]) == b"one two", f"cut at {cut}"


@pytest.mark.parametrize("coding", CODINGS)
def test_no_bytes_are_no_body_under_any_coding(coding: str) -> None:
    assert decoded(coding) == b""


@pytest.mark.parametrize(("coding", "compress"), COMPRESSED)
def test_a_bomb_is_inflated_only_as_far_as_it_is_taken(coding: str, compress: Callable[[bytes], bytes]) -> None:
    bomb = compress(bytes(64 * MIB))
    assert len(bomb) < MIB
    tracemalloc.start()
    try:
        pieces = body_decoder([coding]).decode(bomb)
        assert sum(len(next(pieces)) for _ in range(5)) == 5 * MIB
        assert tracemalloc.get_traced_memory()[1] < 16 * MIB
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(("coding", "compress"), COMPRESSED)
def test_a_body_that_is_cut_short_is_400(coding: str, compress: Callable[[bytes], bytes]) -> None:
    wire = compress(TEXT[:100])
    for cut in range(1, len(wire)):
        with pytest.raises(RequestError) as error:
            decoded(coding, wire[:cut])
        assert (error.value.status, error.value.code) == (400, "malformed_body"), f"cut at {cut}"


@pytest.mark.parametrize(("coding", "compress"), COMPRESSED)
@pytest.mark.parametrize("spoil", [lambda wire: b"{}" + wire, lambda wire: wire + b"{}", lambda wire: b"{}"])
def test_what_is_not_what_the_header_says_is_400(
    coding: str, compress: Callable[[bytes], bytes], spoil: Callable[[bytes], bytes]
) -> None:
    with pytest.raises(RequestError, match="Content-Encoding") as error:
        decoded(coding, spoil(compress(TEXT)))
    assert (error.value.status, error.value.code) == (400, "malformed_body")


@pytest.mark.parametrize("coding", ["gzip", "zstd"])
def test_noise_never_raises_anything_else(coding: str) -> None:
    noise = random.Random(2)
    wire = CODINGS[coding](TEXT)
    for _ in range(500):
        broken = bytearray(wire)
        for _ in range(noise.randint(1, 3)):
            broken[noise.randrange(len(broken))] = noise.randrange(256)
        try:
            decoded(coding, bytes(broken))
        except RequestError as error:
            assert error.code == "malformed_body"


def test_a_zstd_window_over_8_mib_is_refused() -> None:  # P61
    def frame(window_log: int) -> bytes:
        compressor = zstd.ZstdCompressor(options={zstd.CompressionParameter.window_log: window_log})
        return compressor.compress(b"x" * 100) + compressor.flush()

    assert decoded("zstd", frame(23)) == b"x" * 100
    with pytest.raises(RequestError, match="zstd"):
        decoded("zstd", frame(24))


@pytest.mark.parametrize("codings", [["deflate"], ["br"], ["gzip", "zstd"], ["gzip", "gzip"], ["*"]])
def test_other_codings_are_415_and_told_which_are_known(codings: list[str]) -> None:
    with pytest.raises(HttpError, match="Content-Encoding: " + ", ".join(codings).replace("*", r"\*")) as error:
        body_decoder(codings)
    assert (error.value.status, error.value.code) == (415, "unsupported_content_encoding")
    assert error.value.headers == (("accept-encoding", "gzip, zstd, identity"),)


def test_raw_deflate_is_not_taken_for_gzip() -> None:
    with pytest.raises(RequestError, match="gzip"):
        decoded("gzip", zlib.compress(TEXT))
