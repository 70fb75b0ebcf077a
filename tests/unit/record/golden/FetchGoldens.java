// Completes java_fetches.json, with which the tests compare: what a consumer of Kafka's own Java
// client makes of given answers. Each case has an answer, the offset that was asked for and the
// aborted transactions; this program adds the rows. Run by hand, with Kafka 4.3.1:
//
//     python -m tests.support.record.reading.fetch_cases OUTPUT-DIRECTORY
//     java -cp 'DIRECTORY-OF-KAFKA-JARS/*' FetchGoldens.java OUTPUT-DIRECTORY

import java.lang.reflect.Constructor;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.Set;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;

import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.internals.AutoOffsetResetStrategy;
import org.apache.kafka.clients.consumer.internals.CompletedFetch;
import org.apache.kafka.clients.consumer.internals.Deserializers;
import org.apache.kafka.clients.consumer.internals.FetchConfig;
import org.apache.kafka.clients.consumer.internals.FetchMetricsManager;
import org.apache.kafka.clients.consumer.internals.FetchMetricsRegistry;
import org.apache.kafka.clients.consumer.internals.SubscriptionState;
import org.apache.kafka.common.IsolationLevel;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.message.FetchResponseData;
import org.apache.kafka.common.metrics.Metrics;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.utils.BufferSupplier;
import org.apache.kafka.common.utils.LogContext;

public class FetchGoldens {
    static final TopicPartition PARTITION = new TopicPartition("orders", 3);
    static final ObjectMapper JSON = new ObjectMapper();

    public static void main(String[] arguments) throws Exception {
        Path path = Path.of(arguments[0]).resolve("java_fetches.json");
        List<String> cases = new ArrayList<>();
        for (JsonNode given : JSON.readTree(path.toFile())) {
            ObjectNode completed = given.deepCopy();
            try {
                completed.set("rows", rows(given));
            } catch (InvocationTargetException error) {
                // Java checks the markers of all producers, also of those that aborted nothing.
                continue;
            }
            cases.add(JSON.writeValueAsString(completed));
        }
        Files.writeString(path, "[\n" + String.join(",\n", cases) + "\n]\n");
    }

    static ArrayNode rows(JsonNode given) throws Exception {
        List<FetchResponseData.AbortedTransaction> aborted = new ArrayList<>();
        for (JsonNode entry : given.get("aborted")) {
            aborted.add(new FetchResponseData.AbortedTransaction()
                .setProducerId(entry.get(0).asLong())
                .setFirstOffset(entry.get(1).asLong()));
        }
        byte[] answer = HexFormat.of().parseHex(given.get("answer").asText());
        FetchResponseData.PartitionData data = new FetchResponseData.PartitionData()
            .setPartitionIndex(PARTITION.partition())
            .setAbortedTransactions(aborted)
            .setRecords(MemoryRecords.readableRecords(ByteBuffer.wrap(answer)));
        Metrics metrics = new Metrics();
        Object aggregator = constructor("FetchMetricsAggregator").newInstance(
            new FetchMetricsManager(metrics, new FetchMetricsRegistry()), Set.of(PARTITION));
        LogContext log = new LogContext();
        Object fetch = constructor("CompletedFetch").newInstance(
            log.logger(CompletedFetch.class),
            new SubscriptionState(log, AutoOffsetResetStrategy.NONE),
            BufferSupplier.create(),
            PARTITION,
            data,
            aggregator,
            given.get("start").asLong());
        FetchConfig config = new FetchConfig(
            1, 1 << 20, 500, 1 << 20, 500, true, "", IsolationLevel.READ_COMMITTED);
        Deserializers<byte[], byte[]> deserializers = new Deserializers<>(
            new ByteArrayDeserializer(), new ByteArrayDeserializer(), metrics);
        Method fetchRecords = CompletedFetch.class.getDeclaredMethod(
            "fetchRecords", FetchConfig.class, Deserializers.class, int.class);
        fetchRecords.setAccessible(true);
        ArrayNode rows = JSON.createArrayNode();
        List<?> records;
        do {
            records = (List<?>) fetchRecords.invoke(fetch, config, deserializers, 100);
            for (Object record : records) {
                rows.add(row((ConsumerRecord<?, ?>) record));
            }
        } while (!records.isEmpty());
        return rows;
    }

    static Constructor<?> constructor(String name) throws Exception {
        Class<?> type = Class.forName("org.apache.kafka.clients.consumer.internals." + name);
        Constructor<?> constructor = type.getDeclaredConstructors()[0];
        constructor.setAccessible(true);
        return constructor;
    }

    static ArrayNode row(ConsumerRecord<?, ?> record) {
        ArrayNode headers = JSON.createArrayNode();
        for (Header header : record.headers()) {
            headers.addArray()
                .add(hex(header.key().getBytes(StandardCharsets.UTF_8)))
                .add(hex(header.value()));
        }
        return JSON.createArrayNode()
            .add(record.offset())
            .add(record.timestamp())
            .add(record.timestampType().id)
            .add(hex((byte[]) record.key()))
            .add(hex((byte[]) record.value()))
            .add(headers);
    }

    static String hex(byte[] bytes) {
        return bytes == null ? null : HexFormat.of().formatHex(bytes);
    }
}
