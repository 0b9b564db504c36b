"""All-time gauges over Robota sessions."""

from projections.reports.robota_gauges import usage_gauges


def test_the_first_copy_of_an_observation_counts_and_a_turn_without_usage_is_unknown() -> None:
    data = {"usageObservationId": "o", "turnId": "o", "outcome": "success"}
    entry = {"id": "e", "timestamp": "2026-09-05T10:00:00Z", "type": "usage-observation", "data": data}
    gauges = usage_gauges([{"id": "a", "history": [entry, entry]}, {"id": "b", "history": [entry]}])
    assert gauges["robota.session.count"] == 2
    assert gauges["robota.turn.count"] == 1
    assert gauges["robota.cost.unknown_observations"] == 1
    assert gauges["robota.token.split_unknown_observations"] == 1
