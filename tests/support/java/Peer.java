import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import org.apache.kafka.clients.consumer.CommitFailedException;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.RebalanceInProgressException;

/**
 * Java's consumer as a member of a group, driven by lines: tests/support/peers/peer_process.py says which. Arguments:
 * topic, metadata of its commits, then properties of the consumer as key=value. With -Dawait.handled=true it commits what
 * it has read after a line "handled".
 */
public final class Peer {
    private static final Duration POLL = Duration.ofMillis(100);
    private static final boolean AWAIT_HANDLED = Boolean.getBoolean("await.handled");

    private final KafkaConsumer<byte[], byte[]> consumer;
    private final String topic;
    private final String metadata;
    private final BlockingQueue<String> orders = orders();
    private Set<Integer> owned = Set.of();

    private Peer(String topic, String metadata, Properties properties) {
        this.consumer = new KafkaConsumer<>(properties);
        this.topic = topic;
        this.metadata = metadata;
    }

    public static void main(String[] arguments) throws Exception {
        Properties properties = new Properties();
        for (int i = 2; i < arguments.length; i++) {
            String[] pair = arguments[i].split("=", 2);
            properties.setProperty(pair[0], pair[1]);
        }
        String bytes = "org.apache.kafka.common.serialization.ByteArrayDeserializer";
        properties.setProperty("key.deserializer", bytes);
        properties.setProperty("value.deserializer", bytes);
        properties.setProperty("enable.auto.commit", "false");
        try {
            new Peer(arguments[0], arguments[1], properties).run();
        } catch (Exception problem) {
            say("failed", "\"why\": \"" + problem.toString().replaceAll("[\"\\\\\\p{Cntrl}]", " ") + "\"");
            System.exit(1);
        }
        System.exit(0);
    }

    private static synchronized void say(String event, String fields) {
        System.out.println("{\"at\": " + System.currentTimeMillis() + ", \"event\": \"" + event + "\""
            + (fields.isEmpty() ? "" : ", " + fields) + "}");
        System.out.flush();
    }

    private static BlockingQueue<String> orders() {
        BlockingQueue<String> orders = new LinkedBlockingQueue<>();
        Thread reader = new Thread(() -> {
            BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
            try {
                String line;
                while ((line = input.readLine()) != null) {
                    orders.add(line);
                }
            } catch (java.io.IOException closed) {
                // The same as its end.
            }
            orders.add("close");
        });
        reader.setDaemon(true);
        reader.start();
        return orders;
    }

    private void run() throws InterruptedException {
        consumer.subscribe(List.of(topic), new Listener());
        say("started", "");
        while (true) {
            String order = orders.poll();
            if ("close".equals(order)) {
                consumer.close();
                say("closed", "");
                return;
            }
            if ("committed".equals(order)) {
                sayCommitted();
            }
            ConsumerRecords<byte[], byte[]> records = consumer.poll(POLL);
            sayOwned();
            if (!records.isEmpty()) {
                handle(records);
            }
        }
    }

    private void handle(ConsumerRecords<byte[], byte[]> records) throws InterruptedException {
        Map<TopicPartition, OffsetAndMetadata> next = new HashMap<>();
        List<String> read = new ArrayList<>();
        for (TopicPartition partition : records.partitions()) {
            List<ConsumerRecord<byte[], byte[]>> here = records.records(partition);
            List<String> values = new ArrayList<>();
            for (ConsumerRecord<byte[], byte[]> record : here) {
                values.add("[" + record.offset() + ", " + new String(record.value()) + "]");
            }
            long last = here.get(here.size() - 1).offset();
            next.put(partition, new OffsetAndMetadata(last + 1, metadata));
            read.add("\"" + partition.partition() + "\": [" + String.join(", ", values) + "]");
        }
        say("read", "\"records\": {" + String.join(", ", read) + "}");
        if (AWAIT_HANDLED && !"handled".equals(orders.take())) {
            orders.add("close");
            return;
        }
        try {
            consumer.commitSync(next);
            say("committed", "\"offsets\": " + offsets(next));
        } catch (CommitFailedException | RebalanceInProgressException refused) {
            say("refused", "\"why\": \"" + refused.getClass().getSimpleName() + "\", \"offsets\": " + offsets(next));
        }
    }

    private void sayOwned() {
        Set<Integer> now = new TreeSet<>();
        for (TopicPartition partition : consumer.assignment()) {
            now.add(partition.partition());
        }
        if (!now.equals(owned)) {
            owned = now;
            say("owned", "\"partitions\": " + now);
        }
    }

    private void sayCommitted() {
        Set<TopicPartition> all = new HashSet<>();
        consumer.partitionsFor(topic).forEach(found -> all.add(new TopicPartition(topic, found.partition())));
        List<String> found = new ArrayList<>();
        consumer.committed(all).forEach((partition, offset) -> {
            if (offset != null) {
                found.add("\"" + partition.partition() + "\": [" + offset.offset() + ", \""
                    + offset.metadata() + "\"]");
            }
        });
        say("group", "\"offsets\": {" + String.join(", ", found) + "}");
    }

    private static String offsets(Map<TopicPartition, OffsetAndMetadata> offsets) {
        List<String> shown = new ArrayList<>();
        offsets.forEach((partition, offset) -> shown.add("\"" + partition.partition() + "\": " + offset.offset()));
        return "{" + String.join(", ", shown) + "}";
    }

    private static List<Integer> numbers(Collection<TopicPartition> partitions) {
        List<Integer> numbers = new ArrayList<>();
        partitions.forEach(partition -> numbers.add(partition.partition()));
        Collections.sort(numbers);
        return numbers;
    }

    private static final class Listener implements ConsumerRebalanceListener {
        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
            say("assigned", "\"partitions\": " + numbers(partitions));
        }

        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
            say("revoked", "\"partitions\": " + numbers(partitions));
        }

        @Override
        public void onPartitionsLost(Collection<TopicPartition> partitions) {
            say("lost", "\"partitions\": " + numbers(partitions));
        }
    }
}
