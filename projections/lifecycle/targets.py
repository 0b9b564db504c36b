"""The four targets of an execution: what ``prepare`` must say, and which conversations may be observed later."""

import re
from collections.abc import Callable
from typing import Any

from projections.lifecycle.checks import (
    is_same_identity,
    require_conversation,
    require_identity,
    require_nonblank,
    require_nonblank_if_given,
    require_nonnegative_integer,
    require_object,
)
from projections.lifecycle.ecmascript import UNDEFINED, JsonObject, is_same, is_truthy, read, safe_integer
from projections.lifecycle.errors import invalid

_SHA256 = re.compile(r"[0-9a-f]{64}")


def require_prepared_execution(transition: JsonObject) -> JsonObject:
    """Give the execution identity that a ``prepare`` stores, after checking it against its target.

    Keys of ``execution`` that are not known are kept, as in the reference; a pinned target fixes the conversation.
    """
    execution = require_object(read(transition, "execution"), "execution")
    require_nonblank(read(execution, "executionId"), "execution.executionId")
    require_nonblank(read(transition, "harness"), "harness")
    target = require_object(read(transition, "target"), "target")
    kind = read(target, "kind")
    prepare = _PREPARE.get(kind) if isinstance(kind, str) else None
    if prepare is None:
        raise invalid("target_kind_unknown")
    return prepare(execution, target, transition)


def _prepare_fresh(execution: JsonObject, target: JsonObject, transition: JsonObject) -> JsonObject:
    namespace, pinned_id = read(target, "namespace"), read(target, "pinnedNativeId")
    require_nonblank(namespace, "target.namespace")
    if pinned_id is UNDEFINED:
        return _unstarted(execution)
    require_nonblank(pinned_id, "target.pinnedNativeId")
    pinned = {"harness": transition["harness"], "namespace": namespace, "nativeId": pinned_id}
    given = read(execution, "conversation")
    if is_truthy(given) and not is_same_identity(given, pinned):
        raise invalid("pinned_mismatch")
    return {**execution, "conversation": pinned}


def _prepare_resume(execution: JsonObject, target: JsonObject, transition: JsonObject) -> JsonObject:
    resumed = require_conversation(read(target, "conversation"), transition["harness"])
    given = read(execution, "conversation")
    if not is_truthy(given) or not is_same_identity(given, resumed):
        raise invalid("resume_conversation_mismatch")
    return dict(execution)


def _prepare_fork(execution: JsonObject, target: JsonObject, transition: JsonObject) -> JsonObject:
    require_nonblank(read(target, "namespace"), "target.namespace")
    # The parent may live in another namespace, never in another harness.
    require_conversation(read(target, "parent"), transition["harness"])
    return _unstarted(execution)


def _prepare_handoff(execution: JsonObject, target: JsonObject, transition: JsonObject) -> JsonObject:
    require_nonblank(read(target, "namespace"), "target.namespace")
    handoff = require_object(read(target, "handoff"), "target.handoff")
    require_nonblank(read(handoff, "handoffId"), "handoff.handoffId")
    require_nonblank(read(handoff, "lineageId"), "handoff.lineageId")
    generation = safe_integer(read(handoff, "generation"))
    if generation is None or generation < 2:
        raise invalid("handoff_generation_below_two", "handoff.generation")
    predecessor_id = _require_predecessor(read(handoff, "predecessor"))
    _require_brief(read(handoff, "brief"))
    agent = read(transition, "agent")
    if not isinstance(agent, dict):
        raise invalid("handoff_agent_missing")
    agent_id = read(agent, "agentId")
    require_nonblank(agent_id, "agent.agentId")
    if is_same(agent_id, predecessor_id):
        raise invalid("handoff_agent_same")
    return _unstarted(execution)


def _require_predecessor(value: Any) -> Any:
    """Check whom a handoff succeeds and give its agent id; its conversation may be of any harness."""
    agent = read(value, "agent") if isinstance(value, dict) else UNDEFINED
    agent_id = read(require_object(agent, "handoff.predecessor.agent"), "agentId")
    require_nonblank(agent_id, "handoff.predecessor.agent.agentId")
    require_nonblank_if_given(read(value, "executionId"), "handoff.predecessor.executionId")
    conversation = read(value, "conversation")
    if conversation is not UNDEFINED:
        require_identity(conversation, "handoff.predecessor.conversation")
    return agent_id


def _require_brief(value: Any) -> None:
    brief = require_object(value, "handoff.brief")
    require_nonblank(read(brief, "ref"), "handoff.brief.ref")
    digest = read(brief, "sha256")
    if not isinstance(digest, str) or not _SHA256.fullmatch(digest):
        raise invalid("not_sha256", "handoff.brief.sha256")
    require_nonnegative_integer(read(brief, "bytes"), "handoff.brief.bytes")


def _unstarted(execution: JsonObject) -> JsonObject:
    if is_truthy(read(execution, "conversation")):
        raise invalid("conversation_before_start")
    return dict(execution)


_PREPARE: dict[str, Callable[[JsonObject, JsonObject, JsonObject], JsonObject]] = {
    "fresh": _prepare_fresh,
    "resume": _prepare_resume,
    "fork": _prepare_fork,
    "handoff": _prepare_handoff,
}


def stored_target(target: JsonObject) -> JsonObject:
    """Give the target that a record keeps: of a resume only its conversation, of the others everything."""
    if target["kind"] == "resume":
        return {"kind": "resume", "conversation": target["conversation"]}
    return dict(target)


def require_target_conversation(target: Any, conversation: JsonObject, subject: str) -> None:
    """Refuse an observed conversation that the target rules out.

    It must lie in the target's namespace (a resume has none of its own) and must not be the fork's parent or the
    handoff's predecessor. ``subject`` is the field that the errors name.
    """
    kind = read(target, "kind")
    # An absent namespace demands nothing, as in the reference.
    namespace = UNDEFINED if kind == "resume" else read(target, "namespace")
    if namespace is not UNDEFINED and not is_same(read(conversation, "namespace"), namespace):
        raise invalid("namespace_mismatch", subject)
    excluded = _excluded(kind, target)
    if is_truthy(excluded) and is_same_identity(excluded, conversation):
        raise invalid("conversation_not_new", subject)


def _excluded(kind: Any, target: Any) -> Any:
    if kind == "fork":
        return read(target, "parent")
    if kind == "handoff":
        return read(read(read(target, "handoff"), "predecessor"), "conversation")
    return UNDEFINED
