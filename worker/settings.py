"""Settings of every command: a TOML file, the environment above it, defaults below it, no unknown key anywhere."""

import difflib
import os
import re
import tomllib
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    SecretStr,
    ValidationError,
    model_validator,
)
from pydantic_settings import BaseSettings, NoDecode, PydanticBaseSettingsSource, SettingsConfigDict
from pydantic_settings import SettingsError as MalformedVariableError

from worker.settings_sections import (
    Count,
    ExportSettings,
    KafkaSettings,
    LimitSettings,
    Port,
    SettingsError,
    TopicSettings,
    matching,
)

ENV_PREFIX = "TRACE_PROJECTOR_"
ENV_NESTED_DELIMITER = "__"
# Variables with our prefix that are no setting: where the settings file is, and where tests find real transcripts.
ENV_RESERVED = frozenset({"TRACE_PROJECTOR_CONFIG", "TRACE_PROJECTOR_REAL"})
MASK = "********"
KEY_BYTES_RECOMMENDED = 32
ROLES = ("project", "fold", "export")
LOOPBACK_HOSTS = ("127.0.0.1", "::1", "localhost")

_APP_ID = re.compile(r"[A-Za-z0-9._-]{1,120}")
_SERVER = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})")
# A password that was not encoded may hold anything, even what ends the user part; behind a host, a port is none.
_URL_PASSWORD = re.compile(r"(?<=//)([^/@:?#]*):(?!\d+[/?])(.*)@", re.DOTALL)
_URL_SECRET_PARAMETER = re.compile(
    r"(?i)\b([a-z_-]*(?:password|passwd|secret|token|credential|api[_-]?key)[a-z_-]*=)[^&#]*"
)


def _checked_servers(value: str) -> str:
    for server in value.split(","):
        match = _SERVER.fullmatch(server.strip())
        if match is None or not 0 < int(match[2]) <= 65535:
            message = "is no comma-separated list of host:port"
            raise ValueError(message)
    return ",".join(server.strip() for server in value.split(","))


def _comma_separated(value: object) -> object:
    # The environment has no lists: `project,fold` there means what ["project", "fold"] means in the file.
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


Role = Annotated[str, matching(re.compile(r"project|fold|export(:.+)?"), "role: project, fold, export or export:NAME")]


class Settings(BaseSettings):
    """All settings; every field can be given as a TOML key or as `TRACE_PROJECTOR_<FIELD>` (`__` between levels)."""

    model_config = SettingsConfigDict(
        extra="forbid",
        frozen=True,
        env_prefix=ENV_PREFIX,
        env_nested_delimiter=ENV_NESTED_DELIMITER,
        hide_input_in_errors=True,
    )

    app_id: Annotated[str, matching(_APP_ID, "application id (letters, digits, '.', '_', '-')")] = "trace-projector"
    bootstrap_servers: Annotated[str, AfterValidator(_checked_servers)] = "127.0.0.1:9092"
    partitions: Count = 8
    replication_factor: Count = 1
    generation: Count = 1
    unbound: Literal["hold", "standalone"] = "hold"
    estimate_costs: bool = False
    prices_file: Path | None = None
    roles: Annotated[tuple[Role, ...], NoDecode, BeforeValidator(_comma_separated), Field(min_length=1)] = ROLES
    fencing: Literal["auto", "on", "off"] = "auto"
    state_dir: Path | None = None
    web_host: Annotated[str, Field(min_length=1)] = "127.0.0.1"
    web_port: Port = 6066
    # Whoever asks for more than whether the worker is alive and ready then has to name it.
    web_token: Annotated[SecretStr, Field(min_length=1)] | None = None
    # The export whose sink the pages show; none: no page shows a record.
    web_export: str | None = None
    web_unredacted: bool = False
    log_format: Literal["json", "console"] = "json"
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    topics: TopicSettings = TopicSettings()
    kafka: KafkaSettings = KafkaSettings()
    limits: LimitSettings = LimitSettings()
    exports: tuple[ExportSettings, ...] = ()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Let the environment win over the file, and read nothing else."""
        del settings_cls, dotenv_settings, file_secret_settings
        return env_settings, init_settings

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        names = [export.name for export in self.exports]
        for name in names:
            if names.count(name) > 1:
                message = f"exports has the name {name} twice"
                raise ValueError(message)
        for role in self.roles:
            if role.startswith("export:") and role.removeprefix("export:") not in names:
                message = f"roles names {role}, and exports has no such name"
                raise ValueError(message)
        topics = list(self.source_topics.values())
        for topic in topics:
            if topics.count(topic) > 1:
                message = f"topics names {topic} twice; every source needs a topic of its own"
                raise ValueError(message)
        self._check_pages()
        return self

    def _check_pages(self) -> None:
        """Refuse pages that would show records to whom they are not for."""
        shown = next((export for export in self.exports if export.name == self.web_export), None)
        is_loopback = self.web_host in LOOPBACK_HOSTS
        message = None
        if self.web_unredacted and not is_loopback:
            message = f"web_unredacted is for this machine alone: web_host has to be one of {', '.join(LOOPBACK_HOSTS)}"
        elif self.web_export is not None and shown is None:
            message = f"web_export names {self.web_export}, and exports has no such name"
        elif shown is not None and not shown.redact and not self.web_unredacted:
            message = f"web_export names {shown.name}, which does not redact; name another or set web_unredacted"
        elif shown is not None and not is_loopback and self.web_token is None:
            message = f"web_export shows records to whoever reaches {self.web_host}: give web_token"
        if message is not None:
            raise ValueError(message)

    @property
    def source_topics(self) -> dict[str, str]:
        """Topic of each source, by the source's name."""
        return self.topics.by_source(self.app_id)

    def with_roles(self, roles: tuple[str, ...]) -> Self:
        """Give the same settings for a worker with these roles only; `SettingsError` for one that does not exist."""
        for role in roles:
            kind, _, name = role.partition(":")
            if kind not in ROLES or (name and kind != "export") or role.endswith(":"):
                raise SettingsError([f"{role} is no role: project, fold, export or export:NAME"])
            if name:
                self.export_named(name)
        return self.model_copy(update={"roles": roles})

    def export_named(self, name: str) -> ExportSettings:
        """Find one export; `SettingsError` with the names there are when it is missing."""
        for export in self.exports:
            if export.name == name:
                return export
        known = ", ".join(export.name for export in self.exports) or "none"
        raise SettingsError([f"no export is named {name}; the settings have: {known}"])


