"""guide.py: the three modes, as tables of logits in and ids out, and replay."""

import numpy as np
import pytest
from tokenizers import Tokenizer

from engine.backends.constraint import Constraint
from engine.backends.guide import GrammarError, Guide, Guides
from tests.tiny import STOP_ID, VOCAB_SIZE, save_tokenizer

CALL = 'start: "<" "call>" ("a" | "b") ">"'


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return Tokenizer.from_file(str(save_tokenizer(tmp_path_factory.mktemp("tokenizer"))))


@pytest.fixture(scope="module")
def guides(tmp_path_factory):
    file = save_tokenizer(tmp_path_factory.mktemp("guides"))
    return Guides(file, vocab_size=VOCAB_SIZE, stop_ids=[STOP_ID])


def likes(tokenizer, *texts: str, logit: float = 10.0) -> np.ndarray:
    """A row that prefers these one-token texts, the first most."""
    row = np.zeros(VOCAB_SIZE, np.float32)
    for rank, text in enumerate(texts):
        row[tokenizer.token_to_id(text)] = logit - rank
    return row


def run(guide: Guide, tokenizer, texts: list[str], limit: int = 40) -> list[int]:
    """Greedy decoding against rows that like `texts[n]` in the n-th draw; ends with the stop id."""
    ids = guide.start()
    for text in texts:
        if len(ids) > limit or STOP_ID in ids:
            break
        row = likes(tokenizer, text)
        guide.restrict(row)
        drawn = int(row.argmax())
        ids += [drawn, *guide.advance(drawn)]
    return ids


def text_of(tokenizer, ids: list[int]) -> str:
    return tokenizer.decode(ids, skip_special_tokens=False)


def test_always_holds_from_the_first_token_and_stops_when_complete(guides, tokenizer):
    guide = guides.guide(Constraint(CALL))
    assert text_of(tokenizer, run(guide, tokenizer, ["b", "x", "x"])) == "<call>b><|im_end|>"


def test_always_hands_out_what_is_forced_before_any_draw(guides, tokenizer):
    assert text_of(tokenizer, guides.guide(Constraint(CALL)).start()) == "<call>"


def test_a_choice_that_is_not_allowed_is_not_drawn(guides, tokenizer):
    guide = guides.guide(Constraint(CALL))
    assert text_of(tokenizer, run(guide, tokenizer, ["z"])) in {"<call>a><|im_end|>", "<call>b><|im_end|>"}


def test_a_complete_grammar_that_could_go_on_allows_the_stop_id(guides, tokenizer):
    guide = guides.guide(Constraint('start: "a" "b"?'))
    assert text_of(tokenizer, run(guide, tokenizer, ["<|im_end|>"])) == "a<|im_end|>"
    guide = guides.guide(Constraint('start: "a" "b"?'))
    assert text_of(tokenizer, run(guide, tokenizer, ["b"])) == "ab<|im_end|>"


def test_the_stop_id_may_not_come_before_the_grammar_is_complete(guides, tokenizer):
    guide = guides.guide(Constraint(CALL))
    guide.start()
    row = likes(tokenizer, "<|im_end|>")
    guide.restrict(row)
    assert row[STOP_ID] == -np.inf


def test_ids_beyond_the_tokenizer_may_not_come(guides, tokenizer):
    guide = guides.guide(Constraint("start: /.*/"))
    guide.start()
    row = np.zeros(VOCAB_SIZE, np.float32)
    guide.restrict(row)
    assert np.isinf(row[tokenizer.get_vocab_size() :]).all()
    assert np.isfinite(row[tokenizer.token_to_id("a")])


def decide(tokenizer, threshold: float) -> Constraint:
    return Constraint(CALL, "decide", tokenizer.token_to_id("<"), threshold)


def test_decide_at_the_threshold_holds_the_grammar(guides, tokenizer):
    guide = guides.guide(decide(tokenizer, -20.0))
    assert text_of(tokenizer, run(guide, tokenizer, ["h", "a", "x"])) == "<call>a><|im_end|>"


