// Assigns partitions with Kafka's own assignors. Each line of the input is a case, each line of the
// output its result, both in JSON; see tests/support/consumer/assignor_cases.py, whose main program
// writes the golden files. By hand:
//
//     java -cp 'DIRECTORY-OF-KAFKA-JARS/*' AssignorGoldens.java < CASES > RESULTS
//
// A case has an assignor and rounds. One instance is the leader in all rounds. Where a member of a
// round is to "carry", it joins with what it got in the last round that it took part in. Every
// subscription goes through the embedded protocol, as in a real group. A line with "encode" or
// "decode" is a case of that protocol instead.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

import com.fasterxml.jackson.core.JsonGenerator;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;

import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Assignment;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.GroupSubscription;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Subscription;
import org.apache.kafka.clients.consumer.CooperativeStickyAssignor;
import org.apache.kafka.clients.consumer.RangeAssignor;
import org.apache.kafka.clients.consumer.RoundRobinAssignor;
import org.apache.kafka.clients.consumer.StickyAssignor;
import org.apache.kafka.clients.consumer.internals.ConsumerProtocol;
import org.apache.kafka.common.Cluster;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.PartitionInfo;
import org.apache.kafka.common.TopicPartition;

@SuppressWarnings("removal")
public class AssignorGoldens {
    private static final ObjectMapper MAPPER = new ObjectMapper();
    private static final int SECONDS = 5;

    private record Joined(ConsumerPartitionAssignor assignor, Assignment last, int generation) {}

