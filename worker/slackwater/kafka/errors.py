"""The errors of the client: what `slackwater.kafka` raises.

Names are kafka-python's where it has one. A broker's error code becomes the class that
:func:`for_code` names; a code without a class of its own becomes a plain :class:`BrokerError`
that carries it. ``retriable`` says whether the same call may succeed later by itself, as the
Kafka protocol guide's "Error Codes" table does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from slackwater.kafka.wire.errors import ErrorCode


class KafkaError(Exception):
    """The base of all errors of the client."""

    retriable: ClassVar[bool] = False
    invalid_metadata: ClassVar[bool] = False
    """Whether the client's view of the cluster is out of date, and should be refreshed."""


class IllegalArgumentError(KafkaError, ValueError):
    """An argument that no call can make sense of."""


class IllegalStateError(KafkaError):
    """A call that does not fit the state of the object: a closed consumer, a partition not assigned."""


class KafkaConfigurationError(KafkaError, ValueError):
    """A configuration that cannot be used; names the option and what to write instead."""


class KafkaConnectionError(KafkaError):
    """A connection to a broker was lost or refused."""

    retriable = True
    invalid_metadata = True


class KafkaProtocolError(KafkaError):
    """A broker sent what the protocol does not allow. The connection it came on is closed."""

    retriable = True


class NoBrokersAvailable(KafkaError):
    """None of the bootstrap addresses answered in time; names them and what was tried."""

    retriable = True
    invalid_metadata = True


class KafkaTimeoutError(KafkaError, TimeoutError):
    """A call did not complete within its time limit. It may be repeated."""

    retriable = True


class AuthenticationError(KafkaError):
    """A broker refused who the client says it is."""


class CommitFailedError(KafkaError):
    """The group has moved on, and the partitions may be another member's: the commit was not stored."""

    def __init__(self, message: str = "") -> None:
        super().__init__(
            message
            or "the offsets were not committed: the group has rebalanced, or this member was taken out of it "
            "(poll() was not called within max.poll.interval.ms, or the session expired). Records since the "
            "last commit will be delivered again to the partitions' owner."
        )


class NoOffsetForPartitionError(KafkaError):
    """No committed offset, and ``auto_offset_reset="none"``: seek, or commit one first."""


class OffsetOutOfRangeNoResetError(NoOffsetForPartitionError):
    """The position is outside the partition's log, and ``auto_offset_reset="none"``."""

    def __init__(self, offsets: Mapping[Any, int]) -> None:
        self.offsets = dict(offsets)
        where = ", ".join(f"{tp.topic}-{tp.partition} at {offset}" for tp, offset in self.offsets.items())
        super().__init__(
            f'position outside the log: {where}; auto_offset_reset="none" asks for a seek() by the caller'
        )


class WakeupError(KafkaError):
    """A blocking call was ended by ``wakeup()`` or by ``close()`` from another thread."""


_BY_CODE: dict[int, type[BrokerError]] = {}


class BrokerError(KafkaError):
    """An error code that a broker answered. ``code`` is its number, ``name`` its name."""

    code: int = int(ErrorCode.UNKNOWN_SERVER_ERROR)

    def __init_subclass__(
        cls, code: int | None = None, retriable: bool | None = None, metadata: bool | None = None
    ) -> None:
        super().__init_subclass__()
        if retriable is not None:
            cls.retriable = retriable
        if metadata is not None:
            cls.retriable = cls.invalid_metadata = metadata
        if code is not None:
            cls.code = int(code)
            _BY_CODE[cls.code] = cls

    def __init__(self, message: str = "", *, code: int | None = None) -> None:
        if code is not None:
            self.code = int(code)
        text = f"{self.name} ({self.code})"
        super().__init__(f"{message}: {text}" if message else text)

    @property
    def name(self) -> str:
        """The broker's name of the code, as ``UNKNOWN_MEMBER_ID``."""
        return ErrorCode.name_of(self.code)


E = ErrorCode


class UnknownError(BrokerError, code=E.UNKNOWN_SERVER_ERROR): ...


class OffsetOutOfRangeError(BrokerError, code=E.OFFSET_OUT_OF_RANGE): ...


