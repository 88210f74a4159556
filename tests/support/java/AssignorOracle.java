import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Assignment;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.GroupSubscription;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Subscription;
import org.apache.kafka.clients.consumer.CooperativeStickyAssignor;
import org.apache.kafka.clients.consumer.RangeAssignor;
import org.apache.kafka.clients.consumer.RoundRobinAssignor;
import org.apache.kafka.clients.consumer.StickyAssignor;
import org.apache.kafka.common.Cluster;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.PartitionInfo;
import org.apache.kafka.common.TopicPartition;

/** Apache Kafka's own assignors: a group as one line of JSON in, its plan as one line out. */
public class AssignorOracle {
    private static final ObjectMapper JSON = new ObjectMapper();

    public static void main(String[] arguments) throws Exception {
        PrintStream out = System.out;
        System.setOut(System.err); // what the client logs is no answer
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            JsonNode asked = JSON.readTree(line);
            ObjectNode answer = asked.has("encode") ? encode(asked.get("encode")) : plan(asked);
            out.println(JSON.writeValueAsString(answer));
            out.flush();
        }
    }

    private static ConsumerPartitionAssignor make(String name) {
        switch (name) {
            case "range": return new RangeAssignor();
            case "roundrobin": return new RoundRobinAssignor();
            case "sticky": return new StickyAssignor();
            case "cooperative-sticky": return new CooperativeStickyAssignor();
            default: throw new IllegalArgumentException(name);
        }
    }

    private static ObjectNode plan(JsonNode asked) throws Exception {
        Cluster cluster = cluster(asked.get("partitions"));
        Map<String, Subscription> members = new HashMap<>();
        for (Iterator<Map.Entry<String, JsonNode>> each = asked.get("members").fields(); each.hasNext();) {
            Map.Entry<String, JsonNode> one = each.next();
            members.put(one.getKey(), subscription(one.getValue()));
        }
        ObjectNode answers = JSON.createObjectNode();
        for (JsonNode name : asked.get("assignors"))
            answers.set(name.asText(), plan(make(name.asText()), cluster, members));
        return answers;
    }

    private static ObjectNode plan(
            ConsumerPartitionAssignor assignor, Cluster cluster, Map<String, Subscription> members) {
        ObjectNode answer = JSON.createObjectNode();
        Map<String, Assignment> plan;
        ThreadMXBean threads = ManagementFactory.getThreadMXBean();
        long began = threads.getCurrentThreadCpuTime();
        try {
            plan = assignor.assign(cluster, new GroupSubscription(members)).groupAssignment();
        } catch (RuntimeException failed) {
            return answer.put("error", failed.toString());
        }
        answer.put("nanos", threads.getCurrentThreadCpuTime() - began);
        ObjectNode given = answer.putObject("plan");
        plan.forEach((member, assignment) -> {
            ArrayNode partitions = given.putArray(member);
            assignment.partitions().forEach(tp -> partitions.addArray().add(tp.topic()).add(tp.partition()));
        });
        return answer;
    }

    /** What a member's assignor tells in its subscription after it was given some partitions. */
    @SuppressWarnings("removal") // there is no other constructor
    private static ObjectNode encode(JsonNode asked) throws Exception {
        ConsumerPartitionAssignor assignor = make(asked.get("assignor").asText());
        assignor.onAssignment(
            new Assignment(partitions(asked.get("owned"))),
            new ConsumerGroupMetadata("g", asked.get("generation").asInt(), "m", Optional.empty()));
        ByteBuffer data = assignor.subscriptionUserData(Set.of());
        byte[] bytes = new byte[data.remaining()];
        data.get(bytes);
        return JSON.createObjectNode().put("userData", bytes);
    }

    private static Cluster cluster(JsonNode topics) {
        Map<String, Node> racks = new HashMap<>();
        Node nowhere = new Node(0, "host", 9092);
        racks.put("", nowhere);
        List<PartitionInfo> all = new ArrayList<>();
        for (Iterator<Map.Entry<String, JsonNode>> each = topics.fields(); each.hasNext();) {
            Map.Entry<String, JsonNode> topic = each.next();
            int number = 0;
            for (JsonNode of : topic.getValue()) {
                List<Node> replicas = new ArrayList<>();
                for (JsonNode rack : of)
                    replicas.add(racks.computeIfAbsent(
                        rack.asText(), name -> new Node(racks.size(), "host", 9092, name)));
                Node[] nodes = replicas.isEmpty() ? new Node[] {nowhere} : replicas.toArray(new Node[0]);
                all.add(new PartitionInfo(topic.getKey(), number++, nodes[0], nodes, nodes));
            }
        }
        return new Cluster("c", racks.values(), all, Set.of(), Set.of());
    }

    private static Subscription subscription(JsonNode told) throws Exception {
        List<String> topics = new ArrayList<>();
        told.get("topics").forEach(topic -> topics.add(topic.asText()));
        JsonNode data = told.get("userData");
        Subscription made = new Subscription(
            topics,
            data == null || data.isNull() ? null : ByteBuffer.wrap(data.binaryValue()),
            partitions(told.get("owned")),
            told.get("generation").asInt(),
            Optional.ofNullable(told.get("rack").textValue()));
        made.setGroupInstanceId(Optional.ofNullable(told.get("instance").textValue()));
        return made;
    }

    private static List<TopicPartition> partitions(JsonNode told) {
        List<TopicPartition> found = new ArrayList<>();
        told.forEach(tp -> found.add(new TopicPartition(tp.get(0).asText(), tp.get(1).asInt())));
        return found;
    }
}
