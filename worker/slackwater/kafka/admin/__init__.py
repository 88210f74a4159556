"""The admin client: topics, groups, offsets, configurations."""

from slackwater.kafka.admin.async_admin import AsyncAdmin
from slackwater.kafka.admin.results import (
    EARLIEST,
    LATEST,
    ClusterDescription,
    ConfigEntry,
    ConfigResource,
    GroupDescription,
    GroupListing,
    MemberDescription,
    NewTopic,
    PerItem,
    ResourceType,
    TopicDescription,
    TopicOperation,
)
from slackwater.kafka.admin.sync_admin import KafkaAdmin

__all__ = [
    "EARLIEST",
    "LATEST",
    "AsyncAdmin",
    "ClusterDescription",
    "ConfigEntry",
    "ConfigResource",
    "GroupDescription",
    "GroupListing",
    "KafkaAdmin",
    "MemberDescription",
    "NewTopic",
    "PerItem",
    "ResourceType",
    "TopicDescription",
    "TopicOperation",
]