class CorruptRecordError(BrokerError, code=E.CORRUPT_MESSAGE, retriable=True):
    """A record batch that fails its checks. ``offset`` is where, if known."""

    offset: int = -1


class UnknownTopicOrPartitionError(BrokerError, code=E.UNKNOWN_TOPIC_OR_PARTITION, metadata=True): ...


class LeaderNotAvailableError(BrokerError, code=E.LEADER_NOT_AVAILABLE, metadata=True): ...


class NotLeaderForPartitionError(BrokerError, code=E.NOT_LEADER_OR_FOLLOWER, metadata=True): ...


class RequestTimedOutError(BrokerError, code=E.REQUEST_TIMED_OUT, retriable=True): ...


class BrokerNotAvailableError(BrokerError, code=E.BROKER_NOT_AVAILABLE): ...


class ReplicaNotAvailableError(BrokerError, code=E.REPLICA_NOT_AVAILABLE, metadata=True): ...


class MessageSizeTooLargeError(BrokerError, code=E.MESSAGE_TOO_LARGE): ...


class OffsetMetadataTooLargeError(BrokerError, code=E.OFFSET_METADATA_TOO_LARGE): ...


class NetworkExceptionError(BrokerError, code=E.NETWORK_EXCEPTION, metadata=True): ...


class CoordinatorLoadInProgressError(BrokerError, code=E.COORDINATOR_LOAD_IN_PROGRESS, retriable=True): ...


class CoordinatorNotAvailableError(BrokerError, code=E.COORDINATOR_NOT_AVAILABLE, retriable=True): ...


class NotCoordinatorError(BrokerError, code=E.NOT_COORDINATOR, retriable=True): ...


class InvalidTopicError(BrokerError, code=E.INVALID_TOPIC_EXCEPTION): ...


class RecordListTooLargeError(BrokerError, code=E.RECORD_LIST_TOO_LARGE): ...


class NotEnoughReplicasError(BrokerError, code=E.NOT_ENOUGH_REPLICAS, retriable=True): ...


class NotEnoughReplicasAfterAppendError(
    BrokerError, code=E.NOT_ENOUGH_REPLICAS_AFTER_APPEND, retriable=True
): ...


class IllegalGenerationError(BrokerError, code=E.ILLEGAL_GENERATION): ...


class InconsistentGroupProtocolError(BrokerError, code=E.INCONSISTENT_GROUP_PROTOCOL): ...


class InvalidGroupIdError(BrokerError, code=E.INVALID_GROUP_ID): ...


class UnknownMemberIdError(BrokerError, code=E.UNKNOWN_MEMBER_ID): ...


class InvalidSessionTimeoutError(BrokerError, code=E.INVALID_SESSION_TIMEOUT): ...


class RebalanceInProgressError(BrokerError, code=E.REBALANCE_IN_PROGRESS):
    """The group is rebalancing: call ``poll()`` to take part, then repeat."""


class InvalidCommitOffsetSizeError(BrokerError, code=E.INVALID_COMMIT_OFFSET_SIZE): ...


class AuthorizationError(BrokerError): ...


class TopicAuthorizationFailedError(AuthorizationError, code=E.TOPIC_AUTHORIZATION_FAILED): ...


class GroupAuthorizationFailedError(AuthorizationError, code=E.GROUP_AUTHORIZATION_FAILED): ...


class ClusterAuthorizationFailedError(AuthorizationError, code=E.CLUSTER_AUTHORIZATION_FAILED): ...


class InvalidTimestampError(BrokerError, code=E.INVALID_TIMESTAMP): ...


class UnsupportedVersionError(BrokerError, code=E.UNSUPPORTED_VERSION): ...


class TopicAlreadyExistsError(BrokerError, code=E.TOPIC_ALREADY_EXISTS): ...


class InvalidPartitionsError(BrokerError, code=E.INVALID_PARTITIONS): ...


class InvalidReplicationFactorError(BrokerError, code=E.INVALID_REPLICATION_FACTOR): ...


class InvalidConfigurationError(BrokerError, code=E.INVALID_CONFIG): ...


class NotControllerError(BrokerError, code=E.NOT_CONTROLLER, retriable=True): ...


class InvalidRequestError(BrokerError, code=E.INVALID_REQUEST): ...


