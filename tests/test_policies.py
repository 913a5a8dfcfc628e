"""config.py, policies.py, secrets.py, verdict.py: what people write, and what becomes of it."""

import random
import string
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from engine.safety.config import Policy, PolicyList
from engine.safety.expression import parse_expression
from engine.safety.patterns import Patterns, Scan
from engine.safety.policies import Judged, Policies, compile_policies
from engine.safety.secrets import FORMATS
from engine.safety.verdict import Finding, finding, merged, stops

POLICY: TypeAdapter[Policy] = TypeAdapter(Policy)
MODEL = {"name": "tone", "kind": "model", "model": "some/model", "labels": {"toxic": 0.8}}


def compiled(*policies: dict[str, Any]) -> Policies:
    return compile_policies([POLICY.validate_python(policy) for policy in policies])


def test_policies_are_sorted_by_the_places_that_they_look_at() -> None:
    policies = compiled(
        {"name": "keys", "kind": "secrets", "on": ["output", "arguments"]},
        {"name": "words", "kind": "patterns", "patterns": ["falcon"], "action": "flag"},
        MODEL | {"on": ["input"]},
    )
    names = {place: [policy.name for policy in found] for place, found in policies.classifiers.items()}
    words_only, both = ["words"], ["keys", "words"]
    assert names == {"input": words_only, "tool_output": words_only, "output": both, "arguments": both}
    assert [policy.name for policy in policies.judged["input"]] == ["tone"]
    assert not policies.judged["output"]
    assert policies.models == {"some/model": {"toxic"}}


def test_two_policies_of_one_model_ask_for_the_labels_of_both() -> None:
    policies = compiled(MODEL, MODEL | {"name": "other", "labels": {"insult": 0.5}})
    assert policies.models == {"some/model": {"toxic", "insult"}}


def test_a_classifier_tells_a_match_once() -> None:
    classifier = compiled(
        {"name": "words", "kind": "patterns", "patterns": ["falcon", "heron"], "ignore_case": True, "action": "flag"}
    ).classifiers["input"][0]
    verdict, scan = classifier.classify(Scan(), "The FALC", is_last=False)
    assert (verdict, scan.num_undecided) == ("pass", 4)
    verdict, scan = classifier.classify(scan, "on and", is_last=False)
    assert (verdict, scan.num_undecided) == ("flag", 0)
    assert classifier.classify(scan, " the heron", is_last=True) == ("pass", scan)


@pytest.mark.parametrize(
    ("scores", "verdict"),
    [({"toxic": 0.8}, "block"), ({"toxic": 0.79, "calm": 1.0}, "pass"), ({}, "pass"), ({"insult": 0.5}, "block")],
)
def test_a_judged_policy_goes_by_its_thresholds(scores: dict[str, float], verdict: str) -> None:
    policy = Judged("tone", frozenset({"input"}), "block", "some/model", {"toxic": 0.8, "insult": 0.5}, 400)
    assert policy.verdict(scores) == verdict


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "nonsense"}, "nonsense"),
        ({"on": ["outputs"]}, "'input', 'tool_output', 'output' or 'arguments'"),
        ({"on": []}, "at least 1"),
        ({"action": "shout"}, "'flag' or 'block'"),
        ({"patterns": ["ok", "no*"]}, r"'no\*' has, at character 2"),
        ({"patterns": []}, "at least 1"),
        ({"pattern": "x"}, "pattern"),
        ({"name": ""}, "name"),
        (MODEL | {"labels": {}}, "labels"),
        (MODEL | {"labels": {"toxic": 1.5}}, "labels.toxic"),
        (MODEL | {"stride_chars": 0}, "stride_chars"),
    ],
)
def test_what_is_wrong_with_a_policy_is_said(changes: dict[str, Any], message: str) -> None:
    words = {"name": "words", "kind": "patterns", "patterns": ["falcon"]}
    with pytest.raises(ValidationError, match=message):
        POLICY.validate_python((words if changes.get("kind") != "model" else {}) | changes)


def test_two_policies_of_one_name_are_refused() -> None:
    with pytest.raises(ValidationError, match="two policies are named 'keys'"):
        TypeAdapter(PolicyList).validate_python([{"name": "keys", "kind": "secrets"}] * 2)


def test_policies_that_are_too_large_for_re2_are_refused() -> None:
    patterns = [f"[a-z]{{1,1000}}{number}[A-Z]{{1,1000}}" for number in range(200)]
    with pytest.raises(ValueError, match="pattern too large"):
        compiled({"name": "words", "kind": "patterns", "patterns": patterns})


# --- secrets -------------------------------------------------------------------------------------------------------