def test_decide_below_the_threshold_frees_the_step_but_for_the_first_trigger(guides, tokenizer):
    guide = guides.guide(decide(tokenizer, -0.0001))
    assert guide.start() == []
    row = likes(tokenizer, "<", "h", logit=3.0)
    guide.restrict(row)
    assert row[tokenizer.token_to_id("<")] == -np.inf
    assert np.isfinite(row).sum() == VOCAB_SIZE - 1
    assert guide.advance(tokenizer.token_to_id("h")) == []
    row = likes(tokenizer, "<")
    guide.restrict(row)
    assert np.isfinite(row).all()
    assert guide.advance(tokenizer.token_to_id("<")) == []


def two_tokens(tokenizer, threshold: float) -> Constraint:
    """The same, decided by the opening's first two ids."""
    return Constraint(CALL, "decide", tokenizer.token_to_id("<"), threshold, tokenizer.token_to_id("c"))


def chance(row: np.ndarray, token_id: int) -> float:
    return float(row[token_id] - np.log(np.exp(row.astype(float)).sum()))


@pytest.mark.parametrize("begins", [True, False])
def test_second_id_decides_with_the_first(guides, tokenizer, begins):
    first, second = likes(tokenizer, "<", logit=3.0), likes(tokenizer, "c", logit=2.0)
    opening, next_ = tokenizer.token_to_id("<"), tokenizer.token_to_id("c")
    score = chance(first, opening) + chance(second, next_)
    guide = guides.guide(two_tokens(tokenizer, score - 0.01 if begins else score + 0.01))
    assert guide.trial(first) == opening
    assert guide.settle(second) is begins
    assert guide.trial(first) is None  # once is enough
    guide.restrict(first)
    assert np.isfinite(first[opening]) == begins
    assert np.isfinite(first).sum() == (1 if begins else VOCAB_SIZE - 1)


def test_first_id_that_is_too_unlikely_needs_no_trial(guides, tokenizer):
    row = likes(tokenizer, "h", logit=9.0)
    guide = guides.guide(two_tokens(tokenizer, -5.0))
    assert guide.trial(row) is None
    guide.restrict(row)
    assert row[tokenizer.token_to_id("<")] == -np.inf


def test_nothing_is_tried_without_a_second_id_or_behind_the_first_draw(guides, tokenizer):
    row = likes(tokenizer, "<")
    for constraint in (decide(tokenizer, -20.0), Constraint(CALL), Constraint(CALL, "on_trigger", 1)):
        assert guides.guide(constraint).trial(row) is None
    guide = guides.guide(two_tokens(tokenizer, -20.0))
    guide.start([tokenizer.token_to_id("h")])
    assert guide.trial(row) is None


def test_on_trigger_is_free_until_the_trigger_and_after_the_grammar(guides, tokenizer):
    guide = guides.guide(Constraint(CALL, "on_trigger", tokenizer.token_to_id("<")))
    texts = ["h", "i", "<", "a", "b", "<", "b", "<|im_end|>"]
    assert text_of(tokenizer, run(guide, tokenizer, texts)) == "hi<call>a>b<call>b><|im_end|>"


def test_on_trigger_may_end_before_the_trigger(guides, tokenizer):
    guide = guides.guide(Constraint(CALL, "on_trigger", tokenizer.token_to_id("<")))
    assert text_of(tokenizer, run(guide, tokenizer, ["h", "<|im_end|>"])) == "h<|im_end|>"


@pytest.mark.parametrize("mode", ["always", "decide", "on_trigger"])
def test_a_replayed_guide_goes_on_where_the_first_one_was(guides, tokenizer, mode):
    constraint = Constraint(CALL, mode, tokenizer.token_to_id("<"), -50.0)
    texts = {"always": ["a"], "decide": ["h", "a"], "on_trigger": ["h", "<", "a", "b", "<"]}[mode]
    ids = run(guides.guide(constraint), tokenizer, texts)
    for cut in range(len(ids)):
        guide = guides.guide(constraint)
        forced = guide.start(ids[:cut])
        assert ids[cut : cut + len(forced)] == forced[: len(ids) - cut]
        assert (STOP_ID in ids) == (mode != "on_trigger")


