"""The errors of the client: what `slackwater.kafka` raises.

Names are kafka-python's where it has one. A broker's error code becomes the class that
:func:`for_code` names; a code without a class of its own becomes a plain :class:`BrokerError`
that carries it. ``retriable`` says whether the same call may succeed later by itself, as the
Kafka protocol guide's "Error Codes" table does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

from slackwater.kafka.error_hints import hint
from slackwater.kafka.wire.errors import ErrorCode

X = TypeVar("X", bound=Exception)


def reduce_error(error: Exception) -> tuple[Any, ...]:
    """The return value of an error's ``__reduce__``, for ``copy`` and ``pickle``.

    Python recreates an error by calling its class with ``args``, the message. That fails for a class whose
    constructor takes something else, and breaks a process pool.
    """
    return remake_error, (type(error), error.args), vars(error)


def remake_error(kind: type[X], arguments: tuple[Any, ...]) -> X:
    """An error with these ``args``, created without calling its constructor."""
    error = kind.__new__(kind)
    error.args = arguments
    return error


class KafkaError(Exception):
    """The base of all errors of the client."""

    retriable: ClassVar[bool] = False
    invalid_metadata: ClassVar[bool] = False
    """Whether the client's view of the cluster is out of date, and should be refreshed."""

    def __reduce__(self) -> tuple[Any, ...]:
        return reduce_error(self)


class RetriableError(KafkaError):
    """The base of errors after which the same call may succeed by itself (kafka-python's name)."""

    retriable = True


class InvalidMetadataError(RetriableError):
    """The base of errors that say that the client's view of the cluster is out of date."""

    invalid_metadata = True


class IllegalArgumentError(KafkaError, ValueError):
    """An invalid argument."""


class IllegalStateError(KafkaError):
    """A call that the object's state does not allow: a closed consumer, a partition not assigned."""


class PartitionNotAssignedError(IllegalStateError, ValueError):
    """A call for a partition that is not assigned to this consumer (a ValueError in kafka-python)."""


class KafkaConfigurationError(KafkaError, ValueError):
    """An invalid configuration; the message names the option and what to write instead."""


class KafkaConnectionError(InvalidMetadataError):
    """A connection to a broker was lost or refused."""


class KafkaProtocolError(KafkaError):
    """A broker violated the protocol. The connection is closed."""

    retriable = True


class KafkaTimeoutError(RetriableError, TimeoutError):
    """A call did not complete within its time limit. It may be repeated."""


class SendDeadlineError(KafkaError):
    """Records were not sent by their ``send_by_ms``. An attempt before it may have stored them."""


class AbortableTransactionError(KafkaError):
    """The transaction cannot be committed: call ``abort_transaction()``, then do its work again in another.

    ``__cause__``: what has failed. Records and offsets of the transaction are of no effect.
    """


class FatalTransactionError(KafkaError):
    """A transactional producer is of no use any more: close it.

    The cluster aborts its open transaction, at once by ``init_transactions()`` of the next producer with the
    ``transactional_id``. Whether a commit that raised this took place, the group's committed offsets say.
    """


class TransactionAbortedError(KafkaError):
    """The record was discarded because its transaction is aborted."""


class NoBrokersAvailable(KafkaTimeoutError):
    """No bootstrap address answered in time; the message names the addresses."""

    invalid_metadata = True


class AuthenticationError(KafkaError):
    """A broker refused this client's login, or could not prove its own identity. Final, as in Java."""


class SaslAuthenticationError(AuthenticationError):
    """The SASL login failed. The message names the mechanism and what to check, never a password."""


class SslAuthenticationError(AuthenticationError):
    """A certificate was not accepted: the broker's by this client, or this client's by the broker."""


class RefusedForNowError(KafkaConnectionError, AuthenticationError):
    """A failed authentication that is retried (``Security.retry_refused``), since files may change."""


class CommitFailedError(KafkaError):
    """The commit was not stored: the group has rebalanced, and another member may own the partitions."""

    def __init__(self, message: str = "") -> None:
        super().__init__(
            message
            or "the offsets were not committed: the group has rebalanced, or this member was removed from "
            "it (poll() was not called within max.poll.interval.ms, or the session timed out). Records "
            "since the last commit will be delivered again to the partitions' owner."
        )


class NoOffsetForPartitionError(KafkaError):
    """No committed offset, and ``auto_offset_reset="none"``: seek or commit an offset first."""


