"""What every test module shares: how hard hypothesis tries, and a data folder that is not the user's.

`HYPOTHESIS_PROFILE=soak pytest tests/test_response.py` walks a hundred times as far as a usual run.
"""

import os
from collections.abc import Iterator
from functools import cache

import pytest
import trio
from hypothesis import HealthCheck, settings

from engine.hosted.containers import Containers
from engine.hosted.sandbox import Sandbox, SandboxLimits, SandboxMissing

# No deadline: two cores that others use too make single examples arbitrarily slow.
settings.register_profile("ci", max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("soak", settings.get_profile("ci"), max_examples=6000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


@pytest.fixture(autouse=True)
def _sandbox(request: pytest.FixtureRequest) -> None:
    """Says which tests did not run for want of bubblewrap; where all are to run (`tests/run.sh --all`), they fail."""
    if request.node.get_closest_marker("sandbox") and (why := why_no_sandbox()):
        if os.environ.get("LONGLOOP_TESTS") == "all":
            pytest.fail(why)
        pytest.skip(why)


@cache
def why_no_sandbox() -> str | None:
    """Why nothing can run in a sandbox here; None where it can."""

    async def try_out() -> None:
        async with Containers.open(1, 1) as containers:
            await Sandbox(SandboxLimits()).try_out(containers.parent)

    try:
        trio.run(try_out)
    except SandboxMissing as error:
        return error.message
    return None


@pytest.fixture(scope="session", autouse=True)
def _data_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Servers that are not told otherwise keep their data where it is thrown away; those in other processes, too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LONGLOOP_DATA_DIR", str(tmp_path_factory.mktemp("data")))
        yield