@pytest.mark.parametrize("mode", ["always", "decide", "on_trigger"])
def test_what_is_forced_can_be_drawn_one_by_one_and_is_the_same(guides, tokenizer, mode):
    constraint = Constraint(CALL, mode, tokenizer.token_to_id("<"), -50.0)
    ids = run(guides.guide(constraint), tokenizer, ["<", "b", "<|im_end|>"] if mode == "on_trigger" else ["b"] * 9)
    guide, drawn = guides.guide(constraint, hands_out=False), []
    assert guide.start() == []
    while not drawn or drawn[-1] != STOP_ID:
        row = likes(tokenizer, *(["<"] if not drawn else ["b", "<|im_end|>"]))
        guide.restrict(row)
        drawn.append(int(row.argmax()))
        assert guide.advance(drawn[-1]) == []
        if mode == "on_trigger" and len(drawn) == len(ids) - 1:
            drawn.append(STOP_ID)  # free again
    assert drawn == ids


def test_a_guide_does_not_disturb_the_next_one_of_the_same_grammar(guides, tokenizer):
    first, second = guides.guide(Constraint(CALL)), guides.guide(Constraint(CALL))
    assert first.start() == second.start()
    assert first.advance(tokenizer.token_to_id("a")) == second.advance(tokenizer.token_to_id("a"))


def test_many_guides_do_not_pile_up(guides):
    for number in range(100):
        guides.guide(Constraint(f'start: "n{number}"'))
    assert len(guides._matchers) == 64


def test_no_grammar_is_an_error_with_its_reason(guides):
    with pytest.raises(GrammarError, match="unknown"):
        guides.guide(Constraint("start: nothing"))


def test_an_id_against_the_grammar_is_an_error(guides, tokenizer):
    guide = guides.guide(Constraint(CALL))
    guide.start()
    with pytest.raises(GrammarError):
        guide.advance(tokenizer.token_to_id("z"))


def test_json_schema_arguments_come_out_valid(guides, tokenizer):
    schema = '{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"],"additionalProperties":false}'
    grammar = f"start: %json {schema}"
    ids = run(guides.guide(Constraint(grammar)), tokenizer, ["{", '"', ":", "7", "}", "<|im_end|>"])
    assert '"n":' in text_of(tokenizer, ids).replace(" ", "")


def test_a_mask_may_be_filled_ahead_and_is_the_same(guides, tokenizer):
    schema = '{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"],"additionalProperties":false}'
    ahead, alone = (guides.guide(Constraint(f"start: %json {schema}"), hands_out=False) for _ in range(2))
    waiting = guides.guide(decide(tokenizer, -20.0))
    chance = np.random.default_rng(0)
    for _ in range(40):
        guides.look_ahead([ahead, waiting])
        assert not ahead.lacks_mask and not waiting.lacks_mask
        guides.look_ahead([ahead])  # once is enough
        row = chance.normal(0, 1, VOCAB_SIZE).astype(np.float32)
        expected = row.copy()
        ahead.restrict(row)
        alone.restrict(expected)
        assert np.array_equal(row, expected)
        drawn = int(row.argmax())
        ahead.advance(drawn)
        alone.advance(drawn)
        if drawn == STOP_ID:
            break
    assert ahead.lacks_mask == alone.lacks_mask


def test_a_mask_that_is_being_filled_is_waited_for_before_an_id_is_taken(guides, tokenizer):
    guide = guides.guide(Constraint(CALL), hands_out=False)
    ids = tokenizer.encode("<call>a>", add_special_tokens=False).ids
    for token_id in ids:
        guides.look_ahead([guide])
        guide.advance(token_id)
    row = np.zeros(VOCAB_SIZE, np.float32)
    guide.restrict(row)
    assert [int(id_) for id_ in np.flatnonzero(np.isfinite(row))] == [STOP_ID]
