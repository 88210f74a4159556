import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.HashMap;
import java.util.Map;
import java.util.TreeMap;
import org.apache.kafka.clients.consumer.CloseOptions;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** Java's consumer options, and what its consumer says to the combinations on its input. */
public class ConsumerOptions {
    public static void main(String[] arguments) throws Exception {
        for (ConfigDef.ConfigKey key : new TreeMap<>(ConsumerConfig.configDef().configKeys()).values()) {
            if (!key.internalConfig) {
                Object value = key.hasDefault() ? key.defaultValue : "(required)";
                System.out.println("option\t" + key.name + "\t" + key.type + "\t" + value);
            }
        }
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            System.out.println("answer\t" + line.replace('\t', ' ') + "\t" + attempt(line));
        }
        System.exit(0);
    }

    private static String attempt(String line) {
        Map<String, Object> options = new HashMap<>();
        options.put("bootstrap.servers", "127.0.0.1:1");
        options.put("key.deserializer", ByteArrayDeserializer.class);
        options.put("value.deserializer", ByteArrayDeserializer.class);
        for (String pair : line.split("\t")) {
            int at = pair.indexOf('=');
            if (at > 0) {
                options.put(pair.substring(0, at), pair.substring(at + 1));
            }
        }
        try {
            new KafkaConsumer<>(options).close(CloseOptions.timeout(Duration.ZERO));
            return "";
        } catch (RuntimeException error) {
            Throwable root = error;
            while (root.getCause() != null) {
                root = root.getCause();
            }
            return root.getClass().getSimpleName() + ": " + String.valueOf(root.getMessage()).replace('\n', ' ');
        }
    }
}