class PolicyViolationError(BrokerError, code=E.POLICY_VIOLATION): ...


class OutOfOrderSequenceNumberError(BrokerError, code=E.OUT_OF_ORDER_SEQUENCE_NUMBER): ...


class DuplicateSequenceNumberError(BrokerError, code=E.DUPLICATE_SEQUENCE_NUMBER): ...


class InvalidProducerEpochError(BrokerError, code=E.INVALID_PRODUCER_EPOCH): ...


class ConcurrentTransactionsError(BrokerError, code=E.CONCURRENT_TRANSACTIONS, retriable=True): ...


class KafkaStorageError(BrokerError, code=E.KAFKA_STORAGE_ERROR, metadata=True): ...


class UnknownProducerIdError(BrokerError, code=E.UNKNOWN_PRODUCER_ID): ...


class NonEmptyGroupError(BrokerError, code=E.NON_EMPTY_GROUP): ...


class GroupIdNotFoundError(BrokerError, code=E.GROUP_ID_NOT_FOUND): ...


class FetchSessionIdNotFoundError(BrokerError, code=E.FETCH_SESSION_ID_NOT_FOUND, retriable=True): ...


class InvalidFetchSessionEpochError(BrokerError, code=E.INVALID_FETCH_SESSION_EPOCH, retriable=True): ...


class ListenerNotFoundError(BrokerError, code=E.LISTENER_NOT_FOUND, metadata=True): ...


class FencedLeaderEpochError(BrokerError, code=E.FENCED_LEADER_EPOCH, metadata=True): ...


class UnknownLeaderEpochError(BrokerError, code=E.UNKNOWN_LEADER_EPOCH, metadata=True): ...


class UnsupportedCompressionTypeError(BrokerError, code=E.UNSUPPORTED_COMPRESSION_TYPE): ...


class OffsetNotAvailableError(BrokerError, code=E.OFFSET_NOT_AVAILABLE, retriable=True): ...


class MemberIdRequiredError(BrokerError, code=E.MEMBER_ID_REQUIRED): ...


class GroupMaxSizeReachedError(BrokerError, code=E.GROUP_MAX_SIZE_REACHED): ...


class FencedInstanceIdError(BrokerError, code=E.FENCED_INSTANCE_ID):
    """Another consumer has taken this one's ``group.instance.id``. Stop: nothing it does counts any more."""


class InvalidRecordError(BrokerError, code=E.INVALID_RECORD): ...


class UnstableOffsetCommitError(BrokerError, code=E.UNSTABLE_OFFSET_COMMIT, retriable=True): ...


class ThrottlingQuotaExceededError(BrokerError, code=E.THROTTLING_QUOTA_EXCEEDED, retriable=True): ...


class ProducerFencedError(BrokerError, code=E.PRODUCER_FENCED): ...


class ResourceNotFoundError(BrokerError, code=E.RESOURCE_NOT_FOUND): ...


class UnknownTopicIdError(BrokerError, code=E.UNKNOWN_TOPIC_ID, metadata=True): ...


class InconsistentTopicIdError(BrokerError, code=E.INCONSISTENT_TOPIC_ID, metadata=True): ...


class FetchSessionTopicIdError(BrokerError, code=E.FETCH_SESSION_TOPIC_ID_ERROR, retriable=True): ...


class UnreleasedInstanceIdError(BrokerError, code=E.UNRELEASED_INSTANCE_ID): ...


class UnsupportedAssignorError(BrokerError, code=E.UNSUPPORTED_ASSIGNOR): ...


class RebootstrapRequiredError(BrokerError, code=E.REBOOTSTRAP_REQUIRED, metadata=True): ...


def for_code(code: int, message: str = "") -> BrokerError:
    """The error of a broker's ``code`` (not ``NONE``); ``message`` says what was being done.

    A code without a class of its own gives a :class:`BrokerError` with that code, not retriable.
    """
    found = _BY_CODE.get(code)
    return found(message) if found is not None else BrokerError(message, code=code)


def raise_for_code(code: int, message: str = "") -> None:
    """Raises :func:`for_code` unless ``code`` is ``NONE``."""
    if code != ErrorCode.NONE:
        raise for_code(code, message)
