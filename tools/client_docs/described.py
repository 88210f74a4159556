"""What each option does, in a few words."""

from __future__ import annotations

DESCRIBED: dict[str, str] = {
    "allow_auto_create_topics": "let a broker create a subscribed topic, if its configuration allows it",
    "api_version": (
        "kafka-python's; with any value the constructor does not wait for a broker; versions are negotiated"
    ),
    "auto_commit_interval_ms": "commit interval of `enable_auto_commit`",
    "lost_position": (
        "if the position is not in the log: `reset` applies `auto_offset_reset`; `nearest` seeks "
        "to the first existing record and reports the gap in `skipped_records()`, but beyond the end or in a "
        "recreated topic it raises `LogTruncationError`, regardless of `auto_offset_reset`"
    ),
    "auto_offset_reset": (
        "start position if there is no committed offset, or if it is not in the log: `earliest`, "
        "`latest`, `none` (raises), `by_duration:PT1H` (that long ago)"
    ),
    "bootstrap_servers": "`host:port`, several as a list or comma-separated; IPv6 in brackets",
    "bootstrap_timeout_ms": "how long the constructor tries to reach a broker",
    "check_crcs": "verify each batch's checksum",
    "client_id": "the client's name in the broker's logs, quotas and metrics",
    "client_rack": "this client's rack, for fetching from replicas (KIP-392) and for assignors (KIP-881)",
    "client_dns_lookup": (
        "`use_all_dns_ips`, or `resolve_canonical_bootstrap_servers_only`, which replaces bootstrap "
        "servers by the canonical names of their addresses"
    ),
    "connections_max_idle_ms": (
        "a connection is closed after being idle for this time; more than `request_timeout_ms`"
    ),
    "consumer_timeout_ms": "how long the iterator waits for a record before it ends; infinite by default",
    "default_api_timeout_ms": "timeout of calls that have no timeout argument; at least `request_timeout_ms`",
    "default_offset_commit_callback": "called as `(offsets, error)` for `commit_async()` without a callback",
    "enable_auto_commit": (
        "commit positions automatically; only in a group: setting it without one is refused"
    ),
    "enable_incremental_fetch_sessions": "use fetch sessions (KIP-227)",
    "exclude_internal_topics": "a pattern does not match internal topics such as `__consumer_offsets`",
    "fetch_max_bytes": "maximum size of a fetch response, and of the buffer; one batch may exceed it",
    "fetch_max_decompressed_bytes": (
        "maximum decompressed size of a batch; a larger one is a `CorruptRecordError`. A `poll()` returns "
        "about that much at most"
    ),
    "fetch_max_wait_ms": "how long a broker waits for `fetch_min_bytes`; less than `request_timeout_ms`",
    "fetch_min_bytes": "how much data a broker waits for before it responds",
    "group_id": "the group; without it nothing is committed",
    "group_instance_id": (
        "makes this a static member (KIP-345): 1 to 249 of `A-Z a-z 0-9 . _ -`; needs a `group_id`"
    ),
    "group_protocol": (
        "`classic`, or `consumer`: the broker assigns (KIP-848, Kafka 4.0); see "
        "[the consumer protocol](#the-consumer-protocol)"
    ),
    "group_remote_assignor": (
        "the broker's assignor, with the consumer protocol: `uniform`, `range`; none: the broker's first"
    ),
    "heartbeat_interval_ms": (
        "interval of heartbeats to the coordinator; less than `session_timeout_ms`, usually a third"
    ),
    "interceptor_classes": "classes, objects or `module:Class`, called in this order",
    "isolation_level": "`read_committed` omits records of aborted and open transactions",
    "key_deserializer": (
        "a callable that takes the bytes, or an object with `deserialize(topic, headers, data)`; as a "
        "property one of Java's own classes or `module:name`"
    ),
    "max_partition_fetch_bytes": "maximum size of a partition in a fetch response; twice that is buffered",
    "max_poll_interval_ms": ("maximum time between two calls of `poll()`; also the rebalance timeout"),
    "max_poll_records": "maximum number of records that a poll returns",
    "metadata_max_age_ms": "metadata refresh interval, which finds new topics and partitions",
    "metadata_recovery_rebootstrap_trigger_ms": (
        "after this time without metadata, the client asks the bootstrap servers (KIP-1102)"
    ),
    "metadata_recovery_strategy": (
        "`rebootstrap` asks the bootstrap servers if no known broker is reachable; `none` keeps trying the "
        "known ones (KIP-899)"
    ),
    "metrics_num_samples": "number of windows that `metrics()` covers",
    "metrics_sample_window_ms": "length of such a window",
    "partition_assignment_strategy": (
        "names (`range`, `roundrobin`, `sticky`, `cooperative-sticky`), Java's class names, "
        "`module:Class` of an `Assignor`, or objects, in order of preference"
    ),
    "receive_buffer_bytes": "per socket; none or -1: the system's default",
    "receive_message_max_bytes": (
        "maximum size of a broker's response (kafka-python's name); of a fetch response `fetch_max_bytes` "
        "plus 64 MiB, of a login response 512 KiB"
    ),
    "reconnect_backoff_max_ms": "maximum pause between connection attempts",
    "reconnect_backoff_ms": "the first such pause; it doubles each time, ±20 %",
    "request_timeout_ms": "how long a request waits for its response before the connection is closed",
    "retry_backoff_max_ms": "maximum pause before a request is retried",
    "retry_backoff_ms": "the first such pause; it doubles each time, ±20 %",
    "scheduled_rebalance_max_delay_ms": (
        "how long a lost member's partitions stay reserved for it (`cooperative-sticky` only; 0: not at all)"
    ),
    "send_buffer_bytes": "per socket; none or -1: the system's default",
    "session_timeout_ms": "a member is removed after this time without a heartbeat; brokers have limits",
    "socket_connection_setup_timeout_ms": "timeout of connecting, TLS and login together",
    "subscription_change_max_delay_ms": (
        "how long a static member that returned with other topics waits for the remaining members before it "
        "causes a rebalance, so that a rolling change of topics costs only one (0: one for each return)"
    ),
    "subscription_owner": (
        "added to the subscription (by the consumer protocol, to the member id), so that a description of "
        "the group shows which application a member belongs to; 1 to 64 letters, digits and '-'; empty: "
        "nothing is added"
    ),
    "value_deserializer": "as `key_deserializer`",
}

