"""The same topics into every sink that can be read back: one digest per run, equal in all."""

import pytest

from tests.integration.commands import Commands
from tests.integration.pipeline import KEY_VARIABLE, Pipeline, eventually, worlds
from tests.worker.sinks.destinations import DESTINATIONS
from worker.record_reader import READERS

pytestmark = [pytest.mark.integration, pytest.mark.slow]


def add_exports(pipeline: Pipeline) -> list[str]:
    """Add an export per scheme, all under one key; gives their names."""
    urls = {"kafka": f"kafka:{pipeline.app_id}-traces"}
    for scheme in READERS:
        directory = pipeline.directory / f"all-{scheme}"
        directory.mkdir()
        urls[scheme] = DESTINATIONS[scheme](directory).url
    lines = []
    for scheme, url in urls.items():
        lines += ["[[exports]]", f'name = "all-{scheme}"', f'sink = "{url}"', f'key_env = "{KEY_VARIABLE}"']
    pipeline.config.write_text(pipeline.config.read_text() + "\n".join(lines) + "\n")
    return [f"all-{scheme}" for scheme in urls]


def test_every_sink_holds_the_same_records_whatever_happened_to_its_writers(
    pipeline: Pipeline, commands: Commands
) -> None:
    if not pipeline.kafka.supports_transactions:
        pytest.skip("the Kafka sink needs a broker with transactions here")
    names = add_exports(pipeline)
    pipeline.create_topics()
    messages = worlds(range(130, 136))
    first, second = pipeline.worker("first"), pipeline.worker("second")
    first.start()
    first.wait_ready()
    pipeline.publish(messages[:200])
    second.start()
    eventually(lambda: first.total("written_upserts_total") > 0, "something has left")
    first.kill()
    pipeline.publish(messages[200:])
    pipeline.wait_settled(("project", "fold", *(f"export-{name}" for name in names)))
    verdicts = {name: commands.json("verify", "--export", name) for name in names}
    assert {name: verdict["differences"] for name, verdict in verdicts.items()} == {name: [] for name in names}
    digests = {verdict["sides"][1]["digest"] for verdict in verdicts.values()}
    assert len(digests) == 1
    assert verdicts[names[0]]["sides"][1]["records"] > 100
    assert second.stop() == 0
