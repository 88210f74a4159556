import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.Collection;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;

/**
 * Many of Java's consumers in one process, each on a thread. Arguments: topic, then properties as key=value. Each line of
 * the input is a number of further members to start; the process ends with its input. It prints a line for each call of a
 * listener: AT_MS, "assigned" or "revoked", the member's number, and the partitions.
 */
public final class ManyMembers {
    private static int started = 0;

    public static void main(String[] arguments) throws Exception {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        String line;
        while ((line = input.readLine()) != null) {
            for (int more = Integer.parseInt(line); more > 0; more--) {
                int number = started++;
                Thread thread = new Thread(() -> run(number, arguments));
                thread.setDaemon(true);
                thread.start();
            }
        }
        Runtime.getRuntime().halt(0);
    }

    private static void run(int number, String[] arguments) {
        Properties properties = new Properties();
        for (int i = 1; i < arguments.length; i++) {
            String[] pair = arguments[i].split("=", 2);
            properties.setProperty(pair[0], pair[1]);
        }
        String bytes = "org.apache.kafka.common.serialization.ByteArrayDeserializer";
        properties.setProperty("key.deserializer", bytes);
        properties.setProperty("value.deserializer", bytes);
        properties.setProperty("group.instance.id", "w-" + number);
        KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(properties);
        consumer.subscribe(List.of(arguments[0]), new ConsumerRebalanceListener() {
            @Override
            public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
                say("assigned", number, partitions);
            }

            @Override
            public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
                say("revoked", number, partitions);
            }
        });
        while (true) {
            consumer.poll(Duration.ofMillis(100));
        }
    }

    private static synchronized void say(String event, int number, Collection<TopicPartition> partitions) {
        StringBuilder line = new StringBuilder(System.currentTimeMillis() + " " + event + " " + number);
        for (TopicPartition partition : partitions) {
            line.append(' ').append(partition.partition());
        }
        System.out.println(line);
        System.out.flush();
    }
}
