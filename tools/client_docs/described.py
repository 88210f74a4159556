"""What each option does, in a few words."""

from __future__ import annotations

DESCRIBED: dict[str, str] = {
    "allow_auto_create_topics": "lets a broker create a topic that is subscribed to, if it does so at all",
    "api_version": (
        "kafka-python's: any value has the constructor not wait for a broker; versions are agreed anyway"
    ),
    "auto_commit_interval_ms": "how often positions are committed, with `enable_auto_commit`",
    "lost_position": (
        "a position that is not in the log: `reset` goes by `auto_offset_reset`; `nearest` goes to the first "
        "record that still exists and tells it by `skipped_records()`; beyond the end, or in a recreated "
        "topic, it raises `LogTruncationError`, whatever the reset policy says"
    ),
    "auto_offset_reset": (
        "where to start without a committed offset, or when it is not in the log: `earliest`, "
        "`latest`, `none` (raises), `by_duration:PT1H` (that long ago)"
    ),
    "bootstrap_servers": "`host:port`, several as a list or with commas; IPv6 in brackets",
    "bootstrap_timeout_ms": "how long the constructor looks for a broker",
    "check_crcs": "checks each batch's checksum",
    "client_id": "the client's name in the broker's logs, quotas and metrics",
    "client_rack": "where this client is: replicas there are read from (KIP-392), assignors see it (KIP-881)",
    "client_dns_lookup": (
        "`use_all_dns_ips`, or `resolve_canonical_bootstrap_servers_only`, which takes the canonical "
        "names of the bootstrap servers' addresses in their place"
    ),
    "connections_max_idle_ms": (
        "a connection that was not used for so long is closed; more than `request_timeout_ms`"
    ),
    "consumer_timeout_ms": "how long the iterator waits for a record before it ends; infinite by default",
    "default_api_timeout_ms": "bounds calls that have no timeout of their own; at least `request_timeout_ms`",
    "default_offset_commit_callback": "called as `(offsets, error)` for `commit_async()` without a callback",
    "enable_auto_commit": (
        "commits positions by itself; only in a group, and refused when it is asked for without one"
    ),
    "enable_incremental_fetch_sessions": "fetch sessions (KIP-227)",
    "exclude_internal_topics": "keeps a pattern from matching `__consumer_offsets` and its like",
    "fetch_max_bytes": "what an answer brings at most, and what waits here at most; one batch may go over it",
    "fetch_max_decompressed_bytes": (
        "what one partition's batches of an answer may unfold to; more is refused"
    ),
    "fetch_max_wait_ms": "how long a broker waits for `fetch_min_bytes`; less than `request_timeout_ms`",
    "fetch_min_bytes": "what a broker waits for before it answers",
    "group_id": "the group; without one nothing is committed",
    "group_instance_id": (
        "makes this a static member (KIP-345): 1 to 249 of `A-Z a-z 0-9 . _ -`; needs a `group_id`"
    ),
    "heartbeat_interval_ms": (
        "how often the coordinator is told that this member lives; less than `session_timeout_ms`, a "
        "third is usual"
    ),
    "interceptor_classes": "classes, objects or `module:Class`, called in their order",
    "isolation_level": "`read_committed` leaves out records of aborted and open transactions",
    "key_deserializer": (
        "a callable of the bytes, or an object with `deserialize(topic, headers, data)`; as a "
        "property one of Java's own classes or `module:name`"
    ),
    "max_partition_fetch_bytes": "what an answer brings of one partition; twice that waits of it here",
    "max_poll_interval_ms": (
        "how long the application may stay away from `poll()`; also the rebalance timeout"
    ),
    "max_poll_records": "what one poll gives at most",
    "metadata_max_age_ms": "how often the cluster is looked at, new topics and partitions included",
    "metadata_recovery_rebootstrap_trigger_ms": (
        "without metadata for so long, the bootstrap servers are asked (KIP-1102)"
    ),
    "metadata_recovery_strategy": (
        "`rebootstrap` asks the bootstrap servers when no known broker can be reached; `none` goes on with "
        "those that are known (KIP-899)"
    ),
    "metrics_num_samples": "how many windows the figures of `metrics()` are of",
    "metrics_sample_window_ms": "how long each of those is",
    "partition_assignment_strategy": (
        "names (`range`, `roundrobin`, `sticky`, `cooperative-sticky`), Java's class names, or "
        "objects, in order of preference"
    ),
    "receive_buffer_bytes": "of each socket; none or -1: the system's",
    "receive_message_max_bytes": (
        "what an answer of a broker may have (kafka-python's name); one to Fetch may have `fetch_max_bytes` "
        "and 64 MiB, one to a login 512 KiB"
    ),
    "reconnect_backoff_max_ms": "the longest pause between attempts to connect",
    "reconnect_backoff_ms": "the first such pause, doubled each time, give or take a fifth",
    "request_timeout_ms": "how long an answer is waited for before the connection is given up",
    "retry_backoff_max_ms": "the longest pause before a request is repeated",
    "retry_backoff_ms": "the first such pause, doubled each time, give or take a fifth",
    "scheduled_rebalance_max_delay_ms": (
        "how long what a vanished member held waits for it (`cooperative-sticky` only; 0: not at all)"
    ),
    "send_buffer_bytes": "of each socket; none or -1: the system's",
    "session_timeout_ms": "without a heartbeat for so long a member is removed; the broker has limits for it",
    "socket_connection_setup_timeout_ms": "how long connecting, TLS and login may take",
    "subscription_change_max_delay_ms": (
        "how long a static member that returned with other topics leaves the rebalance to the members that "
        "have not returned with them yet, so that a rolling change of topics costs one (0: each return does)"
    ),
    "subscription_owner": (
        "is added to the subscription, so that DescribeGroups shows which application a member belongs to; "
        "1 to 64 letters, digits and '-'; empty: nothing is added"
    ),
    "value_deserializer": "as `key_deserializer`",
}

