"""How a run's items are written: what its client asked to be shown of messages and reasoning."""

import msgspec

from engine.request import RunRequest
from engine.resolving import seal_reasoning
from engine.scaffold import Scaffold
from engine.scaffold_message import MessageScaffold, RatedMessageScaffold
from engine.scaffold_reasoning import ReasoningScaffold, SummaryScaffold
from engine.sealing import Sealer


class ItemStyle(msgspec.Struct, frozen=True):
    """summarises: reasoning goes by the name of a summary. sealer: finished reasoning carries its text sealed.

    agent: who speaks, for clients that ask; its messages then say whether they are the answer. rates: messages carry
    their tokens' log-probabilities.
    """

    summarises: bool = False
    sealer: Sealer | None = None
    agent: str | None = None
    rates: bool = False

    def message(self, output_index: int, item_id: str) -> Scaffold:
        """A message that begins."""
        kind = RatedMessageScaffold if self.rates else MessageScaffold
        return kind(output_index, item_id, self.agent or msgspec.UNSET)

    def reasoning(self, output_index: int, item_id: str) -> Scaffold:
        """Reasoning that begins."""
        return (SummaryScaffold if self.summarises else ReasoningScaffold)(output_index, item_id)

    def finished(self, scaffold: Scaffold, text: str, *, is_final: bool) -> Scaffold:
        """The scaffold with what is known at the end. is_final: nothing comes after the item."""
        if isinstance(scaffold, MessageScaffold) and self.agent:
            return msgspec.structs.replace(scaffold, phase="final_answer" if is_final else "commentary")
        if isinstance(scaffold, ReasoningScaffold | SummaryScaffold) and self.sealer:
            return msgspec.structs.replace(scaffold, encrypted_content=seal_reasoning(text, self.sealer))
        return scaffold


def style_of(request: RunRequest, sealer: Sealer | None) -> ItemStyle:
    """The style that a request asks for; without a sealer nothing is sealed."""
    return ItemStyle(
        summarises=request.wants_summary,
        sealer=sealer if request.wants_sealed else None,
        rates=request.top_logprobs is not None,
        agent="/root" if request.names_agent else None,  # the beta's clients take no other for the answer
    )
