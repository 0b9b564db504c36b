"""Topics by the ids that brokers give them: a topic that was deleted and made anew under its old name is another one.

aiokafka asks for metadata in a form from before topics had ids, so the newer form of that one question is written down
here (KIP-516: metadata version 10).
"""

import uuid
from collections.abc import Collection
from io import BytesIO
from typing import Any, NamedTuple

from aiokafka.errors import IncompatibleBrokerVersion
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import (
    AbstractType,
    Boolean,
    CompactArray,
    CompactString,
    Int16,
    Int32,
    Schema,
    TaggedFields,
)

_METADATA_KEY = 3
_VERSION = 10
_TEXT = CompactString("utf-8")
_NO_ID = uuid.UUID(int=0)


class TopicIdentity(NamedTuple):
    """What a generation is bound to of a topic; ``id`` is None where the broker gives topics no ids."""

    id: str | None
    partitions: int


class _Uuid(AbstractType):  # type: ignore[misc]
    """Sixteen bytes."""

    @classmethod
    def encode(cls, value: uuid.UUID) -> bytes:
        return value.bytes

    @classmethod
    def decode(cls, data: BytesIO) -> uuid.UUID:
        return uuid.UUID(bytes=data.read(16))


class _MetadataResponse(Response):  # type: ignore[misc]
    API_KEY = _METADATA_KEY
    API_VERSION = _VERSION
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "brokers",
            CompactArray(("id", Int32), ("host", _TEXT), ("port", Int32), ("rack", _TEXT), ("tags", TaggedFields)),
        ),
        ("cluster_id", _TEXT),
        ("controller_id", Int32),
        (
            "topics",
            CompactArray(
                ("error_code", Int16),
                ("topic", _TEXT),
                ("topic_id", _Uuid),
                ("is_internal", Boolean),
                (
                    "partitions",
                    CompactArray(
                        ("error_code", Int16),
                        ("partition", Int32),
                        ("leader", Int32),
                        ("leader_epoch", Int32),
                        ("replicas", CompactArray(Int32)),
                        ("isr", CompactArray(Int32)),
                        ("offline_replicas", CompactArray(Int32)),
                        ("tags", TaggedFields),
                    ),
                ),
                ("authorized_operations", Int32),
                ("tags", TaggedFields),
            ),
        ),
        ("cluster_authorized_operations", Int32),
        ("tags", TaggedFields),
    )


class _MetadataRequestStruct(RequestStruct):  # type: ignore[misc]
    FLEXIBLE_VERSION = True
    API_KEY = _METADATA_KEY
    API_VERSION = _VERSION
    RESPONSE_TYPE = _MetadataResponse
    SCHEMA = Schema(
        ("topics", CompactArray(("id", _Uuid), ("name", _TEXT), ("tags", TaggedFields))),
        ("allow_auto_topic_creation", Boolean),
        ("include_cluster_authorized_operations", Boolean),
        ("include_topic_authorized_operations", Boolean),
        ("tags", TaggedFields),
    )


class _MetadataRequest(Request[_MetadataRequestStruct]):  # type: ignore[misc]
    API_KEY = _METADATA_KEY

    def __init__(self, topics: Collection[str]) -> None:
        self._topics = topics

    def build(self, request_struct_class: Any) -> Any:
        asked: list[Any] = [(_NO_ID, topic, {}) for topic in self._topics]
        return request_struct_class(asked, False, False, False, {})  # noqa: FBT003  (a wire format)


async def topic_identities(admin: Any, topics: Collection[str]) -> dict[str, TopicIdentity]:
    """Give the identity of each of the topics that exist; nothing is created by asking."""
    try:
        response = await admin._send_request(_MetadataRequest(topics))  # noqa: SLF001  (its only door for a request)
    except (IncompatibleBrokerVersion, NotImplementedError):
        # A broker from before topics had ids.
        present = sorted(set(topics) & set(await admin.list_topics()))
        described = await admin.describe_topics(present) if present else []
        return {one["topic"]: TopicIdentity(None, len(one["partitions"])) for one in described}
    return {
        one["topic"]: TopicIdentity(str(one["topic_id"]) if one["topic_id"] != _NO_ID else None, len(one["partitions"]))
        for one in response.to_object()["topics"]
        if not one["error_code"]
    }
