"""What a client raises while a topic is read outside every group, as one line for a person."""

import pytest

from worker.settings import Settings
from worker.topic_scan import BrokerFailed, broker_errors


def test_a_header_whose_name_is_no_text_is_told_without_its_bytes() -> None:
    with pytest.raises(BrokerFailed, match="no UTF-8") as caught, broker_errors(Settings()):
        b"SECRET\xff".decode()
    assert "SECRET" not in str(caught.value)
    assert caught.value.__cause__ is None
