"""What binds a generation, what the history of generations comes to, and what is said about a mismatch."""

from contextlib import nullcontext
from typing import Any

import pytest

from projections.version import PROJECTION_VERSION
from worker.generations.binding import (
    OWN,
    generation_rows,
    mismatches,
    names_of,
    refuse_dropped,
    refuse_other_topics,
    refuse_other_unbound,
    refuse_other_version,
    refuse_topics_made_anew,
)
from worker.generations.log import Binding, BoundTopic, Generations, started
from worker.topic_ids import TopicIdentity
from worker.topics import StartError

RUNS = BoundTopic("workflow-runs", "id-1", 2)
FACTS = BoundTopic("app-g1-trace-facts", "id-2", 8)
BOUND = Binding(PROJECTION_VERSION, {"workflow-runs": RUNS, "facts": FACTS}, {"workflow-runs": (0, 5)}, "sources")


def history(*events: dict[str, Any]) -> Generations:
    generations = Generations()
    for at, event in enumerate(events):
        generations.apply({**event, "at": at})
    return generations


def begun(generation: int, version: int = PROJECTION_VERSION) -> dict[str, Any]:
    return started(generation, BOUND._replace(projection_version=version))


def test_the_first_generation_serves_until_another_is_promoted() -> None:
    generations = history(begun(1), begun(2))
    assert (generations.serving, generations.living, generations.next) == (1, [1, 2], 3)
    generations.apply({"event": "promoted", "generation": 2, "at": 9})
    assert (generations.serving, generations.replaced) == (2, 1)
    # Said twice, by a promotion that was repeated.
    generations.apply({"event": "promoted", "generation": 2, "at": 9})
    assert (generations.serving, generations.replaced) == (2, 1)
    generations.apply({"event": "dropped", "generation": 1, "at": 9})
    assert (generations.living, generations.next) == ([2], 3)


def test_what_was_said_first_about_a_generation_binds() -> None:
    generations = history(begun(1), started(1, BOUND._replace(projection_version=99)))
    assert generations.bindings == {1: BOUND}
    assert generations.started_ms == {1: 0}


def test_accepted_topics_take_the_place_of_the_first_and_what_began_stays() -> None:
    wider = RUNS._replace(partitions=3)
    now = Binding(
        PROJECTION_VERSION, {"workflow-runs": wider}, {"workflow-runs": (9, 9, 0), "transcripts": (4,)}, "sources"
    )
    generations = history(begun(1), started(1, now, event="accepted"))
    assert generations.bindings[1].topics == {"workflow-runs": wider, "facts": FACTS}
    assert generations.bindings[1].began == {"workflow-runs": (0, 5), "transcripts": (4,)}


def test_the_answer_to_unbound_conversations_that_was_given_first_binds_and_an_earlier_release_gave_none() -> None:
    said_nothing = begun(1)
    del said_nothing["unbound"]
    later = BOUND._replace(topics={}, began={}, unbound="hold")
    accepted = [started(1, later._replace(unbound=unbound), event="accepted") for unbound in ("hold", "standalone")]
    bound = history(said_nothing, *accepted).bindings[1]
    assert bound == BOUND._replace(unbound="hold")
    refuse_other_unbound(BOUND, "standalone", 1)
    refuse_other_unbound(bound, "hold", 1)
    with pytest.raises(
        StartError, match=r'started with unbound = "hold", and the settings say "standalone": set it back'
    ):
        refuse_other_unbound(bound, "standalone", 1)


def test_an_event_of_a_later_release_says_nothing() -> None:
    assert history(begun(1), {"event": "annealed", "generation": 1}).serving == 1


@pytest.mark.parametrize(
    ("now", "said"),
    [
        (RUNS, None),
        (RUNS._replace(id=None), None),
        (RUNS._replace(partitions=3), "topic workflow-runs has 3 partitions and had 2"),
        (RUNS._replace(id="id-9"), "topic workflow-runs was deleted and made anew"),
        (RUNS._replace(topic="runs"), "workflow-runs is read from topic runs and was read from workflow-runs"),
        (None, "topic workflow-runs does not exist any more"),
    ],
)
def test_each_way_of_not_being_what_it_was_is_said(now: BoundTopic | None, said: str | None) -> None:
    topics = {"facts": FACTS} if now is None else {"workflow-runs": now, "facts": FACTS}
    assert list(mismatches(BOUND, BOUND._replace(topics=topics), BOUND.topics)) == ([] if said is None else [said])


def test_sources_may_be_accepted_and_our_own_topics_may_not() -> None:
    sources = BOUND._replace(topics={"workflow-runs": RUNS._replace(partitions=3), "facts": FACTS})
    with pytest.raises(StartError, match=r"`trace-projector rebuild`, or take the topics as they are now"):
        refuse_other_topics(BOUND, sources, 1, BOUND.topics)
    refuse_other_topics(BOUND, sources, 1, OWN)
    own = BOUND._replace(topics={"workflow-runs": RUNS, "facts": FACTS._replace(id="id-9")})
    with pytest.raises(StartError, match=r"made anew: start another one with `trace-projector rebuild`$"):
        refuse_other_topics(BOUND, own, 1, BOUND.topics)


@pytest.mark.parametrize(
    ("identity", "is_refused"),
    [
        (TopicIdentity("id-9", 2), True),
        (TopicIdentity("id-9", 3), True),
        (None, False),
        (TopicIdentity(None, 2), False),
        (TopicIdentity(RUNS.id, 3), False),
    ],
)
def test_while_a_worker_runs_only_a_topic_that_was_made_anew_is_refused(
    identity: TopicIdentity | None, *, is_refused: bool
) -> None:
    identities = {RUNS.topic: identity} if identity else {}
    refuse_topics_made_anew(BOUND, identities, 1, names_of(BOUND, ["fold"]))
    with pytest.raises(StartError, match="was deleted and made anew") if is_refused else nullcontext():
        refuse_topics_made_anew(BOUND, identities, 1, names_of(BOUND, ["project"]))


def test_a_generation_that_is_gone_or_was_never_there_is_refused_with_the_one_that_serves() -> None:
    generations = history(
        begun(1), begun(2), {"event": "promoted", "generation": 2}, {"event": "dropped", "generation": 1}
    )
    refuse_dropped(generations, 2)
    with pytest.raises(StartError, match="generation 1 was dropped; generation 2 serves: set generation = 2"):
        refuse_dropped(generations, 1)
    with pytest.raises(StartError, match=r"generation 7 was never started.*start generation 3 beside it"):
        refuse_dropped(generations, 7)
    # The very first one is started by whoever comes first.
    refuse_dropped(history(), 1)


def test_a_generation_of_another_projection_is_refused_with_the_way_out() -> None:
    refuse_other_version(history(begun(1)), 1)
    old = history(begun(1, PROJECTION_VERSION + 1))
    with pytest.raises(StartError, match=r"rebuild` makes generation 2 beside it"):
        refuse_other_version(old, 1)
    with pytest.raises(StartError, match=rf"set generation = 2, which is of version {PROJECTION_VERSION}"):
        refuse_other_version(history(begun(1, PROJECTION_VERSION + 1), begun(2)), 1)


def test_generations_are_listed_with_what_they_do() -> None:
    generations = history(begun(1), begun(2), begun(3), {"event": "promoted", "generation": 2})
    generations.apply({"event": "dropped", "generation": 1, "at": 9})
    assert [(row["generation"], row["state"]) for row in generation_rows(generations)] == [
        (1, "dropped"),
        (2, "serves"),
        (3, "stands by"),
    ]