OURS_ALONE = {
    "api_version", "bootstrap_timeout_ms", "consumer_timeout_ms", "default_offset_commit_callback",
    "enable_incremental_fetch_sessions", "fetch_max_decompressed_bytes", "lost_position",
    "metrics_enabled", "partitioner", "receive_message_max_bytes", "scheduled_rebalance_max_delay_ms",
    "subscription_change_max_delay_ms", "subscription_owner", "unreachable_timeout_ms",
}  # fmt: skip
"""Options that Java does not have; as properties they are written with dots all the same."""

PRODUCER: dict[str, str] = {
    "acks": "`all`; 0 or 1 turns idempotence off, or is refused where `enable_idempotence` is given",
    "allow_auto_create_topics": "let a broker create a topic, if its configuration allows it",
    "api_version": "accepted for kafka-python, without effect: versions are agreed with each broker",
    "batch_size": "maximum size of a batch, before compression",
    "buffer_memory": "memory for records that wait to be sent; `send()` waits for room in it",
    "compression_type": "`gzip`, `snappy`, `lz4`, `zstd`, or none",
    "delivery_timeout_ms": "a record succeeds or fails within this time after `send()`",
    "enable_idempotence": "a batch that is sent again is stored once, and batches keep their order",
    "key_serializer": (
        "a callable that takes the key, or an object with `serialize(topic, headers, data)`; as a property "
        "one of Java's own classes or `module:name`"
    ),
    "linger_ms": "how long a batch waits for more records",
    "max_block_ms": "how long `send()` waits for metadata, or for room in `buffer_memory`",
    "max_in_flight_requests_per_connection": "requests without a response; at most 5 with idempotence",
    "max_request_size": "maximum size of a record and of a request, before compression",
    "metrics_enabled": "accepted for kafka-python, without effect: metrics are always kept",
    "partitioner": "a function of the key's bytes, the partitions, and those that have a leader",
    "receive_message_max_bytes": "maximum size of a broker's response",
    "retries": "attempts of a batch; by default only `delivery_timeout_ms` ends them",
    "retry_backoff_ms": "the first pause before a request is repeated; it doubles each time, up to 1 s",
    "transaction_timeout_ms": "the cluster aborts a transaction that is open for longer",
    "transactional_id": (
        "the name under which the producer writes in transactions; a later producer of the name fences it"
    ),
    "value_serializer": "as `key_serializer`",
}
"""Options of a producer whose meaning is not the consumer's."""

