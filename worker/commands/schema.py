"""`trace-projector schema`: the JSON Schemas of trace records and of the source topics' messages."""

import json
from pathlib import Path

import click

from worker.cli import CommandFailed


@click.command(
    "schema",
    epilog="""\b
Examples:
  trace-projector schema
  trace-projector schema titan.trace/v1
  trace-projector schema transcripts > transcripts.schema.json
  trace-projector schema --to schemas/
""",
)
@click.argument("name", required=False)
@click.option(
    "--to",
    "directory",
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write all of them into files of a directory.",
)
def schema_command(name: str | None, directory: Path | None) -> None:
    """Print a JSON Schema (2020-12), or the names there are.

    Of the records that leave (titan.trace/v1) and of a message's value in each source topic. What a source's schema
    takes can be projected; unknown fields are ignored.
    """
    from worker.contracts.sources import json_schemas  # noqa: PLC0415  (late, like every heavy import of a command)

    schemas = json_schemas()
    if directory is not None:
        if name is not None:
            raise click.UsageError("--to writes all schemas; give a NAME or --to")
        try:
            directory.mkdir(parents=True, exist_ok=True)
            for one, schema in schemas.items():
                (directory / file_name(one)).write_text(schema_text(schema), encoding="utf-8")
        except OSError as error:
            raise CommandFailed(f"{directory}: {error.strerror or type(error).__name__}") from error
    elif name is None:
        click.echo("\n".join(schemas))
    elif name in schemas:
        click.echo(schema_text(schemas[name]), nl=False)
    else:
        raise click.UsageError(f"there is no schema {name}; there are {', '.join(schemas)}")


def file_name(name: str) -> str:
    """Name the file of a schema."""
    return f"{name.replace('/', '.')}.schema.json"


def schema_text(schema: dict[str, object]) -> str:
    """Write a schema as its file holds it."""
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"
