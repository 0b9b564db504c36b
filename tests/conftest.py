"""What every test has: the Kafka broker of tests/brokers, and as many Hypothesis examples as tests/sizes.py says."""

import os

from hypothesis import HealthCheck, settings

from tests.sizes import SIZE, examples

pytest_plugins = ["tests.brokers.plugin"]

# In CI the same examples every time; a slow machine is no failure anywhere.
settings.register_profile(
    SIZE,
    max_examples=examples(100),
    derandomize=bool(os.environ.get("CI")),
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile(SIZE)