ADMIN: dict[str, str] = {
    "request_timeout_ms": "how long a call waits, and retries, unless it has a `timeout_ms`",
    "unreachable_timeout_ms": "in place of `bootstrap_timeout_ms` while no server has accepted a connection",
}
"""Options of an admin client whose meaning is neither the consumer's nor the producer's."""

SECURITY: dict[str, str] = {
    "security_protocol": "`PLAINTEXT`, `SSL`, `SASL_PLAINTEXT`, `SASL_SSL`",
    "sasl_mechanism": "`PLAIN`, `SCRAM-SHA-256`, `SCRAM-SHA-512`, `OAUTHBEARER`",
    "sasl_plain_username": "for PLAIN and SCRAM",
    "sasl_plain_password": "for PLAIN and SCRAM",
    "sasl_oauth_token_provider": "an object whose `token()` returns a token",
    "sasl_oauth_token_endpoint_url": "endpoint for OAUTHBEARER tokens by client credentials",
    "sasl_oauth_client_id": "for the token endpoint (or `clientId` in sasl.jaas.config)",
    "sasl_oauth_client_secret": "for the token endpoint (or `clientSecret` in sasl.jaas.config)",
    "sasl_oauth_client_secret_file": "a file, read for each new token",
    "sasl_oauth_scope": "scope of the token (or `scope` in sasl.jaas.config)",
    "sasl_oauth_header_urlencode": "whether id and secret are URL-encoded in the header (`False`)",
    "sasl_oauth_cafile": "for the token endpoint: PEM, or a path to it; default: the system's",
    "sasl_oauth_extensions": "SASL extensions for the broker, a dict",
    "sasl_login_connect_timeout_ms": "connect timeout of the token endpoint (`5000`)",
    "sasl_login_read_timeout_ms": "timeout of the token endpoint's complete response (`5000`)",
    "sasl_login_retry_backoff_ms": "first pause after a failure of the token endpoint (`100`)",
    "sasl_login_retry_backoff_max_ms": "maximum such pause (`10000`)",
    "ssl_cafile": "PEM, or a path to it",
    "ssl_certfile": "PEM, or a path to it",
    "ssl_keyfile": "PEM, or a path to it",
    "ssl_password": "password of the key",
    "ssl_crlfile": "PEM, or a path to it",
    "ssl_ciphers": "in OpenSSL's format",
    "ssl_check_hostname": "whether the broker's name must be in its certificate (`True`)",
    "ssl_context": "replaces all `ssl_*`",
    "sasl_username_file": "a file, read at each login",
    "sasl_password_file": "a file, read at each login",
    "sasl_jaas_config": "Java's line for PLAIN, SCRAM and OAUTHBEARER",
    "security": "a complete `Security`; replaces all of these",
}