class WakeupError(KafkaError):
    """A blocking call was ended by ``wakeup()``."""


class RecordDeserializationError(KafkaError):
    """A deserializer failed on a record. To skip it: ``seek(error.topic_partition, error.offset + 1)``.

    ``origin``: ``"key"`` or ``"value"``. ``key`` and ``value``: the bytes as they were fetched;
    ``timestamp`` (ms) and ``headers``: the record's. The deserializer's error is ``__cause__``. As
    Java's RecordDeserializationException (KIP-334, KIP-1036).
    """

    def __init__(
        self,
        topic_partition: Any,
        offset: int,
        origin: str,
        *,
        key: bytes | None = None,
        value: bytes | None = None,
        timestamp: int = -1,
        headers: Any = (),
        why: str = "",
    ) -> None:
        self.topic_partition, self.offset, self.origin = topic_partition, offset, origin
        self.key, self.value, self.timestamp, self.headers = key, value, timestamp, headers
        where = f"{topic_partition[0]}-{topic_partition[1]}"
        super().__init__(
            f"the {origin} of the record at offset {offset} of {where} cannot be deserialized"
            + (f" ({why})" if why else "")
            + f"; to skip it, seek() to offset {offset + 1} of {where}"
        )


class RebalanceListenerError(KafkaError):
    """A rebalance listener raised; the message names the callback, ``__cause__`` is its error.

    The rebalance continued: the change that the listener was called for has happened.
    """


_BY_CODE: dict[int, type[BrokerError]] = {}


class BrokerError(KafkaError):
    """A broker's error code. ``code`` is its number, ``name`` its name.

    The message has the operation, the code, and the remedy (``advice``).
    """

    code: int = int(ErrorCode.UNKNOWN_SERVER_ERROR)

    def __init_subclass__(cls, code: int | None = None) -> None:
        super().__init_subclass__()
        if code is not None:
            cls.code = int(code)
            _BY_CODE[cls.code] = cls

    def __init__(self, message: str = "", *, code: int | None = None, advice: str = "") -> None:
        if code is not None:
            self.code = int(code)
        text = f"{self.name} ({self.code})" + (f"; {advice}" if advice else "")
        super().__init__(f"{message}: {text}" if message else text)

    @property
    def name(self) -> str:
        """The broker's name of the code, as ``UNKNOWN_MEMBER_ID``."""
        return ErrorCode.name_of(self.code)


E = ErrorCode


class OffsetOutOfRangeError(BrokerError, code=E.OFFSET_OUT_OF_RANGE): ...


class OffsetOutOfRangeNoResetError(NoOffsetForPartitionError, OffsetOutOfRangeError):
    """The position is outside the partition's log, and ``auto_offset_reset="none"``.

    ``except OffsetOutOfRangeError`` catches it, as in kafka-python and, by its name there, in Java.
    """

    def __init__(self, offsets: Mapping[Any, int]) -> None:
        self.offsets = dict(offsets)
        where = ", ".join(f"{tp.topic}-{tp.partition} at {offset}" for tp, offset in self.offsets.items())
        asks = 'auto_offset_reset="none" requires the caller to seek()'
        KafkaError.__init__(self, f"the position is outside the log: {where}; {asks}")


class LogTruncationError(OffsetOutOfRangeNoResetError):
    """Consumed records are no longer in the log, and ``auto_offset_reset="none"`` or
    ``lost_position="nearest"`` (KIP-320).

    A leader was elected that did not have them (an unclean election), or the topic was deleted and created
    again. ``offsets``: the positions. ``divergent_offsets``: for each the OffsetAndMetadata up to which the
    log is unchanged, the offset to seek to; ``None`` if the leader does not know it.
    """

    what: ClassVar[str] = "records that were consumed are no longer in the log"

    def __init__(self, offsets: Mapping[Any, int], divergent_offsets: Mapping[Any, Any]) -> None:
        super().__init__(offsets)
        self.divergent_offsets = dict(divergent_offsets)
        where = ", ".join(
            f"{tp.topic}-{tp.partition} was consumed to {offset} and is truncated "
            + (f"at {end.offset}" if (end := self.divergent_offsets.get(tp)) else "somewhere before")
            for tp, offset in self.offsets.items()
        )
        self.args = (f"{self.what}: {where}; seek() to the offset to continue at",)


