"""scorer.py: scores are the model's own, however long the text is."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from engine.safety.scorer import load_scorer
from tests.tiny_classifier import LABELS, MAX_TOKENS, make_network, make_tokenizer, save_classifier

ROOM = MAX_TOKENS - 2  # words beside the special tokens


def loaded(folder: Path, **config: Any) -> Any:
    return load_scorer(save_classifier(folder, **config), threads=1, progress=lambda stage, done, total: None)


def stock(words: list[str], **config: Any) -> torch.Tensor:
    """What the stock model says of so many words."""
    ids = torch.tensor([make_tokenizer().encode(" ".join(words)).ids])
    with torch.inference_mode():
        return make_network(**config)(input_ids=ids).logits[0]


def test_labels_that_exclude_each_other_share_one(tmp_path: Path) -> None:
    scores = loaded(tmp_path).score("the day was bad")
    assert list(scores) == LABELS
    assert list(scores.values()) == pytest.approx(stock(["the", "day", "was", "bad"]).softmax(-1).tolist(), abs=1e-5)


@pytest.mark.parametrize(
    "config", [{"problem_type": "multi_label_classification"}, {"id2label": {0: "toxic"}, "label2id": {"toxic": 0}}]
)
def test_independent_labels_have_one_each(tmp_path: Path, config: dict[str, Any]) -> None:
    scores = loaded(tmp_path, **config).score("bad")
    assert list(scores.values()) == pytest.approx(stock(["bad"], **config).sigmoid().tolist(), abs=1e-5)


@pytest.mark.parametrize("pad_token_id", [0, None])
@pytest.mark.parametrize("place", [0, ROOM - 1, ROOM, 40, 99])
def test_a_long_text_is_scored_in_windows_and_the_highest_counts(
    tmp_path: Path, place: int, pad_token_id: int | None
) -> None:
    words = ["good"] * 100
    words[place] = "bad"
    scores = loaded(tmp_path, pad_token_id=pad_token_id).score(" ".join(words))
    step = ROOM - MAX_TOKENS // 4
    windows = [stock(words[start : start + ROOM]).softmax(-1) for start in range(0, 100, step)]
    expected = torch.stack(windows).amax(0).tolist()
    # The last window may begin elsewhere, and says the same of nothing but good.
    assert list(scores.values()) == pytest.approx(expected, abs=0.05)
    assert scores["toxic"] == pytest.approx(max(window[1].item() for window in windows), abs=0.05)


def test_an_empty_text_has_scores(tmp_path: Path) -> None:
    assert sum(loaded(tmp_path).score("").values()) == pytest.approx(1)


@pytest.mark.parametrize(("said", "longest"), [(8, 8), (1e30, MAX_TOKENS), (None, MAX_TOKENS)])
def test_the_window_is_what_model_and_tokenizer_can_take(tmp_path: Path, said: float | None, longest: int) -> None:
    config = {} if said is None else {"model_max_length": said}
    (tmp_path / "tokenizer_config.json").write_bytes(msgspec.json.encode(config))
    scorer = loaded(tmp_path)
    assert len(scorer._tokenizer.encode("good " * 50).ids) == longest


def test_loading_tells_its_stages(tmp_path: Path) -> None:
    stages: list[tuple[str, int, int]] = []
    load_scorer(save_classifier(tmp_path), threads=1, progress=lambda *stage: stages.append(stage))
    assert stages == [("weights", 0, 1), ("weights", 1, 1), ("warm-up", 0, 1), ("warm-up", 1, 1)]
