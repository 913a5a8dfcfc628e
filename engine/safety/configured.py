"""The lookout that the settings ask for, with a worker for each classifier model."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

from engine.safety.judge import Judge
from engine.safety.lookout import Lookout
from engine.safety.model_judge import open_model_judge
from engine.safety.policies import Policies, compile_policies
from engine.settings import Settings


@asynccontextmanager
async def open_lookout(settings: Settings, progress: Callable[[str, float], None]) -> AsyncIterator[Lookout | None]:
    """The lookout; None when there are no policies. Its models load meanwhile.

    progress: what is being done, and the fraction done, 0 to 1. Raises ValueError for policies that cannot be compiled,
    ModelNotAvailable.
    """
    policies = compile_policies(settings.policies)
    async with AsyncExitStack() as stack:
        judges = {
            model: await stack.enter_async_context(
                open_model_judge(model, labels, threads=settings.safety_threads, progress=progress)
            )
            for model, labels in policies.models.items()
        }
        yield make_lookout(settings, policies, judges)


def make_lookout(settings: Settings, policies: Policies, judges: Mapping[str, Judge]) -> Lookout | None:
    """The lookout over these judges; None when the settings name no policies."""
    if not settings.policies:
        return None
    return Lookout(
        policies,
        judges,
        timeout_s=settings.safety_timeout_s,
        fails_closed=settings.safety_fails == "closed",
        sees_history=settings.safety_history,
    )
