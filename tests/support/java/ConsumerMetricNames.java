import java.time.Duration;
import java.util.List;
import java.util.Properties;
import java.util.TreeSet;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** Reads a record of a topic as a member of a group, then prints the names of the metrics of Java's consumer. */
public class ConsumerMetricNames {
    public static void main(String[] arguments) {
        Properties options = new Properties();
        options.put("bootstrap.servers", arguments[0]);
        options.put("group.id", arguments[2]);
        options.put("auto.offset.reset", "earliest");
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(
                options, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.subscribe(List.of(arguments[1]));
            long deadline = System.currentTimeMillis() + 60_000;
            while (consumer.poll(Duration.ofMillis(200)).isEmpty() && System.currentTimeMillis() < deadline)
                continue;
            consumer.commitSync();
            TreeSet<String> names = new TreeSet<>();
            consumer.metrics().keySet().forEach(name -> {
                TreeSet<String> tags = new TreeSet<>(name.tags().keySet());
                tags.remove("client-id");
                names.add(name.group() + " " + name.name() + " " + String.join(",", tags));
            });
            names.forEach(System.out::println);
        }
    }
}
