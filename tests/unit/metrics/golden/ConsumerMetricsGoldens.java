// Writes java_consumer_metrics.json, with which the tests compare: which metrics Kafka's own Java
// consumer has, with each group protocol and without a group. Run by hand, with Kafka 4.3.1:
//
//     java -cp 'DIRECTORY-OF-KAFKA-JARS/*' ConsumerMetricsGoldens.java OUTPUT-DIRECTORY
//
// The names are those of a consumer that has opened a connection (to a port here that never
// answers), with those of the templates of topics and partitions.

import java.net.ServerSocket;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;

import com.fasterxml.jackson.databind.ObjectMapper;

import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.internals.FetchMetricsRegistry;
import org.apache.kafka.common.MetricName;
import org.apache.kafka.common.MetricNameTemplate;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

public class ConsumerMetricsGoldens {
    public static void main(String[] args) throws Exception {
        Map<String, Object> goldens = new TreeMap<>();
        goldens.put("alone", names(Map.of()));
        goldens.put("classic", names(Map.of("group.id", "golden")));
        goldens.put("consumer", names(Map.of("group.id", "golden", "group.protocol", "consumer")));
        new ObjectMapper().writerWithDefaultPrettyPrinter()
            .writeValue(Path.of(args[0], "java_consumer_metrics.json").toFile(), goldens);
        System.exit(0);
    }

    private static List<Object> names(Map<String, Object> own) throws Exception {
        TreeSet<String> found = new TreeSet<>();
        try (ServerSocket silent = new ServerSocket(0)) {
            Map<String, Object> settings = new HashMap<>(own);
            settings.put("bootstrap.servers", "127.0.0.1:" + silent.getLocalPort());
            settings.put("client.id", "golden");
            KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(
                settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
            consumer.assign(List.of(new TopicPartition("orders", 0)));
            consumer.poll(Duration.ofMillis(500));
            silent.accept();
            consumer.poll(Duration.ofMillis(500));
            for (MetricName name : consumer.metrics().keySet())
                found.add(row(name.group(), name.name(), new TreeSet<>(name.tags().keySet())));
        }
        FetchMetricsRegistry registry = new FetchMetricsRegistry(Set.of("client-id"), "consumer");
        for (MetricNameTemplate name : registry.getAllTemplates())
            found.add(row(name.group(), name.name(), new TreeSet<>(name.tags())));
        return new ArrayList<>(found);
    }

    private static String row(String group, String name, TreeSet<String> tags) {
        return group + " " + name + " " + String.join(",", tags);
    }
}
