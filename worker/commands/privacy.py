"""`trace-projector privacy`: what leaves by an export, field by field, and what two exports do differently."""

from typing import Any, NamedTuple

import click

from worker.cli import Invocation
from worker.commands.broker import echo_json, echo_table
from worker.settings import Settings
from worker.settings_sections import ExportSettings, SettingsError


@click.command(
    "privacy",
    epilog="""\b
Examples:
  trace-projector --config my.toml privacy --export public
  trace-projector --config my.toml privacy --export public --json
  trace-projector --config my.toml privacy --diff public partners
""",
)
@click.option("--export", "name", metavar="NAME", help="Export to report on.  [default: the only one]")
@click.option("--diff", "pair", metavar="A B", nargs=2, help="Show only what exports A and B do differently.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.pass_obj
def privacy_command(invocation: Invocation, *, name: str | None, pair: tuple[str, str] | None, as_json: bool) -> None:
    """Say of every field of every kind of record whether it leaves as it is, as a digest, or not at all.

    Generated from the class table that redaction works by. What is not in it never leaves an export that redacts.
    Nothing is read but the settings and, to tell whether digests of two exports join, their keys.
    """
    settings = invocation.settings()
    if pair is not None:
        if name is not None:
            raise click.UsageError("give one of --export and --diff")
        _show_difference(settings, *pair, as_json=as_json)
    else:
        _show_report(settings, name, as_json=as_json)


class _Rules(NamedTuple):
    """What of an export's policy is no matter of one field."""

    redacts: bool
    profile: str | None
    class_table: str | None
    public_repos: list[str]
    filter: dict[str, Any] | None
    key_id: str | None


def _show_report(settings: Settings, name: str | None, *, as_json: bool) -> None:
    from projections.privacy_report import privacy_report  # noqa: PLC0415  (late, like every heavy import of a command)

    export = _only_export(settings) if name is None else settings.export_named(name)
    rows, rules = privacy_report(_outlet(export)), _rules(export)
    if as_json:
        fields = [
            {"scope": row.scope, "field": row.path, "class": row.field_class, "effect": row.effect, "rule": row.rule}
            for row in rows
        ]
        echo_json({"export": export.name, **_rules_json(rules), "fields": fields})
        return
    for label, text in _rule_lines(rules):
        click.echo(f"{label:<13} {text}", err=True)
    if not export.redact:
        click.echo("everything leaves as it is, fields without a class too", err=True)
    echo_table(("KIND", "FIELD", "LEAVES", "RULE"), [(row.scope, row.path, row.effect, row.rule) for row in rows])


def _show_difference(settings: Settings, one: str, other: str, *, as_json: bool) -> None:
    from projections.privacy_report import privacy_difference  # noqa: PLC0415  (late, as above)

    exports = settings.export_named(one), settings.export_named(other)
    changed = privacy_difference(_outlet(exports[0]), _outlet(exports[1]))
    before, after = (_rules(export) for export in exports)
    differing = {label for label in _Rules._fields if getattr(before, label) != getattr(after, label)}
    if as_json:
        fields = [
            {
                "scope": field.scope,
                "field": field.path,
                "before": {"effect": field.before.effect, "rule": field.before.rule},
                "after": {"effect": field.after.effect, "rule": field.after.rule},
            }
            for field in changed
        ]
        rules = [
            {"export": name, **_rules_json(rule)} for name, rule in zip((one, other), (before, after), strict=True)
        ]
        echo_json({"exports": rules, "joins": _joins(before, after), "fields": fields})
        return
    for (label, text), (_, text_after), field_name in zip(
        _rule_lines(before), _rule_lines(after), _Rules._fields, strict=True
    ):
        if field_name in differing:
            click.echo(f"{label:<13} {text} -> {text_after}", err=True)
    joins = _joins(before, after)
    told = "nobody can tell: a key cannot be read here" if joins is None else "join" if joins else "do not join"
    click.echo(f"{'digests':<13} {told}", err=True)
    if not changed:
        click.echo("every field leaves alike", err=True)
        return
    rows = [(row.scope, row.path, _told(row.before), _told(row.after)) for row in changed]
    echo_table(("KIND", "FIELD", one.upper(), other.upper()), rows)


def _told(row: Any) -> str:
    return f"{row.effect} ({row.rule})" if row.rule else str(row.effect)


def _outlet(export: ExportSettings) -> Any:
    from projections.privacy_report import Outlet  # noqa: PLC0415  (late, as above)

    return Outlet(export.profile if export.redact else None, bool(export.public_repos))


def _rules(export: ExportSettings) -> _Rules:
    from projections.privacy_classes import CLASS_TABLE_DIGESTS  # noqa: PLC0415  (late, as above)
    from worker.export_filter import ExportFilter  # noqa: PLC0415

    chosen = None if export.filter is None else ExportFilter(export.filter)
    return _Rules(
        redacts=export.redact,
        profile=export.profile if export.redact else None,
        class_table=CLASS_TABLE_DIGESTS[export.profile] if export.redact else None,
        public_repos=sorted(export.public_repos),
        filter=None if chosen is None else chosen.rules(chosen.repos),
        key_id=_key_id(export),
    )


def _key_id(export: ExportSettings) -> str | None:
    """Name the key of an export; None where there is none, or where it cannot be read by whoever asks."""
    from projections.privacy import Policy  # noqa: PLC0415  (late, as above)

    if not export.redact:
        return None
    try:
        return Policy(export.load_key()).key_id
    except SettingsError:
        # A report on what leaves is for people who have no key, too.
        return None


def _joins(before: _Rules, after: _Rules) -> bool | None:
    if not (before.redacts and after.redacts):
        return False
    if before.key_id is None or after.key_id is None:
        return None
    return before.key_id == after.key_id


def _rules_json(rules: _Rules) -> dict[str, Any]:
    return {
        "redacts": rules.redacts,
        "profile": rules.profile,
        "classTable": rules.class_table,
        "publicRepos": rules.public_repos,
        "filter": rules.filter,
        "keyId": rules.key_id,
    }


def _rule_lines(rules: _Rules) -> list[tuple[str, str]]:
    from worker.views.text import shown  # noqa: PLC0415  (late, as above)

    conditions = "; ".join(
        f"{name} {', '.join(map(shown, value)) if isinstance(value, list) else value}"
        for name, value in (rules.filter or {}).items()
    )
    return [
        ("redacts", "yes" if rules.redacts else "no"),
        ("profile", rules.profile or "none"),
        ("class table", (rules.class_table or "none")[:16]),
        ("public_repos", ", ".join(map(shown, rules.public_repos)) or "none"),
        ("filter", conditions or "none"),
        ("key id", rules.key_id or "unknown: the key cannot be read here" if rules.redacts else "none"),
    ]


def _only_export(settings: Settings) -> ExportSettings:
    if len(settings.exports) == 1:
        return settings.exports[0]
    known = ", ".join(export.name for export in settings.exports) or "none"
    raise click.UsageError(f"say which export: --export NAME (the settings have: {known})")
