"""From messages to views: `read` turns a message into the class of the same fields; what the
protocol marks as optional is None where it is absent.
"""

from __future__ import annotations

import json
from typing import Any, TypeVar

from msgspec import Struct

from corral.contract import views
from corral.contract.views import Ended, Event, JobView
from corral.core.job import Blob, Failure, State

V = TypeVar("V", bound=Struct)

_CLASSES: dict[str, type[Struct]] = {
    **{cls.__name__: cls for cls in views.Shown.__subclasses__()},
    "InviteReply": views.InvitationView,
    "ArtifactView": views.Artifact,
    "Progress": views.Progressed,
    "Failure": Failure,
    "BlobRef": Blob,
    "HealthReply": views.Health,
}
"""By the names of messages: but for these they are those of the views."""
_EVENTS = {cls.__struct_config__.tag: cls for cls in Event.__subclasses__()}
_JSON = frozenset({("JobView", "record"), ("LearningRunView", "result")})
# Absent bytes are the empty string on the wire and None in our values.
_ABSENT_WHEN_EMPTY = frozenset({("BlobRef", "data"), ("Failure", "pickled")})


def read(message: Any) -> Any:
    """The value for a protobuf message, by its name."""
    cls = _CLASSES[message.DESCRIPTOR.name]
    return cls(**_fields(message, cls.__struct_fields__))


def read_as(cls: type[V], message: Any) -> V:
    return cls(**_fields(message, cls.__struct_fields__))


def read_event(message: Any) -> Event | None:
    """None for a kind of event that a newer controller may send and this client does not know."""
    kind = message.WhichOneof("event")
    if kind is None:
        return None
    cls = _EVENTS[kind]
    told = {name: getattr(message, name) for name in Event.__struct_fields__}
    return cls(**told, **_fields(getattr(message, kind), cls.__struct_fields__))


def _fields(message: Any, wanted: tuple[str, ...]) -> dict[str, Any]:
    known = message.DESCRIPTOR.fields_by_name
    owner = message.DESCRIPTOR.name
    return {name: _value(message, known[name], owner) for name in wanted if name in known}


def _value(message: Any, field: Any, owner: str) -> Any:
    value = getattr(message, field.name)
    if field.is_repeated:
        if field.message_type is None:
            return tuple(value)
        if field.message_type.GetOptions().map_entry:
            return dict(value)
        return tuple(read(one) for one in value)
    if field.has_presence and not message.HasField(field.name):
        return None
    if (owner, field.name) in _ABSENT_WHEN_EMPTY and not value:
        return None
    if (owner, field.name) in _JSON:
        return json.loads(value) if value else None
    return value if field.message_type is None else read(value)


def ended_of(view: JobView) -> Ended | None:
    """How a job ended, from its view; None while it lives."""
    if not view.ended:
        return None
    return Ended(
        job_id=view.job_id,
        at=view.ended_at,
        attempt=view.attempt,
        state=State(view.state),
        result=view.result,
        failure=view.failure,
        seconds=view.seconds,
    )