class TopicRecreatedError(LogTruncationError):
    """The topic was deleted and created again with the same name (KIP-516).

    ``offsets`` and ``divergent_offsets``: see :class:`LogTruncationError`; the new topic begins at 0. Of a
    commit: ``offsets`` were reached in the topic before, and are not stored for the new one.
    """

    what: ClassVar[str] = "the topic was deleted and created again"


class CorruptRecordError(RetriableError, BrokerError, code=E.CORRUPT_MESSAGE):
    """A record batch that cannot be read: it fails its checks, or is too large when decompressed.

    Of a consumer's ``poll()``: ``topic_partition``; ``offset`` and ``last_offset``, of the batch's first and
    last record (-1: not known); ``reason``; ``batch``, its bytes as they were fetched (empty where it is not
    known how far it reaches); ``position``, at which it was met; ``next_offset``, to ``seek()`` to.
    """

    topic_partition: Any = None
    offset: int = -1
    last_offset: int = -1
    position: int = -1
    reason: str = ""
    next_offset: int = -1
    batch: bytes = b""


class RebalanceInProgressError(BrokerError, code=E.REBALANCE_IN_PROGRESS):
    """The group is rebalancing: call ``poll()`` to take part, then repeat."""


class AuthorizationError(BrokerError): ...


class FencedInstanceIdError(BrokerError, code=E.FENCED_INSTANCE_ID):
    """Another consumer has joined with the same ``group.instance.id``. Stop this one: its requests fail."""


