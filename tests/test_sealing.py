"""sealing.py: what was sealed comes back, and nothing else is taken for it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import RequestError
from engine.sealing import KEY_BYTES, Sealer, new_key

SEALER = Sealer(bytes(range(KEY_BYTES)))
TEXT = SEALER.seal("reasoning", b"Let me think.")


def check_refused(sealer: Sealer, kind: str, text: str) -> None:
    with pytest.raises(RequestError) as caught:
        sealer.unseal(kind, text)
    error = caught.value
    assert (error.code, error.param, error.status) == ("invalid_encrypted_content", "encrypted_content", 400)


@given(kind=st.text(), data=st.binary())
def test_what_was_sealed_comes_back(kind: str, data: bytes) -> None:
    assert SEALER.unseal(kind, SEALER.seal(kind, data)) == data


def test_the_same_data_gives_the_same_text_so_that_a_replay_is_the_same_to_the_byte() -> None:
    assert SEALER.seal("reasoning", b"Let me think.") == TEXT


def test_what_an_older_server_has_sealed_is_opened() -> None:
    old = "lls1.DQn0l6J27vGhAu6QYJeHTGGZWRsCWZSokPlZJY44OavkJKUtpg=="
    assert SEALER.unseal("reasoning", old) == b"Let me think."


@pytest.mark.parametrize("at", range(len(TEXT)))
def test_one_changed_character_is_refused(at: int) -> None:
    for other in "A_!é":
        if other != TEXT[at]:
            check_refused(SEALER, "reasoning", TEXT[:at] + other + TEXT[at + 1 :])


@pytest.mark.parametrize("at", range(5, len(TEXT)))
def test_characters_that_do_not_belong_there_are_refused(at: int) -> None:
    check_refused(SEALER, "reasoning", f"{TEXT[:at]}\n{TEXT[at:]}")


@pytest.mark.parametrize("length", range(len(TEXT)))
def test_a_cut_text_is_refused(length: int) -> None:
    check_refused(SEALER, "reasoning", TEXT[:length])


@given(text=st.text())
def test_any_other_text_is_refused(text: str) -> None:
    check_refused(SEALER, "reasoning", text)
    check_refused(SEALER, "reasoning", f"lls1.{text}")


def test_a_text_opens_only_as_what_it_was_sealed_for() -> None:
    check_refused(SEALER, "compaction", TEXT)


def test_another_servers_text_is_refused() -> None:
    check_refused(Sealer(new_key()), "reasoning", TEXT)


@pytest.mark.parametrize("length", [0, 32, KEY_BYTES - 1, KEY_BYTES + 1])
def test_a_key_of_another_length_is_no_key(length: int) -> None:
    with pytest.raises(ValueError, match="bytes"):
        Sealer(bytes(length))
