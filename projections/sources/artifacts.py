"""Artifact entries that ride in a step's data: commits, pull requests and file versions, with normalised names."""

from collections.abc import Callable
from typing import Any

from projections.errors import ProjectionError
from projections.fields import Row, read_span, storable_as_is
from projections.ids import (
    ATTEMPT_ID_PATTERN,
    BRANCH_ID_PATTERN,
    branch_ref,
    commit_ref,
    file_id,
    normalize_repo,
    normalize_sha,
    pr_ref,
)
from projections.text import storable_text

CHECKS = ("passing", "failing", "pending")


def _repo_of(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise ProjectionError("repo_invalid", where)
    return normalize_repo(storable_as_is(value, where))


def _sha_of(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise ProjectionError("sha_invalid", where)
    return normalize_sha(value)


def _commit_of(value: Any, where: str) -> str:
    """Normalise a commit id (``commit:owner/name@sha``)."""
    if not isinstance(value, str) or not value.startswith("commit:"):
        raise ProjectionError("invalid_field", where)
    repo, _at, sha = value.removeprefix("commit:").rpartition("@")
    return commit_ref(_repo_of(repo, where), _sha_of(sha, where))


def read_artifact(row: Row) -> dict[str, Any]:
    """Read one artifact entry; the result holds the artifact record's own fields, id included.

    ``at`` and ``attemptId`` are there only when the entry has them.
    """
    kind = row.one_of("artifactKind", tuple(_READERS))
    body: dict[str, Any] = {}
    at = row.time_or_none("at")
    if at is not None:
        body["at"] = at
    attempt = row.raw("attemptId")
    if attempt is not None:
        if not isinstance(attempt, str) or not ATTEMPT_ID_PATTERN.fullmatch(attempt):
            raise row.refuse("attemptId")
        body["attemptId"] = storable_as_is(attempt, row.where("attemptId"))
    fields = _READERS[kind](row, _repo_of(row.raw("repo"), row.where("repo")))
    return {**body, "id": fields.pop("id"), "artifactKind": kind, **fields, **_span(row)}


def _read_commit(row: Row, repo: str) -> dict[str, Any]:
    sha = _sha_of(row.raw("sha"), row.where("sha"))
    body: dict[str, Any] = {"id": commit_ref(repo, sha), "repo": repo, "sha": sha}
    branch = row.text_or_none("branch")
    if branch is not None:
        body["branch"] = _branch(branch, repo, row)
    if row.raw("reverts") is not None:
        body["reverts"] = _commit_of(row.raw("reverts"), row.where("reverts"))
    return body


def _branch(branch: str, repo: str, row: Row) -> str:
    """Give the branch id; a bare branch name belongs to the commit's repository."""
    found = branch if branch.startswith("branch:") else branch_ref(repo, branch)
    if not BRANCH_ID_PATTERN.fullmatch(found):
        raise row.refuse("branch")
    return found


def _read_pull_request(row: Row, repo: str) -> dict[str, Any]:
    number = row.count("number")
    if number == 0:
        raise row.refuse("number")
    body: dict[str, Any] = {"id": pr_ref(repo, number), "repo": repo, "number": number}
    if row.has("state"):
        body["state"] = row.text_or_none("state")
    for name in ("mergedAt", "closedAt"):
        if row.has(name):
            body[name] = row.time_or_none(name)
    if row.has("reviewRounds"):
        rounds = row.raw("reviewRounds")
        body["reviewRounds"] = None if rounds is None else row.count("reviewRounds")
    if row.has("checks"):
        body["checks"] = None if row.raw("checks") is None else row.one_of("checks", CHECKS)
    return body


def _read_file(row: Row, repo: str) -> dict[str, Any]:
    path = row.raw("path")
    if not isinstance(path, str) or not path:
        raise row.refuse("path")
    commit = None if row.raw("commit") is None else _commit_of(row.raw("commit"), row.where("commit"))
    sha = row.raw("sha") if commit is None else commit.rpartition("@")[2]
    body: dict[str, Any] = {
        "id": file_id(repo, storable_text(path), _sha_of(sha, row.where("commit"))),
        "repo": repo,
        "path": storable_text(path),
    }
    if commit is not None:
        body["commit"] = commit
    lines = row.json("lines")
    if lines is not None:
        if not isinstance(lines, list):
            raise row.refuse("lines")
        body["lines"] = [_line_range(Row(item, row.where("lines"))) for item in lines]
    return body


def _line_range(row: Row) -> dict[str, int]:
    found = {name: row.count(name) for name in ("lineStart", "lineEnd")}
    if 0 in found.values():
        raise row.refuse("lineStart")
    return found


def _span(row: Row) -> dict[str, Any]:
    span = row.row_or_none("span")
    if span is None:
        return {}
    return {"span": read_span(span)}


_READERS: dict[str, Callable[[Row, str], dict[str, Any]]] = {
    "commit": _read_commit,
    "pr": _read_pull_request,
    "file": _read_file,
}