# Made up, in two parts, so that no scanner takes this file for a leak.
EXAMPLES = {
    "private key": ("-----BEGIN OPENSSH ", "PRIVATE KEY-----"),
    "JSON web token": ("eyJhbGciOiJIUzI1NiIs", "InR5cCI6IkpXVCJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.SflKxwRJSM"),
    "Age": ("AGE-SECRET-", "KEY-1" + "QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L" * 2),
    "Anthropic": ("sk-ant-", "api03-" + "aB3_dE6-" * 8),
    "AWS": ("AKIA", "IOSFODNN7EXAMPLE"),
    "Azure storage": ("AccountKey=", "aB3/dE6+" * 10 + "aB3/dE" + "=="),
    "Cerebras": ("csk-", "a1b2c3d4" * 6),
    "Databricks": ("dapi", "0123456789abcdef" * 2),
    "DigitalOcean": ("dop_v1_", "0123456789abcdef" * 4),
    "GitHub": ("ghp_", "aB3dE6gH9" * 4),
    "GitHub, fine-grained": ("github_pat_", "A1b2C3d4E5f" * 2 + "_" + "A1b2C3d4E5f" * 5 + "A1b2"),
    "GitLab": ("glpat-", "aB3dE6gH9jK2mN5pQ8sT"),
    "Google": ("AIza", "SyA-aB3dE6gH9jK2mN5pQ8sT_vW3xY6zA9b"),
    "Google OAuth": ("ya29.", "a0AfH6SM" * 5),
    "Hugging Face": ("hf_", "aBcDeFgHiJkLmNoPq" * 2),
    "npm": ("npm_", "aB3dE6gH9" * 4),
    "OpenAI": ("sk-proj-", "aB3_dE6-" * 12),
    "PyPI": ("pypi-AgEIcHlwaS5vcmc", "CJGFiY2RlZmdo" * 6),
    "SendGrid": ("SG.", "aB3dE6gH9jK" * 2 + "." + "aB3dE6gH9jK" * 3 + "aB3dE6gH9j"),
    "Shopify": ("shpat_", "0123456789abcdef" * 2),
    "Slack": ("xoxb-", "123456789012-1234567890123-AbCdEf"),
    "Slack webhook": ("https://hooks.slack.com/", "services/T01234567/B01234567/" + "aB3dE6gH" * 3),
    "Stripe": ("sk_live_", "aB3dE6gH" * 3),
    "Telegram": ("123456789:", "AAF" + "aB3dE6gH" * 4),
    "Vault": ("hvs.", "aB3dE6gH" * 3),
}


def matching(text: str) -> list[str]:
    scanned = {
        name: Patterns([parse_expression(pattern)]).scan(Scan(), text, is_last=True)
        for name, pattern in FORMATS.items()
    }
    return [name for name, scan in scanned.items() if scan.is_found]


def test_there_is_an_example_of_every_format() -> None:
    assert EXAMPLES.keys() == FORMATS.keys()


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_key_is_found_in_its_surroundings_and_by_its_own_format(name: str) -> None:
    key = "".join(EXAMPLES[name])
    assert name in matching(f'export TOKEN="{key}"')
    assert name not in matching(key[:10])


@pytest.mark.parametrize(
    "text",
    [
        "task-force, risk-averse and disk-based designs of the 1970s",
        "commit 9fceb02d0ae598e95dc970b74767f19372d61af8 in hf_transfer and npm_config_registry",
        "550e8400-e29b-41d4-a716-446655440000",
        "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk",
        "-----BEGIN CERTIFICATE-----",
        "resp_0123456789abcdef01234567 call_0123456789abcdef01234567",
        "".join(random.Random(1).choices(string.ascii_letters + string.digits + "/+ ", k=20_000)),
    ],
)
def test_what_is_no_key_is_none(text: str) -> None:
    assert matching(text) == []


# --- verdicts ------------------------------------------------------------------------------------------------------


def test_findings_of_one_kind_are_counted_together() -> None:
    one, other = finding("keys", "output", "flag"), finding("keys", "input", "failed")
    assert merged(merged([], [one, other]), [one]) == [
        Finding("keys", "output", "flagged", 2),
        Finding("keys", "input", "failed", 1),
    ]


def test_what_stops_a_run() -> None:
    assert stops("block", "block", fails_closed=False)
    assert stops("failed", "block", fails_closed=True)
    assert not stops("failed", "block", fails_closed=False)
    assert not stops("failed", "flag", fails_closed=True)
    assert not stops("flag", "flag", fails_closed=True)
    assert not stops("pass", "block", fails_closed=True)