    public static void main(String[] arguments) throws Exception {
        MAPPER.getFactory().configure(JsonGenerator.Feature.ESCAPE_NON_ASCII, true);
        System.setProperty("org.slf4j.simpleLogger.defaultLogLevel", "off");
        ExecutorService executor = Executors.newCachedThreadPool(task -> {
            Thread thread = new Thread(task);
            thread.setDaemon(true);
            return thread;
        });
        PrintStream output = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            JsonNode given = MAPPER.readTree(line);
            if (given.has("encode")) {
                output.println(MAPPER.writeValueAsString(encoded(given.get("encode"))));
            } else if (given.has("decode")) {
                output.println(MAPPER.writeValueAsString(decoded(given.get("decode"))));
            } else {
                ArrayNode results = MAPPER.createArrayNode();
                try {
                    executor.submit(() -> run(given, results)).get(SECONDS, TimeUnit.SECONDS);
                } catch (ExecutionException error) {
                    results.add(error.getCause().getClass().getSimpleName());
                } catch (TimeoutException error) {
                    results.add("endless");
                }
                output.println(MAPPER.writeValueAsString(results));
            }
        }
        output.flush();
    }

    private static ConsumerPartitionAssignor newAssignor(String name) {
        return switch (name) {
            case "range" -> new RangeAssignor();
            case "roundrobin" -> new RoundRobinAssignor();
            case "sticky" -> new StickyAssignor();
            case "cooperative-sticky" -> new CooperativeStickyAssignor();
            default -> throw new IllegalArgumentException(name);
        };
    }

    private static void run(JsonNode given, ArrayNode results) {
        String name = given.get("assignor").asText();
        ConsumerPartitionAssignor leader = newAssignor(name);
        Map<String, Joined> joined = new HashMap<>();
        int generation = 0;
        for (JsonNode round : given.get("rounds")) {
            generation++;
            Map<String, Subscription> subscriptions = new HashMap<>();
            for (JsonNode member : round.get("members")) {
                subscriptions.put(member.get("id").asText(), subscription(name, member, joined));
            }
            Map<String, Assignment> assigned =
                leader.assign(cluster(round.get("topics")), new GroupSubscription(subscriptions)).groupAssignment();
            ObjectNode result = MAPPER.createObjectNode();
            for (JsonNode member : round.get("members")) {
                String id = member.get("id").asText();
                // What the member gets is what arrives by SyncGroup.
                Assignment assignment =
                    ConsumerProtocol.deserializeAssignment(ConsumerProtocol.serializeAssignment(assigned.get(id)));
                ConsumerPartitionAssignor own = newAssignor(name);
                own.onAssignment(
                    assignment, new ConsumerGroupMetadata("group", generation, id, Optional.empty()));
                joined.put(id, new Joined(own, assignment, generation));
                result.put(id, text(assigned.get(id).partitions()));
            }
            results.add(result);
        }
    }

    private static Subscription subscription(String name, JsonNode member, Map<String, Joined> joined) {
        List<String> topics = texts(member.get("topics"));
        ByteBuffer data = bytes(member.get("data"));
        List<TopicPartition> owned = partitions(member.get("owned"));
        int generation = member.path("generation").asInt(-1);
        Joined before = joined.get(member.get("id").asText());
        if (member.path("carry").asBoolean() && before != null) {
            data = before.assignor().subscriptionUserData(new HashSet<>(topics));
            generation = before.generation();
            // Members give up their partitions before they join, except with the cooperative protocol.
            owned = name.equals("cooperative-sticky") ? before.last().partitions() : List.of();
        }
        Subscription sent = new Subscription(
            topics, data, owned, generation, Optional.ofNullable(member.path("rack").textValue()));
        Subscription received =
            ConsumerProtocol.deserializeSubscription(ConsumerProtocol.serializeSubscription(sent));
        received.setGroupInstanceId(Optional.ofNullable(member.path("instance").textValue()));
        return received;
    }

    private static Cluster cluster(JsonNode topics) {
        List<PartitionInfo> infos = new ArrayList<>();
        List<Node> brokers = new ArrayList<>();
        topics.fields().forEachRemaining(topic -> {
            int number = 0;
            for (JsonNode racks : topic.getValue()) {
                // Every replica has a broker of its own: assignors only look at the racks.
                int first = brokers.size();
                for (JsonNode rack : racks) {
                    brokers.add(new Node(brokers.size(), "broker", 9092, rack.textValue()));
                }
                if (racks.isEmpty()) {
                    brokers.add(new Node(brokers.size(), "broker", 9092));
                }
                Node[] replicas = brokers.subList(first, brokers.size()).toArray(new Node[0]);
                infos.add(new PartitionInfo(topic.getKey(), number++, replicas[0], replicas, replicas));
            }
        });
        return new Cluster("cluster", brokers, infos, Set.of(), Set.of());
    }

    private static ObjectNode encoded(JsonNode given) {
        ObjectNode result = MAPPER.createObjectNode();
        List<TopicPartition> partitions = partitions(given.get("owned"));
        int generation = given.path("generation").asInt(-1);
        Subscription subscription = new Subscription(
            texts(given.get("topics")), bytes(given.get("data")), partitions, generation,
            Optional.ofNullable(given.path("rack").textValue()));
        Assignment assignment = new Assignment(partitions, bytes(given.get("data")));
        ArrayNode subscriptions = result.putArray("subscription");
        ArrayNode assignments = result.putArray("assignment");
        for (short version = 0; version <= 3; version++) {
            subscriptions.add(hex(ConsumerProtocol.serializeSubscription(subscription, version)));
            assignments.add(hex(ConsumerProtocol.serializeAssignment(assignment, version)));
        }
        ObjectNode userData = result.putObject("user_data");
        for (String name : List.of("sticky", "cooperative-sticky")) {
            ConsumerPartitionAssignor assignor = newAssignor(name);
            assignor.onAssignment(
                assignment, new ConsumerGroupMetadata("group", generation, "member", Optional.empty()));
            userData.put(name, hex(assignor.subscriptionUserData(Set.of())));
        }
        return result;
    }

    private static JsonNode decoded(JsonNode given) {
        ObjectNode result = MAPPER.createObjectNode();
        try {
            Subscription subscription = ConsumerProtocol.deserializeSubscription(bytes(given));
            ObjectNode fields = result.putObject("subscription");
            subscription.topics().forEach(fields.putArray("topics")::add);
            fields.put("data", hex(subscription.userData()));
            fields.put("owned", text(subscription.ownedPartitions()));
            fields.put("generation", subscription.generationId().orElse(-1));
            fields.put("rack", subscription.rackId().orElse(null));
        } catch (RuntimeException error) {
            result.putNull("subscription");
        }
        try {
            Assignment assignment = ConsumerProtocol.deserializeAssignment(bytes(given));
            ObjectNode fields = result.putObject("assignment");
            fields.put("owned", text(assignment.partitions()));
            fields.put("data", hex(assignment.userData()));
        } catch (RuntimeException error) {
            result.putNull("assignment");
        }
        return result;
    }

    private static String text(List<TopicPartition> partitions) {
        List<String> words = new ArrayList<>();
        String topic = null;
        for (TopicPartition partition : partitions) {
            if (!partition.topic().equals(topic)) {
                topic = partition.topic();
                words.add(topic);
            }
            words.add(Integer.toString(partition.partition()));
        }
        return String.join(" ", words);
    }

    private static List<TopicPartition> partitions(JsonNode words) {
        List<TopicPartition> partitions = new ArrayList<>();
        String topic = null;
        for (String word : words == null || words.asText().isEmpty() ? new String[0] : words.asText().split(" ")) {
            if (Character.isLetter(word.charAt(0))) {
                topic = word;
            } else {
                partitions.add(new TopicPartition(topic, Integer.parseInt(word)));
            }
        }
        return partitions;
    }

    private static List<String> texts(JsonNode array) {
        List<String> texts = new ArrayList<>();
        array.forEach(each -> texts.add(each.asText()));
        return texts;
    }

    private static ByteBuffer bytes(JsonNode hex) {
        return hex == null || hex.isNull() ? null : ByteBuffer.wrap(HexFormat.of().parseHex(hex.asText()));
    }

    private static String hex(ByteBuffer buffer) {
        if (buffer == null) {
            return null;
        }
        byte[] bytes = new byte[buffer.remaining()];
        buffer.duplicate().get(bytes);
        return HexFormat.of().formatHex(bytes);
    }
}
