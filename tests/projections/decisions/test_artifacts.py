"""Decisions about artifacts: names, what several runs say about one, and entries that break."""

import itertools
from typing import Any

import pytest

from projections.ids import file_id
from projections.sources import project_message
from tests.worlds.messages import at, attempt_of, kinds, ledger, records, result, run_message
from tests.worlds.world import SourceMessage

SHA = "ab12" * 10
PR = "pr:acme/app#7"


def entry(kind: str, **more: Any) -> dict[str, Any]:
    return {"artifactKind": kind, "repo": "acme/app", **more}


def saw(
    *entries: dict[str, Any], run: str = "r1", step: str = "s", revision: int = 1, completed: float = 100
) -> SourceMessage:
    data = {"titan.trace.artifacts": list(entries)}
    return run_message(revision, id=run, steps=[result(step, completed=completed, data=data)])


def artifacts(*messages: SourceMessage) -> dict[str, dict[str, Any]]:
    return {row["id"]: row for row in kinds(records(list(messages)), "artifact")}


@pytest.mark.parametrize(
    "repo",
    ["acme/app", "Acme/App", "acme/app.git", "https://github.com/acme/app.git", "git@github.com:Acme/App.git"],
)
def test_a_repository_has_one_spelling(repo: str) -> None:
    found = artifacts(
        saw(
            {"artifactKind": "commit", "repo": repo, "sha": SHA.upper(), "reverts": f"commit:{repo}@{SHA.upper()}"},
            {"artifactKind": "pr", "repo": repo, "number": 7},
        )
    )
    assert set(found) == {f"commit:acme/app@{SHA}", PR}
    commit = found[f"commit:acme/app@{SHA}"]
    assert (commit["repo"], commit["sha"], commit["reverts"]) == ("acme/app", SHA, f"commit:acme/app@{SHA}")


def test_paths_keep_their_case_and_a_files_version_is_that_of_its_commit() -> None:
    commit = f"commit:Acme/App@{SHA}"
    found = artifacts(saw(entry("file", path="SRC/A.py", commit=commit), entry("file", path="src/a.py", commit=commit)))
    assert set(found) == {f"file:acme/app/SRC/A.py@{SHA}", f"file:acme/app/src/a.py@{SHA}"}
    assert found[f"file:acme/app/src/a.py@{SHA}"]["commit"] == f"commit:acme/app@{SHA}"
    other = artifacts(saw(entry("file", path="a", sha="c" * 40, commit=commit)))
    assert set(other) == {f"file:acme/app/a@{SHA}"}, "the commit decides, not a sha beside it"


def test_no_two_files_share_an_id() -> None:
    parts = ["x", "x@1", "%", "a/b", "#", "a b", ":", "@"]
    made = {file_id("acme/app", path, sha) for path, sha in itertools.product(parts, [SHA, "c" * 40])}
    assert len(made) == 2 * len(parts)


@pytest.mark.parametrize("sha", ["abc1234", SHA[:39], SHA + "0", "g" * 40, "", None, 7])
def test_a_short_or_broken_hash_is_refused_alone(sha: Any) -> None:
    message = saw(entry("commit", sha=sha), entry("pr", number=7))
    assert set(artifacts(message)) == {PR}
    assert message.value is not None
    assert project_message("workflow-runs", message.key, message.value, 0, 0).issues == ("artifacts_sha_invalid",)


@pytest.mark.parametrize("number", [0, -1, 1.5, "7", True, None, 2**53])
def test_a_pull_request_has_a_positive_whole_number(number: Any) -> None:
    assert artifacts(saw(entry("pr", number=number))) == {}


def test_a_rewritten_branch_leaves_two_commits_and_one_pull_request() -> None:
    before = saw(entry("commit", sha=SHA), entry("pr", number=7, state="open"), revision=1)
    after = saw(entry("commit", sha="c" * 40), entry("pr", number=7, state="open"), run="r2")
    assert set(artifacts(before, after)) == {f"commit:acme/app@{SHA}", f"commit:acme/app@{'c' * 40}", PR}