OURS_ALONE = {
    "api_version", "bootstrap_timeout_ms", "consumer_timeout_ms", "default_offset_commit_callback",
    "enable_incremental_fetch_sessions", "fetch_max_decompressed_bytes", "lost_position",
    "receive_message_max_bytes", "scheduled_rebalance_max_delay_ms", "subscription_change_max_delay_ms",
    "subscription_owner",
}  # fmt: skip
"""Options that Java does not have; as properties they are written with dots all the same."""

SECURITY: dict[str, str] = {
    "security_protocol": "`PLAINTEXT`, `SSL`, `SASL_PLAINTEXT`, `SASL_SSL`",
    "sasl_mechanism": "`PLAIN`, `SCRAM-SHA-256`, `SCRAM-SHA-512`, `OAUTHBEARER`",
    "sasl_plain_username": "for PLAIN and SCRAM",
    "sasl_plain_password": "for PLAIN and SCRAM",
    "sasl_oauth_token_provider": "an object whose `token()` gives a token",
    "sasl_oauth_token_endpoint_url": "where OAUTHBEARER's tokens come from, by client credentials",
    "sasl_oauth_client_id": "for the token endpoint (or `clientId` in sasl.jaas.config)",
    "sasl_oauth_client_secret": "for the token endpoint (or `clientSecret` in sasl.jaas.config)",
    "sasl_oauth_client_secret_file": "a file that is read for each new token",
    "sasl_oauth_scope": "of the token (or `scope` in sasl.jaas.config)",
    "sasl_oauth_header_urlencode": "whether id and secret are URL-encoded in the header (`False`)",
    "sasl_oauth_cafile": "for the token endpoint: PEM, or a path to it; without it the system's",
    "sasl_oauth_extensions": "SASL extensions for the broker, a dict",
    "sasl_login_connect_timeout_ms": "to the token endpoint (`5000`)",
    "sasl_login_read_timeout_ms": "until the whole answer of the token endpoint is there (`5000`)",
    "sasl_login_retry_backoff_ms": "the first pause after the token endpoint failed (`100`)",
    "sasl_login_retry_backoff_max_ms": "the longest such pause (`10000`)",
    "ssl_cafile": "PEM, or a path to it",
    "ssl_certfile": "PEM, or a path to it",
    "ssl_keyfile": "PEM, or a path to it",
    "ssl_password": "of the key",
    "ssl_crlfile": "PEM, or a path to it",
    "ssl_ciphers": "as OpenSSL writes them",
    "ssl_check_hostname": "whether the broker's name must be in its certificate (`True`)",
    "ssl_context": "in place of all `ssl_*`",
    "sasl_username_file": "a file that is read at each login",
    "sasl_password_file": "a file that is read at each login",
    "sasl_jaas_config": "Java's line for PLAIN, SCRAM and OAUTHBEARER",
    "security": "a whole `Security`, in place of all of these",
}
