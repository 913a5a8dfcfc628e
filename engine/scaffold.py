"""The events around one item: one place for every kind, live and replayed.

An item that streams is `head` events (it is announced), any number of `delta` events, and `tail` events (its text
whole, then the item whole). The same scaffold writes them while the model samples and writes them again for a reader
that comes later, so a finished item needs to keep only its text and where the deltas were cut (folded.py). What is
known only at the end (a message's phase, sealed reasoning, what is left of a compacted context) is put into the
scaffold then, which is why no head may show it.

All scaffolds have the same methods; `seq` is the sequence number of the (first) event that is asked for, `index` counts
deltas. Their tags name them in the journal.
"""

from engine.scaffold_call import CustomToolCallScaffold, FunctionCallScaffold
from engine.scaffold_compaction import CompactionScaffold
from engine.scaffold_message import MessageScaffold, RatedMessageScaffold
from engine.scaffold_reasoning import ReasoningScaffold, SummaryScaffold

Scaffold = (
    MessageScaffold
    | RatedMessageScaffold
    | ReasoningScaffold
    | SummaryScaffold
    | FunctionCallScaffold
    | CustomToolCallScaffold
    | CompactionScaffold
)
