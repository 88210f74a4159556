"""``slackwater rewind``, and an offset that is set back without it."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Callable, Mapping

import pytest

from slackwater import pipeline
from slackwater.commands import rewind as rewind_command
from slackwater.kafka.structs import TopicPartition
from slackwater.runtime.config.worker_config import load
from slackwater.runtime.errors import SinkError
from slackwater.tools.starts import Start
from tests.support.workers.commands import run_command
from tests.support.workers.delivery_site import PARTITIONS, DeliverySite


def rewind(site: DeliverySite, *starts: str) -> subprocess.CompletedProcess[str]:
    file = site.folder / "rewind.yaml"
    file.write_text(json.dumps(site.config()))
    return run_command(site.folder, "rewind", "--config", str(file), *starts)


def offsets(site: DeliverySite) -> dict[int, list[int]]:
    return site.output.offsets(range(PARTITIONS))


def run_to_the_end(site: DeliverySite, before_its_end: Callable[[], None] = lambda: None) -> str:
    """With one worker, which is taken out of the group afterwards. What it has logged."""
    worker = site.worker()
    site.until_committed(why=site.why)
    before_its_end()
    assert worker.terminate() == 0
    site.remove_members("w-0")
    return worker.stderr


def test_an_offset_that_is_set_back_duplicates_nothing_and_a_rewind_writes_again(site: DeliverySite) -> None:
    site.produce(400)
    run_to_the_end(site)
    first = offsets(site)
    assert first == {partition: list(range(100)) for partition in range(PARTITIONS)}

    site.commit(dict.fromkeys(range(PARTITIONS), 7))
    log = run_to_the_end(site)
    assert f"{site.topic}-0: offset 7 is committed, and the sink has all rows up to 100; continuing" in log
    assert offsets(site) == first

    done = rewind(site, f"{site.topic}:0:30", f"{site.topic}:1:100")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "removed 70 rows",
        f"{site.topic}-0: the group continues at offset 30",
        f"{site.topic}-1: the group continues at offset 100",
    ]
    assert offsets(site) == {**first, 0: list(range(30))}
    assert site.committed()[0] == 30
    run_to_the_end(site)
    assert offsets(site) == first
    assert Counter(site.rows()) == Counter(site.produced)


def test_a_check_changes_nothing_and_a_whole_topic_is_rewound_to_a_time(site: DeliverySite) -> None:
    def refused() -> None:
        done = rewind(site, f"{site.topic}:0:3")
        assert done.returncode == 1
        assert f"the group {site.group} has 1 members: stop it first (spec.suspend: true" in done.stderr
        assert offsets(site)[0] == list(range(100))

    site.produce(400)
    run_to_the_end(site, refused)
    first, committed = offsets(site), site.committed()
    checked = rewind(site, "--check", f"{site.topic}:2:40")
    assert (checked.returncode, checked.stderr) == (0, "")
    assert checked.stdout.splitlines() == [f"{site.topic}-2: the group would continue at offset 40"]
    assert (offsets(site), site.committed()) == (first, committed)

    later = rewind(site, f"{site.topic}:2999-01-01")
    assert later.stdout.splitlines()[0] == "removed 0 rows"
    assert (offsets(site), site.committed()) == (first, committed)

    done = rewind(site, f"{site.topic}:2001-01-01T00:00Z")
    assert done.stdout.splitlines() == [
        "removed 400 rows",
        *(f"{site.topic}-{partition}: the group continues at offset 0" for partition in range(PARTITIONS)),
    ]
    assert site.rows() == []
    assert site.committed() == dict.fromkeys(range(PARTITIONS), 0)


@pytest.mark.long
def test_a_rewind_that_fails_at_the_table_leaves_a_group_that_continues_as_before(
    site: DeliverySite, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.produce(400)
    run_to_the_end(site)
    first = offsets(site)

    class Failing:
        def rewind(self, starts: Mapping[TopicPartition, tuple[str, int]]) -> int:
            if starts:
                raise SinkError("the disk is full")
            return 0

    monkeypatch.setattr(pipeline, "make_sink", lambda config: Failing())
    file = site.folder / "rewind.yaml"
    file.write_text(json.dumps(site.config()))
    with pytest.raises(SinkError, match="the disk is full"):
        rewind_command.rewind(load(file), [Start(site.topic, 0, offset=30)])
    assert site.committed()[0] == 30
    run_to_the_end(site)
    assert offsets(site) == first
    assert Counter(site.rows()) == Counter(site.produced)


@pytest.mark.parametrize(
    ("start", "code", "words"),
    [
        ("{topic}:99:0", 2, "-99 does not exist: the topic has 4 partitions"),
        ("no-such-topic:0:0", 2, "there is no topic no-such-topic"),
        ("{topic}:0", 2, "is not TOPIC:PARTITION:OFFSET"),
        ("{topic}", 2, "is not TOPIC:PARTITION:OFFSET"),
        ("{topic}:0:end-3", 2, "is not TOPIC:PARTITION:OFFSET"),
        ("{topic}:0:1", 2, "-0: offset 1 is not in the log, which has no records (its end is 0)"),
    ],
)
def test_what_cannot_be_rewound_is_named_in_one_line(
    site: DeliverySite, start: str, code: int, words: str
) -> None:
    done = rewind(site, start.format(topic=site.topic))
    assert done.returncode == code
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
