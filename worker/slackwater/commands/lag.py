"""``slackwater lag``: how far groups are behind."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from slackwater.commands.connection import CommandClients, add_options
from slackwater.commands.display import print_table
from slackwater.runtime.errors import ConfigError

if TYPE_CHECKING:
    from slackwater.kafka import KafkaAdmin

_DEAD = "Dead"


@dataclass(frozen=True)
class Row:
    """A partition of a group. ``committed``: None: nothing is. ``lag``: None where that, or the end, is not
    known. ``member``: who has the partition: its group.instance.id, else its client.id; "": nobody."""

    group: str
    topic: str
    partition: int
    committed: int | None
    end: int | None
    lag: int | None
    member: str


def register(subparsers: Any) -> None:
    """Adds the subcommand."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "lag",
        help="show how far consumer groups are behind",
        description="Shows the lag of each partition of the groups; without a group, the sum of each group.",
    )
    add_options(parser)
    parser.add_argument("groups", nargs="*", metavar="GROUP", help="group.id (default: all, summed up)")
    parser.add_argument(
        "--output", choices=("text", "json"), default="text", help="output format (default: text)"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Returns the exit code. Raises KafkaError, ConfigError, also for a group that does not exist."""
    with CommandClients(args).admin() as admin:
        groups = args.groups or sorted(listing.group_id for listing in admin.list_groups())
        described = admin.describe_groups(groups).unwrap()
        rows = {group: rows_of(admin, group) for group in groups}
    for group in args.groups:
        if described[group].state == _DEAD and not rows[group]:
            raise ConfigError(f"there is no group {group}; slackwater lag lists all groups")
    if args.output == "json":
        for row in (row for group in groups for row in rows[group]):
            print(json.dumps(asdict(row)))
    elif args.groups:
        for group in groups:
            state, members = described[group].state, len(described[group].members)
            print(f"{group}: {state}, {members} members, lag {_sum(rows[group])}")
        print_table(
            ("GROUP", "TOPIC", "PARTITION", "COMMITTED", "END", "LAG", "MEMBER"),
            [_cells(row) for group in groups for row in rows[group]],
        )
    else:
        print_table(
            ("GROUP", "STATE", "MEMBERS", "PARTITIONS", "LAG"),
            [
                (
                    group,
                    described[group].state,
                    len(described[group].members),
                    len(rows[group]),
                    _sum(rows[group]),
                )
                for group in groups
            ],
        )
    return 0


def _cells(row: Row) -> tuple[Any, ...]:
    numbers = ("-" if number is None else number for number in (row.committed, row.end, row.lag))
    return row.group, row.topic, row.partition, *numbers, row.member or "-"


def rows_of(admin: KafkaAdmin, group: str) -> list[Row]:
    """The partitions for which the group has committed an offset, or that a member has."""
    from slackwater.kafka.admin import LATEST

    committed = {tp: at.offset for tp, at in admin.committed_offsets(group).items() if at.offset >= 0}
    members = {
        tp: member.instance_id or member.client_id
        for member in admin.describe_groups([group]).unwrap()[group].members
        for tp in member.assignment or ()
    }
    partitions = sorted({*committed, *members})
    ends = admin.list_offsets(dict.fromkeys(partitions, LATEST)).values_ok
    rows = []
    for tp in partitions:
        offset, end = committed.get(tp), ends[tp].offset if tp in ends else None
        lag = max(0, end - offset) if end is not None and offset is not None else None
        rows.append(Row(group, tp.topic, tp.partition, offset, end, lag, members.get(tp, "")))
    return rows


def _sum(rows: list[Row]) -> str:
    if not rows:
        return "-"
    known = [row.lag for row in rows if row.lag is not None]
    return f"{sum(known):,}" if len(known) == len(rows) else f"at least {sum(known):,}"
