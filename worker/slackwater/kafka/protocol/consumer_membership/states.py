"""The table of transitions of a member by the consumer protocol.

The coordinator decides who has which partition; each member is told its own in the answers to heartbeats, and
gives up and takes partitions by itself, while the others read on.
"""

from __future__ import annotations

from slackwater.kafka.protocol.membership.states import Event, State

_S, _E = State, Event
TRANSITIONS: dict[State, dict[Event, State]] = {
    _S.OUT: {_E.WANT: _S.PREPARING, _E.LEAVE: _S.OUT, _E.DIE: _S.DEAD},
    _S.PREPARING: {
        _E.PREPARED: _S.JOINING, _E.RESET: _S.PREPARING, _E.LEAVE: _S.OUT, _E.DIE: _S.DEAD,
    },
    _S.JOINING: {_E.JOINED: _S.STABLE, _E.RESET: _S.PREPARING, _E.LEAVE: _S.OUT, _E.DIE: _S.DEAD},
    _S.STABLE: {_E.ASSIGNED: _S.ASSIGNING, _E.RESET: _S.PREPARING, _E.LEAVE: _S.OUT, _E.DIE: _S.DEAD},
    _S.ASSIGNING: {
        _E.APPLIED: _S.ACKNOWLEDGING, _E.RESET: _S.PREPARING, _E.LEAVE: _S.OUT, _E.DIE: _S.DEAD,
    },
    _S.ACKNOWLEDGING: {
        _E.ACKNOWLEDGED: _S.STABLE, _E.RESET: _S.PREPARING, _E.LEAVE: _S.OUT, _E.DIE: _S.DEAD,
    },
    _S.DEAD: {_E.LEAVE: _S.DEAD, _E.DIE: _S.DEAD},
}  # fmt: skip
