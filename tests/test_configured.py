"""configured.py: from the settings to a lookout, its models in real workers."""

from pathlib import Path

import pytest
import trio

from engine.backends.pretrained import ModelNotAvailable
from engine.errors import RequestError
from engine.items import Message
from engine.safety.configured import open_lookout
from engine.safety.scorer import load_scorer
from engine.safety.verdict import Finding
from engine.settings import Settings, load
from tests.peers.readme import block
from tests.tiny_classifier import save_classifier


def ignore(what: str, fraction: float) -> None:
    """No progress is shown."""


async def test_without_policies_there_is_none() -> None:
    async with open_lookout(Settings(), ignore) as lookout:
        assert lookout is None


async def test_the_readmes_example_is_taken_up_to_its_model(tmp_path: Path) -> None:
    file = tmp_path / "longloop.toml"
    file.write_text(block("Policies", "toml"))
    policies = load(file).policies
    assert [policy.name for policy in policies] == ["keys", "codenames", "tone"]
    settings = Settings(policies=policies[:2])
    async with open_lookout(settings, ignore) as lookout:
        assert lookout is not None
        with pytest.raises(RequestError, match="refused by the policy 'keys'"):
            await lookout.look_at([Message(role="user", content="AKIA" + "IOSFODNN7EXAMPLE")])
    with pytest.raises(ModelNotAvailable):
        async with open_lookout(Settings(policies=policies), ignore):
            pytest.fail("there is no such model")


async def test_a_model_of_the_settings_judges_as_it_does_here(tmp_path: Path) -> None:
    save_classifier(tmp_path)
    texts = ["the day was bad", "the day is good"]
    scorer = load_scorer(tmp_path, threads=1, progress=lambda *stage: None)
    scores = {text: scorer.score(text)["toxic"] for text in texts}
    found, passed = sorted(texts, key=lambda text: -scores[text])
    threshold = (scores[found] + scores[passed]) / 2
    policy = {"name": "tone", "kind": "model", "model": str(tmp_path), "labels": {"toxic": threshold}, "action": "flag"}
    stages: list[str] = []
    settings = Settings(policies=[policy], safety_threads=2, safety_timeout_s=30)
    with trio.fail_after(60):
        async with open_lookout(settings, lambda what, _: stages.append(what)) as lookout:
            assert lookout is not None
            notes: list[Finding] = []
            for text in (passed, found):
                guard = lookout.open_guard(notes.append)
                guard.took(await lookout.look_at([Message(role="user", content=text)]))
                await guard.wait_settled()
                assert len(notes) == (text == found)
            assert lookout.is_ready
    assert notes == [Finding("tone", "input", "flagged")]
    assert "Loading the model: weights" in stages