def test_one_artifact_of_several_runs_belongs_to_the_earliest_and_is_as_the_latest_says() -> None:
    first = saw(entry("pr", number=7, state="open", checks="pending", reviewRounds=1, at=at(10)), run="r2")
    second = saw(entry("pr", number=7, state="merged", mergedAt=at(50), checks=None, at=at(60)), run="r1")
    pull_request = artifacts(first, second)[PR]
    assert (pull_request["runId"], pull_request["attemptId"], pull_request["at"]) == (
        "r2",
        attempt_of("s", run="r2"),
        at(10),
    )
    mutable = {name: pull_request.get(name, "absent") for name in ("state", "mergedAt", "checks", "reviewRounds")}
    assert mutable == {"state": "merged", "mergedAt": at(50), "checks": None, "reviewRounds": 1}
    assert "closedAt" not in pull_request


def test_of_equal_times_the_smaller_run_owns_and_the_greater_canonical_json_says_the_state() -> None:
    rows = [saw(entry("pr", number=7, state=state, at=at(10)), run=run) for run, state in (("r1", "a"), ("r2", "b"))]
    pull_request = artifacts(*rows)[PR]
    assert (pull_request["runId"], pull_request["state"]) == ("r1", "b")


def test_three_runs_in_any_order_make_one_record() -> None:
    rows = [
        saw(entry("pr", number=7, state="open", at=at(30)), run="r3"),
        saw(entry("pr", number=7, reviewRounds=2, at=at(20)), run="r1"),
        saw(entry("pr", number=7, state="closed", closedAt=at(40), at=at(40)), run="r2"),
    ]
    pull_request = artifacts(*rows)[PR]
    assert (pull_request["runId"], pull_request["state"], pull_request["reviewRounds"]) == ("r1", "closed", 2)


def test_an_entry_without_time_and_attempt_takes_those_of_its_result_and_its_last_attempt() -> None:
    found = artifacts(saw(entry("commit", sha=SHA)), ledger("e1", attempt_of("s", 0, 3)))
    commit = found[f"commit:acme/app@{SHA}"]
    assert (commit["at"], commit["attemptId"]) == (at(100), attempt_of("s", 0, 3))
    named = artifacts(
        saw(entry("commit", sha=SHA, attemptId=attempt_of("s"), at=at(7))), ledger("e1", attempt_of("s", 0, 3))
    )
    commit = named[f"commit:acme/app@{SHA}"]
    assert (commit["at"], commit["attemptId"]) == (at(7), attempt_of("s"))


def test_what_the_newest_snapshot_no_longer_says_is_gone() -> None:
    assert artifacts(saw(entry("pr", number=7)), run_message(2)) == {}
    kept = artifacts(saw(entry("pr", number=7)), run_message(2), saw(entry("pr", number=7), run="r2"))
    assert kept[PR]["runId"] == "r2"


def test_lines_branches_and_spans_are_kept_and_nothing_unknown_is() -> None:
    span = {"sourceId": "s", "byteOffset": 1, "byteLength": 2.0, "contentHash": "d" * 64, "lineNumber": 9}
    lines = [{"lineStart": 3, "lineEnd": 1, "text": "secret"}]
    found = artifacts(
        saw(
            entry("file", path="a", sha=SHA, lines=lines, span=span, secret="x"),
            entry("commit", sha=SHA, branch="topic/a", message="secret"),
        )
    )
    file = found[f"file:acme/app/a@{SHA}"]
    assert file["lines"] == [{"lineStart": 3, "lineEnd": 1}]
    assert file["span"] == {"sourceId": "s", "byteOffset": 1, "byteLength": 2, "contentHash": "d" * 64}
    assert found[f"commit:acme/app@{SHA}"]["branch"] == "branch:acme/app/topic/a"
    assert "secret" not in str(found)
