"""Every test of the contract runs twice: on the virtual broker, and on a real one."""

import pytest

from tests.brokers.broker import Broker
from tests.simulation.contract.sites import RealSite, Site, VirtualSite


@pytest.fixture(params=["virtual", pytest.param("real", marks=pytest.mark.integration)])
def site(request: pytest.FixtureRequest, fresh_app_id: str) -> Site:
    """Give a place to try the contract; a real broker without transactions is no place for it."""
    if request.param == "virtual":
        return VirtualSite()
    kafka: Broker = request.getfixturevalue("kafka")
    if not kafka.supports_transactions:
        pytest.skip("the virtual broker stands for one that has transactions")
    return RealSite(kafka, fresh_app_id)
