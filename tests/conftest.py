"""What every test has: the Kafka broker of tests/brokers, and Hypothesis profiles."""

import os

from hypothesis import HealthCheck, settings

pytest_plugins = ["tests.brokers.plugin"]

# In CI the same examples every time; a slow machine is no failure anywhere.
settings.register_profile(
    "ci",
    derandomize=True,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("dev", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "dev"))
