"""Parse trace records: strict for producers, loose for consumers, and the envelope alone."""

from collections.abc import Iterator
from functools import cache
from typing import Any, Final, Literal, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter, ValidationError

from projections.errors import Issue, TraceParseError
from projections.ids import HUMAN_GATE_ID_PATTERN, POLICY_GATE_ID_PATTERN
from projections.records_fields import ISSUE_CODES
from projections.records_models import RECORD_MODELS, SCHEMA, Envelope, RecordKind

__all__ = [
    "ARTIFACT_KINDS",
    "RECORD_KINDS",
    "RECORD_MODELS",
    "SCHEMA",
    "Record",
    "Scope",
    "parse_trace_envelope",
    "parse_trace_record",
    "parse_trace_record_loose",
    "record_json_schema",
    "scope_of",
]

Record = dict[str, Any]
Scope = str
"""A record's kind and, for artifacts, its ``artifactKind``: ``call``, ``artifact.pr``."""

Extra = Literal["forbid", "allow"]

RECORD_KINDS: Final[tuple[str, ...]] = get_args(RecordKind)
"""The kinds of trace records."""

ARTIFACT_KINDS: Final[tuple[str, ...]] = tuple(
    scope.removeprefix("artifact.") for scope in RECORD_MODELS if scope.startswith("artifact.")
)
"""The kinds of artifact records."""

_SCOPES: Final[dict[tuple[str, str | None], Scope]] = {
    (scope.partition(".")[0], scope.partition(".")[2] or None): scope for scope in RECORD_MODELS
}
_GATE_ID_PATTERNS: Final = {"human": HUMAN_GATE_ID_PATTERN, "policy": POLICY_GATE_ID_PATTERN}

# The reference goes on to rules across fields after these, and not after a wrong type or value.
_CODES_THAT_GO_ON: Final = frozenset({"invalid_format", "too_small", "too_big"})


def parse_trace_record(value: Any) -> Record:
    """Check a record as its producer must write it and return it, keys in the order of a record's bytes.

    Unknown keys are refused at every level; ``1.0`` where an integer is due becomes ``1``. Raises ``TraceParseError``.
    """
    scope = scope_of(value)
    if scope is None:
        field = _shape_field(value)
        code = "invalid_type" if field is None else "invalid_union"
        raise TraceParseError([{"path": [] if field is None else [field], "code": code}], field or "record")
    return _validated(scope, value, "forbid")


def parse_trace_record_loose(value: Any) -> Record:
    """Check a record as a consumer reads it: unknown keys are kept, after the known ones.

    Anything that is no object of a known kind (and artifact kind) becomes ``{"kind": "unknown", "value": value}``; a
    record of a known kind must still be valid. Raises ``TraceParseError``.
    """
    scope = scope_of(value)
    if scope is None:
        return {"kind": "unknown", "value": value}
    return _validated(scope, value, "allow")


def parse_trace_envelope(value: Any) -> Record:
    """Check only what every record has: schema, a known kind, id, runId, attemptId if present, at.

    Returns the value with everything else in it unchecked. Raises ``TraceParseError``.
    """
    return _validated("envelope", value, "allow")


def scope_of(value: Any) -> Scope | None:
    """Scope of a record; None for anything that is no object of a known kind and artifact kind."""
    if not isinstance(value, dict):
        return None
    kind = value.get("kind")
    artifact_kind = value.get("artifactKind") if kind == "artifact" else None
    if not isinstance(kind, str) or not isinstance(artifact_kind, str | None):
        return None
    return _SCOPES.get((kind, artifact_kind))


def record_json_schema() -> dict[str, Any]:
    """JSON Schema of a strict trace record, patterns in ECMAScript.

    Two rules are not in it: a gate's id must fit the grammar of its gate kind, and lengths count UTF-16 units.
    """
    schemas: dict[str, Any] = {}
    definitions: dict[str, Any] = {}
    for scope in RECORD_MODELS:
        schema = _adapter(scope).json_schema(ref_template="#/$defs/{model}")
        definitions |= schema.pop("$defs", {})
        schemas[schema["title"]] = schema
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": SCHEMA,
        "anyOf": [{"$ref": f"#/$defs/{name}"} for name in schemas],
        "$defs": {**schemas, **definitions},
    }


