"""The specification and its tests: every numbered rule of protocol.md is cited by a test, and no test cites another."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
NUMBERED = re.findall(r"\*\*(P\d+)\*\* ", (ROOT / "protocol.md").read_text())
RULES = set(NUMBERED)


def cited() -> set[str]:
    """Rules named in comments or docstrings of test files."""
    files = [file for file in (ROOT / "tests").rglob("test_*.py") if file.name != "test_protocol.py"]
    return {rule for file in files for rule in re.findall(r"\bP\d+\b", file.read_text())}


def test_every_rule_has_a_test():
    assert not RULES - cited()


def test_tests_cite_only_rules_that_exist():
    assert not cited() - RULES


def test_no_number_stands_for_two_rules():
    assert len(NUMBERED) == len(RULES)
