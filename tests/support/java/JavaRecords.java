// Apache Kafka's own reading and writing of records, for tests to hold ours against: one JSON request a line
// on the standard input, one JSON answer a line on the standard output. tests/support/java/records.py
// documents both. In this package because the consumer's reader of a fetch (CompletedFetch) is not public.
package org.apache.kafka.clients.consumer.internals;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.Set;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.common.IsolationLevel;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.message.FetchResponseData;
import org.apache.kafka.common.metrics.Metrics;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.record.internal.CompressionType;
import org.apache.kafka.common.record.internal.ControlRecordType;
import org.apache.kafka.common.record.internal.EndTransactionMarker;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.MemoryRecordsBuilder;
import org.apache.kafka.common.record.internal.SimpleRecord;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.utils.internals.BufferSupplier;
import org.apache.kafka.common.utils.internals.LogContext;

public final class JavaRecords {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final TopicPartition TP = new TopicPartition("t", 0);

    public static void main(String[] args) throws Exception {
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            JsonNode request = JSON.readTree(line);
            ObjectNode answer = JSON.createObjectNode();
            try {
                if (request.get("do").asText().equals("write")) {
                    answer.put("data", write(request));
                } else {
                    read(request, answer);
                }
            } catch (Exception | OutOfMemoryError e) {
                answer.put("error", e.toString());
            }
            out.println(JSON.writeValueAsString(answer));
        }
    }

    private static byte[] bytes(JsonNode hex) {
        return hex == null || hex.isNull() ? null : HexFormat.of().parseHex(hex.asText());
    }

    private static String hex(byte[] content) {
        return content == null ? null : HexFormat.of().formatHex(content);
    }

    private static String write(JsonNode request) {
        long pid = request.path("producer_id").asLong(-1);
        if (request.hasNonNull("marker")) {
            ControlRecordType kind = ControlRecordType.valueOf(request.get("marker").asText());
            MemoryRecords marker = MemoryRecords.withEndTransactionMarker(
                request.get("base_offset").asLong(), 1_400_000_000_000L, 0, pid, (short) 0,
                new EndTransactionMarker(kind, 0));
            return hex(marker.buffer());
        }
        boolean transactional = request.path("transactional").asBoolean(false);
        TimestampType time = request.path("append_time").isNumber()
            ? TimestampType.LOG_APPEND_TIME : TimestampType.CREATE_TIME;
        MemoryRecordsBuilder builder = MemoryRecords.builder(
            ByteBuffer.allocate(1 << 16), (byte) request.get("magic").asInt(),
            Compression.of(request.get("codec").asText()).build(), time,
            request.get("base_offset").asLong(), request.path("append_time").asLong(-1),
            pid, (short) (pid < 0 ? -1 : 0), pid < 0 ? -1 : 0, transactional, request.path("epoch").asInt(-1));
        for (JsonNode row : request.get("records")) {
            List<Header> headers = new ArrayList<>();
            for (JsonNode header : row.get(4)) {
                headers.add(new RecordHeader(header.get(0).asText(), bytes(header.get(1))));
            }
            builder.appendWithOffset(row.get(0).asLong(), new SimpleRecord(
                row.get(1).asLong(), bytes(row.get(2)), bytes(row.get(3)), headers.toArray(new Header[0])));
        }
        return hex(builder.build().buffer());
    }

    private static String hex(ByteBuffer buffer) {
        byte[] content = new byte[buffer.remaining()];
        buffer.duplicate().get(content);
        return hex(content);
    }

    private static void read(JsonNode request, ObjectNode answer) {
        FetchResponseData.PartitionData data = new FetchResponseData.PartitionData()
            .setPartitionIndex(0).setHighWatermark(Long.MAX_VALUE)
            .setRecords(MemoryRecords.readableRecords(ByteBuffer.wrap(bytes(request.get("data")))));
        boolean committed = request.hasNonNull("aborted");
        if (committed) {
            List<FetchResponseData.AbortedTransaction> aborted = new ArrayList<>();
            for (JsonNode one : request.get("aborted")) {
                aborted.add(new FetchResponseData.AbortedTransaction()
                    .setProducerId(one.get(0).asLong()).setFirstOffset(one.get(1).asLong()));
            }
            data.setAbortedTransactions(aborted);
        }
        LogContext log = new LogContext();
        SubscriptionState subscriptions = new SubscriptionState(log, AutoOffsetResetStrategy.NONE);
        subscriptions.assignFromUser(Set.of(TP));
        Metrics metrics = new Metrics();
        FetchMetricsManager manager = new FetchMetricsManager(
            metrics, new FetchMetricsRegistry(Set.of(), "test"));
        CompletedFetch fetch = new CompletedFetch(
            log.logger(JavaRecords.class), subscriptions, BufferSupplier.create(), TP, data,
            new FetchMetricsAggregator(manager, Set.of(TP)), request.get("fetch_offset").asLong());
        FetchConfig config = new FetchConfig(1, 1 << 20, 0, 1 << 20, 1 << 20, true, "",
            committed ? IsolationLevel.READ_COMMITTED : IsolationLevel.READ_UNCOMMITTED);
        Deserializers<byte[], byte[]> plain = new Deserializers<>(
            new ByteArrayDeserializer(), new ByteArrayDeserializer(), metrics);
        ArrayNode rows = answer.putArray("records");
        try {
            for (ConsumerRecord<byte[], byte[]> record : fetch.fetchRecords(config, plain, 1 << 20)) {
                row(rows.addArray(), record);
            }
            // A failure behind records is kept for the next call; without one, the fetch moves to its end.
            fetch.fetchRecords(config, plain, 1 << 20);
        } catch (Exception e) {
            answer.put("error", e + (e.getCause() == null ? "" : " / " + e.getCause()));
        }
        answer.put("next_offset", fetch.nextFetchOffset());
    }

    private static void row(ArrayNode row, ConsumerRecord<byte[], byte[]> record) {
        row.add(record.offset()).add(record.timestamp()).add(record.timestampType().id);
        row.add(hex(record.key())).add(hex(record.value()));
        ArrayNode headers = row.addArray();
        for (Header header : record.headers()) {
            headers.addArray().add(header.key()).add(hex(header.value()));
        }
        row.add(record.leaderEpoch().orElse(-1));
    }
}