def _validated(scope: str, value: Any, extra: Extra) -> Record:
    issues: list[Issue] = []
    try:
        record: Record = _adapter(scope).validate_python(value, extra=extra)
    except ValidationError as error:
        record = {}
        issues = list(_issues(scope, error))
    # Raised out here: pydantic's error holds the input, and must not ride along as a context.
    if scope == "gate":
        issues += _gate_issues(value, issues)
    if issues:
        raise TraceParseError(issues, _field_name(scope, issues[0]["path"]))
    return record


@cache
def _adapter(scope: str) -> TypeAdapter[Any]:
    return TypeAdapter(Envelope if scope == "envelope" else RECORD_MODELS[scope])


def _shape_field(value: Any) -> str | None:
    """The field that fails to say what a record is; None when the value is no object."""
    if not isinstance(value, dict):
        return None
    return "artifactKind" if value.get("kind") == "artifact" else "kind"


def _gate_issues(value: Any, issues: list[Issue]) -> list[Issue]:
    """The rule across a gate's fields: its id must fit the grammar of its kind."""
    if any(issue["code"] not in _CODES_THAT_GO_ON for issue in issues):
        return []
    fits = _GATE_ID_PATTERNS[value["gateKind"]].fullmatch(value["id"]) is not None
    return [] if fits else [{"path": ["id"], "code": "custom"}]


def _issues(scope: str, error: ValidationError) -> Iterator[Issue]:
    """Pydantic's errors in the codes of the reference; unknown keys of one object become one issue, in its place."""
    unknown: dict[tuple[int | str, ...], Issue] = {}
    for item in error.errors(include_url=False, include_context=True, include_input=False):
        path = _path(scope, item["loc"])
        if item["type"] != "extra_forbidden":
            yield _issue(item["type"], path, item.get("ctx", {}))
        elif tuple(path[:-1]) in unknown:
            unknown[tuple(path[:-1])]["keys"].append(str(path[-1]))
        else:
            unknown[tuple(path[:-1])] = {"path": path[:-1], "code": "unrecognized_keys", "keys": [str(path[-1])]}
    yield from unknown.values()


def _path(scope: str, loc: tuple[int | str, ...]) -> list[int | str]:
    path = [part for part in loc if part != "[key]"]
    if scope == "cost" and path[:1] == ["measurement"] and len(path) > 1:
        del path[1]  # pydantic names the chosen member of the union here
    return path


def _issue(kind: str, path: list[int | str], context: dict[str, Any]) -> Issue:
    if kind in ISSUE_CODES:
        return {"path": path, "code": kind}
    if kind.startswith("union_tag"):
        return {"path": [*path, str(context["discriminator"]).strip("'")], "code": "invalid_union"}
    if kind == "literal_error" or (kind == "missing" and path[-1] in _literal_fields()):
        return {"path": path, "code": "invalid_value"}
    if kind == "string_unicode":
        # A key with a lone surrogate is none of ours, and pydantic cannot say which one it was.
        return {"path": path, "code": "unrecognized_keys", "keys": []}
    return {"path": path, "code": "invalid_type"}


@cache
def _literal_fields() -> frozenset[str]:
    """Names of the fields that hold one of several constants; in no model does such a name mean anything else."""
    return frozenset(name for model in (*RECORD_MODELS.values(), Envelope) for name in _literals_of(model))


def _literals_of(model: Any) -> Iterator[str]:
    for name, hint in get_type_hints(model).items():
        if get_origin(hint) is Literal or any(get_origin(member) is Literal for member in get_args(hint)):
            yield name
        for nested in (hint, *get_args(hint)):
            if isinstance(nested, type) and hasattr(nested, "__required_keys__"):
                yield from _literals_of(nested)


def _field_name(scope: str, path: list[int | str]) -> str:
    """Dotted name of a field of ours on the way to an issue; never a key that came with the input."""
    names: list[str] = []
    model: Any = Envelope if scope == "envelope" else RECORD_MODELS[scope]
    for part in path:
        hints = get_type_hints(model) if hasattr(model, "__required_keys__") else {}
        if isinstance(part, str) and part not in hints:
            break
        if isinstance(part, str):
            names.append(part)
            model = hints[part]
        members = (model, *get_args(model))
        model = next((member for member in members if hasattr(member, "__required_keys__")), None)
    return ".".join(names) or "record"
