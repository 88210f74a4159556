"""The admin client: topics, groups, offsets, configurations."""

from slackwater.kafka.admin.asyncio_face import AsyncAdmin
from slackwater.kafka.admin.face import KafkaAdmin
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
)

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
]
