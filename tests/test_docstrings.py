"""describe: three docstring styles, one meaning."""

import pytest

from engine.docstrings import describe

GOOGLE = """Weather of a city.

    Looks it up: every time.

    Args:
        city (str): The city,
            with its country.
        days: how many: at most 7

    Returns:
        the weather
    """
NUMPY = """Weather of a city.

    Looks it up: every time.

    Parameters
    ----------
    city : str
        The city,
        with its country.
    days
        how many: at most 7

    Returns
    -------
    str
        the weather
    """
REST = """Weather of a city.

    Looks it up: every time.

    :param str city: The city,
        with its country.
    :param days: how many: at most 7
    :returns: the weather
    """


@pytest.mark.parametrize("docstring", [GOOGLE, NUMPY, REST], ids=["google", "numpy", "rest"])
def test_styles_say_the_same(docstring):
    described = describe(docstring)
    assert described.summary == "Weather of a city.\n\nLooks it up: every time."
    assert described.parameters == {"city": "The city, with its country.", "days": "how many: at most 7"}


@pytest.mark.parametrize("docstring", [None, "", "   \n  "])
def test_no_docstring_says_nothing(docstring):
    assert describe(docstring) == ("", {})


def test_text_after_a_google_section_is_description_again():
    described = describe("A.\n\nArgs:\n    x: one\n\nB.")
    assert described == ("A.\n\nB.", {"x": "one"})


def test_star_arguments_lose_their_stars():
    assert describe("A.\n\nArgs:\n    *rest: all\n").parameters == {"rest": "all"}


def test_prose_that_looks_like_a_section_is_prose():
    assert describe("Returns what was sent.\nNote that it is slow.").summary.endswith("slow.")
