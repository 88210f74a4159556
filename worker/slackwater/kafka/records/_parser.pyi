"""The compiled parser offers what its pure-Python twin offers."""

from slackwater.kafka.records._parser_py import (
    ColumnBuffers as ColumnBuffers,
    ConsumerRecord as ConsumerRecord,
    RecordEncoder as RecordEncoder,
    gather as gather,
    make_records as make_records,
    parse_batches as parse_batches,
    parse_messages as parse_messages,
    parse_records as parse_records,
    scan_batches as scan_batches,
    scan_messages as scan_messages,
)