# The codes that need no words, under kafka-python's names.
# fmt: off
class UnknownError(BrokerError, code=E.UNKNOWN_SERVER_ERROR): ...
class UnknownTopicOrPartitionError(InvalidMetadataError, BrokerError, code=E.UNKNOWN_TOPIC_OR_PARTITION): ...
class LeaderNotAvailableError(InvalidMetadataError, BrokerError, code=E.LEADER_NOT_AVAILABLE): ...
class NotLeaderForPartitionError(InvalidMetadataError, BrokerError, code=E.NOT_LEADER_OR_FOLLOWER): ...
class RequestTimedOutError(RetriableError, BrokerError, code=E.REQUEST_TIMED_OUT): ...
class BrokerNotAvailableError(BrokerError, code=E.BROKER_NOT_AVAILABLE): ...
class ReplicaNotAvailableError(InvalidMetadataError, BrokerError, code=E.REPLICA_NOT_AVAILABLE): ...
class MessageSizeTooLargeError(BrokerError, code=E.MESSAGE_TOO_LARGE): ...
class OffsetMetadataTooLargeError(BrokerError, code=E.OFFSET_METADATA_TOO_LARGE): ...
class NetworkExceptionError(InvalidMetadataError, BrokerError, code=E.NETWORK_EXCEPTION): ...
class CoordinatorLoadInProgressError(RetriableError, BrokerError, code=E.COORDINATOR_LOAD_IN_PROGRESS): ...
class CoordinatorNotAvailableError(RetriableError, BrokerError, code=E.COORDINATOR_NOT_AVAILABLE): ...
class NotCoordinatorError(RetriableError, BrokerError, code=E.NOT_COORDINATOR): ...
class InvalidTopicError(BrokerError, code=E.INVALID_TOPIC_EXCEPTION): ...
class RecordListTooLargeError(BrokerError, code=E.RECORD_LIST_TOO_LARGE): ...
class NotEnoughReplicasError(RetriableError, BrokerError, code=E.NOT_ENOUGH_REPLICAS): ...
class NotEnoughReplicasAfterAppendError(
    RetriableError, BrokerError, code=E.NOT_ENOUGH_REPLICAS_AFTER_APPEND
): ...
class IllegalGenerationError(BrokerError, code=E.ILLEGAL_GENERATION): ...
class InconsistentGroupProtocolError(BrokerError, code=E.INCONSISTENT_GROUP_PROTOCOL): ...
class InvalidGroupIdError(BrokerError, code=E.INVALID_GROUP_ID): ...
class UnknownMemberIdError(BrokerError, code=E.UNKNOWN_MEMBER_ID): ...
class InvalidSessionTimeoutError(BrokerError, code=E.INVALID_SESSION_TIMEOUT): ...
class InvalidCommitOffsetSizeError(BrokerError, code=E.INVALID_COMMIT_OFFSET_SIZE): ...
class TopicAuthorizationFailedError(AuthorizationError, code=E.TOPIC_AUTHORIZATION_FAILED): ...
class GroupAuthorizationFailedError(AuthorizationError, code=E.GROUP_AUTHORIZATION_FAILED): ...
class ClusterAuthorizationFailedError(AuthorizationError, code=E.CLUSTER_AUTHORIZATION_FAILED): ...
class InvalidTimestampError(BrokerError, code=E.INVALID_TIMESTAMP): ...
class UnsupportedVersionError(BrokerError, code=E.UNSUPPORTED_VERSION): ...
class TopicAlreadyExistsError(BrokerError, code=E.TOPIC_ALREADY_EXISTS): ...
class InvalidPartitionsError(BrokerError, code=E.INVALID_PARTITIONS): ...
class InvalidReplicationFactorError(BrokerError, code=E.INVALID_REPLICATION_FACTOR): ...
class InvalidConfigurationError(BrokerError, code=E.INVALID_CONFIG): ...
class NotControllerError(RetriableError, BrokerError, code=E.NOT_CONTROLLER): ...
class InvalidRequestError(BrokerError, code=E.INVALID_REQUEST): ...
class PolicyViolationError(BrokerError, code=E.POLICY_VIOLATION): ...
class OutOfOrderSequenceNumberError(BrokerError, code=E.OUT_OF_ORDER_SEQUENCE_NUMBER): ...
class DuplicateSequenceNumberError(BrokerError, code=E.DUPLICATE_SEQUENCE_NUMBER): ...
class InvalidProducerEpochError(BrokerError, code=E.INVALID_PRODUCER_EPOCH): ...
class ConcurrentTransactionsError(RetriableError, BrokerError, code=E.CONCURRENT_TRANSACTIONS): ...
class KafkaStorageError(InvalidMetadataError, BrokerError, code=E.KAFKA_STORAGE_ERROR): ...
class UnknownProducerIdError(BrokerError, code=E.UNKNOWN_PRODUCER_ID): ...
class NonEmptyGroupError(BrokerError, code=E.NON_EMPTY_GROUP): ...
class GroupIdNotFoundError(BrokerError, code=E.GROUP_ID_NOT_FOUND): ...
class FetchSessionIdNotFoundError(RetriableError, BrokerError, code=E.FETCH_SESSION_ID_NOT_FOUND): ...
class InvalidFetchSessionEpochError(RetriableError, BrokerError, code=E.INVALID_FETCH_SESSION_EPOCH): ...
class ListenerNotFoundError(InvalidMetadataError, BrokerError, code=E.LISTENER_NOT_FOUND): ...
class FencedLeaderEpochError(InvalidMetadataError, BrokerError, code=E.FENCED_LEADER_EPOCH): ...
class UnknownLeaderEpochError(InvalidMetadataError, BrokerError, code=E.UNKNOWN_LEADER_EPOCH): ...
class UnsupportedCompressionTypeError(BrokerError, code=E.UNSUPPORTED_COMPRESSION_TYPE): ...
class OffsetNotAvailableError(RetriableError, BrokerError, code=E.OFFSET_NOT_AVAILABLE): ...
class MemberIdRequiredError(BrokerError, code=E.MEMBER_ID_REQUIRED): ...
class GroupMaxSizeReachedError(BrokerError, code=E.GROUP_MAX_SIZE_REACHED): ...
class InvalidRecordError(BrokerError, code=E.INVALID_RECORD): ...
class UnstableOffsetCommitError(RetriableError, BrokerError, code=E.UNSTABLE_OFFSET_COMMIT): ...
class ThrottlingQuotaExceededError(RetriableError, BrokerError, code=E.THROTTLING_QUOTA_EXCEEDED): ...
class ProducerFencedError(FatalTransactionError, BrokerError, code=E.PRODUCER_FENCED): ...
class ResourceNotFoundError(BrokerError, code=E.RESOURCE_NOT_FOUND): ...
class UnknownTopicIdError(InvalidMetadataError, BrokerError, code=E.UNKNOWN_TOPIC_ID): ...
class InconsistentTopicIdError(InvalidMetadataError, BrokerError, code=E.INCONSISTENT_TOPIC_ID): ...
class FetchSessionTopicIdError(RetriableError, BrokerError, code=E.FETCH_SESSION_TOPIC_ID_ERROR): ...
class UnreleasedInstanceIdError(BrokerError, code=E.UNRELEASED_INSTANCE_ID): ...
class UnsupportedAssignorError(BrokerError, code=E.UNSUPPORTED_ASSIGNOR): ...
class RebootstrapRequiredError(BrokerError, code=E.REBOOTSTRAP_REQUIRED): ...
class InvalidFetchRequestError(BrokerError, code=E.INVALID_FETCH_SIZE): ...
class StaleControllerEpochError(BrokerError, code=E.STALE_CONTROLLER_EPOCH): ...
class InvalidRequiredAcksError(BrokerError, code=E.INVALID_REQUIRED_ACKS): ...
class UnsupportedSaslMechanismError(BrokerError, code=E.UNSUPPORTED_SASL_MECHANISM): ...
class IllegalSaslStateError(BrokerError, code=E.ILLEGAL_SASL_STATE): ...
class InvalidReplicationAssignmentError(BrokerError, code=E.INVALID_REPLICA_ASSIGNMENT): ...
class UnsupportedForMessageFormatError(BrokerError, code=E.UNSUPPORTED_FOR_MESSAGE_FORMAT): ...
class InvalidTxnStateError(BrokerError, code=E.INVALID_TXN_STATE): ...
class InvalidProducerIdMappingError(BrokerError, code=E.INVALID_PRODUCER_ID_MAPPING): ...
class InvalidTransactionTimeoutError(BrokerError, code=E.INVALID_TRANSACTION_TIMEOUT): ...
class TransactionCoordinatorFencedError(BrokerError, code=E.TRANSACTION_COORDINATOR_FENCED): ...
class TransactionalIdAuthorizationFailedError(
    FatalTransactionError, AuthorizationError, code=E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
): ...
class SecurityDisabledError(BrokerError, code=E.SECURITY_DISABLED): ...
class OperationNotAttemptedError(BrokerError, code=E.OPERATION_NOT_ATTEMPTED): ...
class LogDirNotFoundError(BrokerError, code=E.LOG_DIR_NOT_FOUND): ...
class SaslAuthenticationFailedError(BrokerError, code=E.SASL_AUTHENTICATION_FAILED): ...
class ReassignmentInProgressError(BrokerError, code=E.REASSIGNMENT_IN_PROGRESS): ...
class DelegationTokenAuthDisabledError(BrokerError, code=E.DELEGATION_TOKEN_AUTH_DISABLED): ...
class DelegationTokenNotFoundError(BrokerError, code=E.DELEGATION_TOKEN_NOT_FOUND): ...
class DelegationTokenOwnerMismatchError(BrokerError, code=E.DELEGATION_TOKEN_OWNER_MISMATCH): ...
class DelegationTokenRequestNotAllowedError(BrokerError, code=E.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED): ...
class DelegationTokenAuthorizationFailedError(
    AuthorizationError, code=E.DELEGATION_TOKEN_AUTHORIZATION_FAILED
): ...
class DelegationTokenExpiredError(BrokerError, code=E.DELEGATION_TOKEN_EXPIRED): ...
class InvalidPrincipalTypeError(BrokerError, code=E.INVALID_PRINCIPAL_TYPE): ...
class TopicDeletionDisabledError(BrokerError, code=E.TOPIC_DELETION_DISABLED): ...
class StaleBrokerEpochError(BrokerError, code=E.STALE_BROKER_EPOCH): ...
class PreferredLeaderNotAvailableError(
    InvalidMetadataError, BrokerError, code=E.PREFERRED_LEADER_NOT_AVAILABLE
): ...
class EligibleLeadersNotAvailableError(
    InvalidMetadataError, BrokerError, code=E.ELIGIBLE_LEADERS_NOT_AVAILABLE
): ...
class ElectionNotNeededError(InvalidMetadataError, BrokerError, code=E.ELECTION_NOT_NEEDED): ...
class NoReassignmentInProgressError(BrokerError, code=E.NO_REASSIGNMENT_IN_PROGRESS): ...
class GroupSubscribedToTopicError(BrokerError, code=E.GROUP_SUBSCRIBED_TO_TOPIC): ...
class DuplicateResourceError(BrokerError, code=E.DUPLICATE_RESOURCE): ...
class UnacceptableCredentialError(BrokerError, code=E.UNACCEPTABLE_CREDENTIAL): ...
class InconsistentVoterSetError(BrokerError, code=E.INCONSISTENT_VOTER_SET): ...
class InvalidUpdateVersionError(BrokerError, code=E.INVALID_UPDATE_VERSION): ...
class FeatureUpdateFailedError(BrokerError, code=E.FEATURE_UPDATE_FAILED): ...
class PrincipalDeserializationFailureError(BrokerError, code=E.PRINCIPAL_DESERIALIZATION_FAILURE): ...
class SnapshotNotFoundError(BrokerError, code=E.SNAPSHOT_NOT_FOUND): ...
class PositionOutOfRangeError(BrokerError, code=E.POSITION_OUT_OF_RANGE): ...
class DuplicateBrokerRegistrationError(BrokerError, code=E.DUPLICATE_BROKER_REGISTRATION): ...
class BrokerIdNotRegisteredError(BrokerError, code=E.BROKER_ID_NOT_REGISTERED): ...
class InconsistentClusterIdError(BrokerError, code=E.INCONSISTENT_CLUSTER_ID): ...
class TransactionalIdNotFoundError(BrokerError, code=E.TRANSACTIONAL_ID_NOT_FOUND): ...
class IneligibleReplicaError(BrokerError, code=E.INELIGIBLE_REPLICA): ...
class NewLeaderElectedError(BrokerError, code=E.NEW_LEADER_ELECTED): ...
class OffsetMovedToTieredStorageError(BrokerError, code=E.OFFSET_MOVED_TO_TIERED_STORAGE): ...
class FencedMemberEpochError(BrokerError, code=E.FENCED_MEMBER_EPOCH): ...
class StaleMemberEpochError(BrokerError, code=E.STALE_MEMBER_EPOCH): ...
class MismatchedEndpointTypeError(BrokerError, code=E.MISMATCHED_ENDPOINT_TYPE): ...
class UnsupportedEndpointTypeError(BrokerError, code=E.UNSUPPORTED_ENDPOINT_TYPE): ...
class UnknownControllerIdError(BrokerError, code=E.UNKNOWN_CONTROLLER_ID): ...
class UnknownSubscriptionIdError(BrokerError, code=E.UNKNOWN_SUBSCRIPTION_ID): ...
class TelemetryTooLargeError(BrokerError, code=E.TELEMETRY_TOO_LARGE): ...
class InvalidRegistrationError(BrokerError, code=E.INVALID_REGISTRATION): ...
class TransactionAbortableError(
    AbortableTransactionError, BrokerError, code=E.TRANSACTION_ABORTABLE
): ...
class InvalidRecordStateError(BrokerError, code=E.INVALID_RECORD_STATE): ...
class InvalidRegularExpressionError(BrokerError, code=E.INVALID_REGULAR_EXPRESSION): ...
class ShareSessionNotFoundError(RetriableError, BrokerError, code=E.SHARE_SESSION_NOT_FOUND): ...
class InvalidShareSessionEpochError(RetriableError, BrokerError, code=E.INVALID_SHARE_SESSION_EPOCH): ...
class FencedStateEpochError(BrokerError, code=E.FENCED_STATE_EPOCH): ...
class InvalidVoterKeyError(BrokerError, code=E.INVALID_VOTER_KEY): ...
class DuplicateVoterError(BrokerError, code=E.DUPLICATE_VOTER): ...
class VoterNotFoundError(BrokerError, code=E.VOTER_NOT_FOUND): ...
class ShareSessionLimitReachedError(RetriableError, BrokerError, code=E.SHARE_SESSION_LIMIT_REACHED): ...
# fmt: on

BrokerResponseError = BrokerError
CorruptRecordException = CorruptRecordError
IncompatibleBrokerVersion = UnsupportedVersionError
UnsupportedCodecError = UnsupportedCompressionTypeError
"""kafka-python's other names of these classes."""


def for_code(code: int, message: str = "", *, api: str = "") -> BrokerError:
    """The error of a broker's ``code`` (not ``NONE``); ``message`` says what was being done.

    ``api`` is Kafka's name of the request (``Fetch``), put before the message (``of t-0``, or a
    sentence); the advice that follows (:mod:`~slackwater.kafka.error_hints`) may depend on it. A code without
    a class of its own gives a :class:`BrokerError` with that code, not retriable.
    """
    kind, advice, text = _BY_CODE.get(code), hint(code, api), message or api
    if api and message:
        text = f"{api} {message}" if message.startswith("of ") else f"{api}: {message}"
    if kind is None:
        return BrokerError(text, code=code, advice=advice)
    return kind(text, advice=advice)


def raise_for_code(code: int, message: str = "", *, api: str = "") -> None:
    """Raises :func:`for_code` unless ``code`` is ``NONE``."""
    if code != ErrorCode.NONE:
        raise for_code(code, message, api=api)
