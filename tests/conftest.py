"""What every test module shares: how hard hypothesis tries, and a data folder that is not the user's.

`HYPOTHESIS_PROFILE=soak pytest tests/test_response.py` walks a hundred times as far as a usual run.
"""

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

# No deadline: two cores that others use too make single examples arbitrarily slow.
settings.register_profile("ci", max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("soak", settings.get_profile("ci"), max_examples=6000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


@pytest.fixture(scope="session", autouse=True)
def _data_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Servers that are not told otherwise keep their data where it is thrown away; those in other processes, too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LONGLOOP_DATA_DIR", str(tmp_path_factory.mktemp("data")))
        yield