def load_settings(config: Path | None = None) -> Settings:
    """Read the settings file (if any) and the environment; `SettingsError` names each bad key and where it stands."""
    values = {} if config is None else _read_toml(config)
    try:
        settings = Settings(**values)
    except MalformedVariableError as error:
        # Its text names the variable's field and source only; the parse error it wraps would repeat the value.
        raise SettingsError([f"environment: {error}"]) from error
    except ValidationError as error:
        raise SettingsError(_problems(error, config)) from error
    unknown = _unknown_variables(settings.exports)
    if unknown:
        raise SettingsError(unknown)
    return settings


def _read_toml(config: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(config.read_text(encoding="utf-8"))
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise SettingsError([f"cannot read settings file {config}: {reason}"]) from error
    except UnicodeDecodeError as error:
        raise SettingsError([f"settings file {config} is not UTF-8"]) from error
    except tomllib.TOMLDecodeError as error:
        raise SettingsError([f"settings file {config} is no TOML: {error}"]) from error


def _problems(error: ValidationError, config: Path | None) -> list[str]:
    problems = []
    for detail in error.errors(include_url=False, include_context=False, include_input=False):
        location = detail["loc"]
        message = detail["msg"].removeprefix("Value error, ")
        if detail["type"] == "extra_forbidden":
            message = f"unknown key{_did_you_mean(str(location[-1]), _keys_beside(location))}"
        elif detail["type"] == "missing":
            message = "is required"
        problems.append(f"{_place(location, config)}: {_dotted(location)}{message}")
    return problems


def _place(location: tuple[int | str, ...], config: Path | None) -> str:
    fields = [str(part) for part in location]
    for length in range(len(fields), 0, -1):
        variable = (ENV_PREFIX + ENV_NESTED_DELIMITER.join(fields[:length])).upper()
        if any(name.upper() == variable for name in os.environ):
            return f"environment variable {variable}"
    return "settings" if config is None else f"settings file {config}"


def _dotted(location: tuple[int | str, ...]) -> str:
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return f"{text}: " if text else ""


def _did_you_mean(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f" (did you mean {near[0]}?)" if near else ""


def _keys_beside(location: tuple[int | str, ...]) -> list[str]:
    model: type[BaseModel] = Settings
    for part in location[:-1]:
        if isinstance(part, str):
            model = _section_of(model, part) or model
    return list(model.model_fields)


def _section_of(model: type[BaseModel], field: str) -> type[BaseModel] | None:
    """Give the model behind a field that is a section or a list of sections."""
    if field not in model.model_fields:
        return None
    annotation = model.model_fields[field].annotation
    for candidate in (annotation, *typing.get_args(annotation)):
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return candidate
    return None


def variable_names(model: type[BaseModel] = Settings, prefix: str = ENV_PREFIX) -> Iterator[str]:
    """Yield every environment variable that is a setting, in upper case."""
    for field, info in model.model_fields.items():
        name = f"{prefix}{field}".upper()
        yield name
        if isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel):
            yield from variable_names(info.annotation, f"{name}{ENV_NESTED_DELIMITER}")


def _unknown_variables(exports: tuple[ExportSettings, ...]) -> list[str]:
    known = list(variable_names())
    # A digest key may well live in a variable that carries our prefix.
    secrets = {name.upper() for export in exports for name in (export.key_env, export.headers_env) if name}
    allowed = {*known, *ENV_RESERVED, *secrets}
    return [
        f"environment variable {name}: no such setting{_did_you_mean(name.upper(), known)}"
        for name in sorted(os.environ)
        if name.upper().startswith(ENV_PREFIX) and name.upper() not in allowed
    ]


def mask_url(url: str) -> str:
    """Give a sink URL without the passwords that its user part or its parameters hold."""
    masked = _URL_PASSWORD.sub(rf"\1:{MASK}@", url)
    return _URL_SECRET_PARAMETER.sub(rf"\1{MASK}", masked)
