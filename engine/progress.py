"""How far a run has come: all of its state that is small, in one value that the journal writes down and reads back."""

import msgspec

from engine.backends.base import ToolChoice
from engine.events import TimingReport
from engine.items import Message
from engine.safety.verdict import Finding, merged
from engine.status import Status
from engine.usage import Timing, Usage, rounded


class Progress(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A run's counters, choices and marks. `usage` and `timing` are those of the step that has just ended.

    messages: what the client said for the next step. is_step_whole: nothing cut the newest step short. findings: what
    policies have found in what the run was given and made. num_hosted_calls: refused ones, too; is_told_of_limit: the
    model knows that there may be no more.
    """

    choice: ToolChoice
    next_choice: ToolChoice | None = None
    status: Status = Status.IN_PROGRESS
    num_steps: int = 0
    num_segments: int = 0
    is_step_whole: bool = False
    usage: Usage | None = None
    timing: TimingReport | msgspec.UnsetType = msgspec.UNSET
    run_usage: Usage = Usage()
    run_timing: Timing = Timing()
    messages: list[Message] = []
    unsolicited_from: int | None = None
    num_hosted_calls: int = 0
    is_told_of_limit: bool = False
    findings: tuple[Finding, ...] = ()  # one for all runs in which nothing was found, as a list would not be

    def note(self, found: Finding) -> None:
        """A policy has found something."""
        self.findings = tuple(merged(self.findings, [found]))

    def step_ended(self, usage: Usage, timing: Timing, *, is_whole: bool = True) -> None:
        """Account a step; its cost shows in the next terminal event. is_whole: all that it made was told."""
        self.is_step_whole = is_whole
        self.usage = usage
        self.add(usage)
        self.run_timing += timing
        self.timing = TimingReport(rounded(timing), rounded(self.run_timing))

    def add(self, usage: Usage) -> None:
        """Something was sampled: a step, or a summary."""
        self.num_segments += 1
        self.run_usage += usage

    def forget_step(self) -> None:
        """No step ends here: its usage has been told already, and clients add up what every terminal says."""
        self.usage, self.timing = None, msgspec.UNSET

    def called(self) -> None:
        """The model calls: nothing is forced any more, but tools that are allowed stay the only ones."""
        if self.choice.mode == "required":
            self.choice = ToolChoice("auto", None if self.choice.is_named else self.choice.allowed)

    def take_messages(self) -> list[Message]:
        """What was said for the step that begins now, with the choice that was made for it."""
        self.choice, self.next_choice = self.next_choice or self.choice, None
        messages, self.messages = self.messages, []
        return messages
