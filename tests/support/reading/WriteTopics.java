// Writes with Java's producer: WriteTopics BOOTSTRAP_SERVERS CODECS_TOPIC TRANSACTIONS_TOPIC
//
// The first topic gets records with each codec, the second one the records of committed, aborted
// and interleaved transactions, and of a transaction that stays open.

import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

public class WriteTopics {
    private static final int ROWS = 60;
    private static String servers;

    public static void main(String[] arguments) throws Exception {
        servers = arguments[0];
        for (String codec : new String[] {"none", "gzip", "snappy", "lz4", "zstd"}) {
            try (var producer = producer(Map.of("compression.type", codec))) {
                for (int i = 0; i < ROWS; i++) {
                    producer.send(record(arguments[1], i % 3, codec, i));
                }
            }
        }
        writeTransactions(arguments[2]);
        // Closed producers would abort their transactions.
        Runtime.getRuntime().halt(0);
    }

    private static void writeTransactions(String topic) throws Exception {
        var first = transactional(topic + "-first");
        var second = transactional(topic + "-second");
        for (int round = 0; round < 4; round++) {
            first.beginTransaction();
            second.beginTransaction();
            for (int i = 0; i < 10; i++) {
                // A flush ends a batch, so the batches of both transactions alternate.
                first.send(record(topic, i % 2, "first " + round, i));
                first.flush();
                second.send(record(topic, i % 2, "second " + round, i));
                second.flush();
            }
            if (round % 2 == 0) {
                first.abortTransaction();
                second.commitTransaction();
            } else {
                second.abortTransaction();
                first.commitTransaction();
            }
        }
        try (var plain = producer(Map.of())) {
            plain.send(record(topic, 0, "plain", 0)).get();
            first.beginTransaction();
            first.send(record(topic, 0, "open", 0)).get();
            plain.send(record(topic, 0, "plain", 1)).get();
        }
    }

    private static ProducerRecord<byte[], byte[]> record(
            String topic, int partition, String name, int i) {
        byte[] key = i % 4 == 0 ? null : i % 4 == 1 ? new byte[0] : bytes("key-" + i);
        byte[] value = i % 5 == 0 ? null : i % 5 == 1 ? new byte[0] : bytes(name + " größe " + i);
        var record = new ProducerRecord<>(topic, partition, 1_700_000_000_000L + i, key, value);
        if (i % 3 == 0) {
            record.headers().add("codec", bytes(name)).add("codec", null).add("", new byte[0]);
        }
        return record;
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    private static KafkaProducer<byte[], byte[]> transactional(String id) {
        var producer = producer(
                Map.of("transactional.id", id, "transaction.timeout.ms", "900000"));
        producer.initTransactions();
        return producer;
    }

    private static KafkaProducer<byte[], byte[]> producer(Map<String, String> more) {
        Map<String, Object> config = new HashMap<>(more);
        config.put("bootstrap.servers", servers);
        config.put("linger.ms", "5");
        return new KafkaProducer<>(config, new ByteArraySerializer(), new ByteArraySerializer());
    }
}
