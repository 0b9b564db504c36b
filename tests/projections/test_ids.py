"""Ids: no two sources share one, and an id that is split gives its parts back."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from projections import ids
from projections.errors import ProjectionError
from projections.ids import AttemptParts, ConversationIdentity

SHA = "0471d899e21d04b6115edf41305b9ae52b301b87"

# Short texts over the characters that separate or escape parts of an id: collisions would be found at once.
PARTS = st.text("a1%2FC3A:/#@ \u00e9\ud7ff😀", min_size=1, max_size=5).filter(lambda text: text.strip() != "")
COUNTS = st.integers(0, 2**53 - 1) | st.integers(0, 3)
IDENTITIES = st.builds(ConversationIdentity, PARTS, PARTS, PARTS)
NAMES = st.text("ab.-_é%", min_size=1, max_size=3)
REPOS = st.builds("{}/{}".format, NAMES, NAMES)
SHAS = st.text("0123456789abcdef", min_size=40, max_size=40)
ATTEMPTS = st.builds(ids.attempt_id, PARTS, PARTS, COUNTS, COUNTS)
SNAPSHOTS = st.fixed_dictionaries(
    {"kind": st.just("snapshot"), "scope": PARTS, "scopeId": PARTS, "epoch": PARTS, "sequence": st.just(1)}
)
DELTAS = st.fixed_dictionaries({"kind": st.just("delta"), "responseId": PARTS})

BUILDERS: dict[str, tuple[Callable[..., str], st.SearchStrategy[Any]]] = {
    "conversation_ref": (ids.conversation_ref, st.tuples(IDENTITIES)),
    "conversation_item_ref": (
        ids.conversation_item_ref,
        st.tuples(IDENTITIES, st.sampled_from(["turn", "call", "item", "response"]), PARTS),
    ),
    "attempt_id": (ids.attempt_id, st.tuples(PARTS, PARTS, COUNTS, COUNTS)),
    "policy_gate_id": (ids.policy_gate_id, st.tuples(ATTEMPTS, PARTS, PARTS)),
    "cost_id": (ids.cost_id, st.tuples(IDENTITIES, SNAPSHOTS | DELTAS)),
    "commit_ref": (ids.commit_ref, st.tuples(REPOS, SHAS)),
    "pr_ref": (ids.pr_ref, st.tuples(REPOS, st.integers(1, 2**53))),
    "file_id": (ids.file_id, st.tuples(REPOS, PARTS.filter(lambda text: text[0] != " "), SHAS)),
}


@pytest.mark.parametrize("name", BUILDERS)
@given(data=st.data())
def test_no_two_sources_share_an_id(name: str, data: st.DataObject) -> None:
    build, arguments = BUILDERS[name]
    first, second = data.draw(arguments), data.draw(arguments)
    assume(first != second)
    assert build(*first) != build(*second)


@given(st.data())
def test_ids_of_different_kinds_never_meet(data: st.DataObject) -> None:
    made = {build(*data.draw(arguments)) for build, arguments in BUILDERS.values()}
    assert len(made) == len(BUILDERS)


GRAMMARS = {
    "conversation_ref": ids.CONVERSATION_REF_PATTERN,
    "attempt_id": ids.ATTEMPT_ID_PATTERN,
    "policy_gate_id": ids.POLICY_GATE_ID_PATTERN,
    "cost_id": ids.COST_ID_PATTERN,
    "commit_ref": ids.COMMIT_ID_PATTERN,
    "pr_ref": ids.PR_ID_PATTERN,
    "file_id": ids.FILE_ID_PATTERN,
}


@pytest.mark.parametrize("name", GRAMMARS)
@given(data=st.data())
def test_every_id_that_is_made_fits_its_grammar(name: str, data: st.DataObject) -> None:
    build, arguments = BUILDERS[name]
    assert GRAMMARS[name].fullmatch(build(*data.draw(arguments)))


@given(PARTS, PARTS, COUNTS, COUNTS)
def test_an_attempt_id_gives_its_parts_back(run: str, step: str, iteration: int, attempt: int) -> None:
    made = ids.attempt_id(run, step, iteration, attempt)
    assert ids.split_attempt_id(made) == AttemptParts(run, step, iteration, attempt)


@given(IDENTITIES)
def test_a_conversation_ref_gives_its_identity_back(identity: ConversationIdentity) -> None:
    assert ids.split_conversation_ref(ids.conversation_ref(identity)) == identity


@given(ATTEMPTS, PARTS, PARTS)
def test_a_policy_gate_id_gives_its_parts_back(attempt: str, table: str, row: str) -> None:
    made = ids.policy_gate_id(attempt, table, row)
    assert ids.split_policy_gate_id(made) == (attempt, table, row)
    parts = ids.split_attempt_id(attempt)
    assert parts is not None
    assert ids.run_of_gate_id(made) == parts.run


@pytest.mark.parametrize(
    "text",
    [
        "",
        "workflow:a:b:0",
        "workflow:a:b:0:0:0",
        "workflow:a:b:0:0\n",
        "workflow:a:b:-1:0",
        "workflow:a:b:٧:0",
        "workflow:%ff:b:0:0",
        "workflow:a:b:9007199254740992:0",
        "workflow:a:b:0:" + "1" * 5_000,
    ],
)
def test_what_is_no_attempt_id_has_no_parts(text: str) -> None:
    assert ids.split_attempt_id(text) is None


def test_leading_zeros_fit_the_grammar_and_count_as_numbers() -> None:
    assert ids.split_attempt_id("workflow:a:b:00:07") == AttemptParts("a", "b", 0, 7)


@pytest.mark.parametrize("text", ["", "conversation:a:b", "conversation:a:b:%e9", "conversation:a:b:c:d"])
def test_what_is_no_conversation_ref_has_no_identity(text: str) -> None:
    assert ids.split_conversation_ref(text) is None


@pytest.mark.parametrize("text", ["", "a#policy:b:c", "workflow:a:b:0:0#policy:F5", "workflow:a:b:0:0#policy:F5:%e9"])
def test_what_is_no_policy_gate_id_has_no_parts(text: str) -> None:
    assert ids.split_policy_gate_id(text) is None


@pytest.mark.parametrize(
    ("gate_id", "run"),
    [
        ("run-7/review", "run-7"),
        ("run-7/a/b:2", "run-7"),
        ("workflow:run%3A7:merge:0:0#policy:F5:MRG", "run:7"),
        ("workflow:%ff:merge:0:0#policy:F5:MRG", None),
        ("no-slash", None),
        ("/step", None),
        ("run/", None),
        ("run 7/step", None),
    ],
)
def test_the_run_of_a_gate_is_read_from_its_id(gate_id: str, run: str | None) -> None:
    assert ids.run_of_gate_id(gate_id) == run


@pytest.mark.parametrize(
    ("gate_id", "steps", "iterations", "expected"),
    [
        ("r/review", {"review"}, (), ("review", 0)),
        ("r/review:2", {"review"}, (), ("review", 2)),
        ("r/review:2", {"review:2"}, (), ("review:2", 0)),
        ("r/review:2", {"review", "review:2"}, (), ("review:2", 0)),
        ("r/review:2", {"review:2"}, {("review", 2)}, ("review", 2)),
        ("r/review:2", set(), {("review:2", 0), ("review", 2)}, ("review:2", 0)),
        ("r/review:2", set(), (), ("review", 2)),
        ("r/review:02", set(), (), ("review:02", 0)),
        ("r/merge:0", set(), (), ("merge", 0)),
        ("r/a/b", set(), (), ("a/b", 0)),
        ("no gate", set(), (), None),
    ],
)
def test_step_and_iteration_of_a_gate_come_from_what_the_run_knows(
    gate_id: str, steps: set[str], iterations: set[tuple[str, int]], expected: tuple[str, int] | None
) -> None:
    assert ids.split_gate_id(gate_id, steps, iterations) == expected


@pytest.mark.parametrize(
    ("given_name", "name"),
    [
        ("acme/docs", "acme/docs"),
        ("Acme/Docs.git", "acme/docs"),
        ("https://github.com/Acme/Docs.git", "acme/docs"),
        ("https://user:token@host.example:8443/acme/docs/", "acme/docs"),
        ("ssh://git@github.com/acme/docs.git", "acme/docs"),
        ("git@github.com:acme/docs.git", "acme/docs"),
        ("git+https://github.com/acme/docs#main", None),
        ("a.b/.github", "a.b/.github"),
        ("acme/.git", "acme/.git"),
        ("docs", None),
        ("acme/docs/tree", None),
        ("https://github.com/acme", None),
        ("acme /docs", None),
        ("", None),
    ],
)
def test_repository_names_are_normalised_or_refused(given_name: str, name: str | None) -> None:
    if name is not None:
        assert ids.normalize_repo(given_name) == name
        return
    with pytest.raises(ProjectionError, match="repo_invalid"):
        ids.normalize_repo(given_name)


@given(REPOS)
def test_normalising_a_repository_twice_changes_nothing(repo: str) -> None:
    once = ids.normalize_repo(repo)
    assume(not once.endswith(".git"))
    assert ids.normalize_repo(once) == once


def test_a_hash_is_lower_cased_and_a_short_one_refused() -> None:
    assert ids.normalize_sha(SHA.upper()) == SHA
    with pytest.raises(ProjectionError, match="sha_invalid"):
        ids.normalize_sha(SHA[:12])


@pytest.mark.parametrize("path", ["", " a", "a\nb", "a\u2028b"])
def test_a_path_that_no_file_id_can_hold_is_refused(path: str) -> None:
    with pytest.raises(ProjectionError, match="path_invalid"):
        ids.file_id("acme/docs", path, SHA)


def test_identities_may_come_as_tuples_or_as_the_objects_of_the_sources() -> None:
    as_object = {"harness": "h", "namespace": "n", "nativeId": "a b", "other": 1}
    assert ids.conversation_ref(as_object) == ids.conversation_ref(ConversationIdentity("h", "n", "a b"))
