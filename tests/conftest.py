"""What every test module shares: how hard hypothesis tries.

`HYPOTHESIS_PROFILE=soak pytest tests/test_response.py` walks a hundred times as far as a usual run.
"""

import os

from hypothesis import HealthCheck, settings

# No deadline: two cores that others use too make single examples arbitrarily slow.
settings.register_profile("ci", max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("soak", settings.get_profile("ci"), max_examples=6000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))
