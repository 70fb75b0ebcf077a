// Writes connect_letters.json, with which the tests compare: the dead letters that Kafka Connect
// makes of records. Run by hand, with Kafka 4.3.1:
//
//     java -cp 'DIRECTORY-OF-KAFKA-JARS/*' DeadLetterGoldens.java OUTPUT-DIRECTORY
//
// The letters are those of Connect's own reporter, taken from the producer that it is given. There is
// one for each stage at which a row can fail.

import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Future;

import com.fasterxml.jackson.databind.ObjectMapper;

import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.producer.Callback;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeaders;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.connect.errors.DataException;
import org.apache.kafka.connect.json.JsonConverter;
import org.apache.kafka.connect.runtime.ConnectMetrics;
import org.apache.kafka.connect.runtime.SinkConnectorConfig;
import org.apache.kafka.connect.runtime.errors.DeadLetterQueueReporter;
import org.apache.kafka.connect.runtime.errors.ErrorHandlingMetrics;
import org.apache.kafka.connect.runtime.errors.ProcessingContext;
import org.apache.kafka.connect.runtime.errors.Stage;
import org.apache.kafka.connect.runtime.isolation.Plugins;
import org.apache.kafka.connect.runtime.standalone.StandaloneConfig;
import org.apache.kafka.connect.util.ConnectorTaskId;

public class DeadLetterGoldens {
    private static final String SERVERS = "localhost:1";

    private static class Recording extends KafkaProducer<byte[], byte[]> {
        private final List<ProducerRecord<byte[], byte[]>> sent = new ArrayList<>();

        Recording() {
            super(Map.of("bootstrap.servers", SERVERS), new ByteArraySerializer(), new ByteArraySerializer());
        }

        @Override
        public Future<RecordMetadata> send(ProducerRecord<byte[], byte[]> record, Callback callback) {
            sent.add(record);
            return new CompletableFuture<>();
        }
    }

    public static void main(String[] arguments) throws Exception {
        ConnectorTaskId task = new ConnectorTaskId("pykafka", 3);
        Plugins plugins = new Plugins(Map.of());
        SinkConnectorConfig config = new SinkConnectorConfig(plugins, Map.of(
            "name", "pykafka",
            "connector.class", "org.apache.kafka.connect.tools.MockSinkConnector",
            "topics", "orders",
            "errors.deadletterqueue.topic.name", "bad",
            "errors.deadletterqueue.context.headers.enable", "true"));
        StandaloneConfig worker = new StandaloneConfig(Map.of(
            "bootstrap.servers", SERVERS,
            "key.converter", JsonConverter.class.getName(),
            "value.converter", JsonConverter.class.getName(),
            "offset.storage.file.filename", "unused"));
        ErrorHandlingMetrics metrics = new ErrorHandlingMetrics(
            task, new ConnectMetrics("worker", worker, Time.SYSTEM, "cluster"));
        var constructor = DeadLetterQueueReporter.class.getDeclaredConstructor(
            KafkaProducer.class, SinkConnectorConfig.class, ConnectorTaskId.class, ErrorHandlingMetrics.class);
        constructor.setAccessible(true);
        List<Map<String, Object>> letters = new ArrayList<>();
        try (Recording producer = new Recording()) {
            DeadLetterQueueReporter reporter = constructor.newInstance(producer, config, task, metrics);
            Stage[] stages = {
                Stage.KEY_CONVERTER, Stage.VALUE_CONVERTER, Stage.HEADER_CONVERTER, Stage.KAFKA_PRODUCE,
            };
            for (Stage stage : stages) {
                ConsumerRecord<byte[], byte[]> original = new ConsumerRecord<>(
                    "orders", 5, 8, 1_700_000_000_123L, TimestampType.CREATE_TIME, 2, 5,
                    "k\u00e9y".getBytes(StandardCharsets.UTF_8), new byte[] {(byte) 0xff, 0},
                    new RecordHeaders().add("trace", new byte[] {1}).add("none", null), Optional.empty());
                ProcessingContext<ConsumerRecord<byte[], byte[]>> context = new ProcessingContext<>(original);
                context.currentContext(stage, JsonConverter.class);
                context.error(new DataException("not \u00fcnderstood"));
                reporter.report(context);
            }
            for (ProducerRecord<byte[], byte[]> letter : producer.sent) {
                letters.add(values(letter));
            }
        }
        new ObjectMapper().writerWithDefaultPrettyPrinter()
            .writeValue(Path.of(arguments[0], "connect_letters.json").toFile(), letters);
        System.exit(0);
    }

    private static Map<String, Object> values(ProducerRecord<byte[], byte[]> letter) {
        List<List<String>> headers = new ArrayList<>();
        for (Header header : letter.headers()) {
            // Traces differ from one Java to the next.
            boolean isTrace = header.key().equals("__connect.errors.exception.stacktrace");
            List<String> pair = new ArrayList<>();
            pair.add(header.key());
            pair.add(isTrace ? null : hex(header.value()));
            headers.add(pair);
        }
        Map<String, Object> values = new LinkedHashMap<>();
        values.put("topic", letter.topic());
        values.put("partition", letter.partition());
        values.put("timestamp", letter.timestamp());
        values.put("key", hex(letter.key()));
        values.put("value", hex(letter.value()));
        values.put("headers", headers);
        return values;
    }

    private static String hex(byte[] bytes) {
        return bytes == null ? null : HexFormat.of().formatHex(bytes);
    }
}
