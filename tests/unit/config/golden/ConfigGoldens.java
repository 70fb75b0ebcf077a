// Writes java_config.json, java_consumer_config.json and java_admin_config.json, with which the tests
// compare: the settings of Kafka's own Java producer, consumer and admin client, and whether they take
// certain values of them. Run by hand, with Kafka 4.4.0:
//
//     java -cp 'DIRECTORY-OF-KAFKA-JARS/*' ConfigGoldens.java OUTPUT-DIRECTORY
//
// Each setting is given values of all sorts by itself ("single"); then come the settings of producer
// and consumer between which there are rules, in all combinations ("together"), with what becomes of
// enable.idempotence and enable.auto.commit.

import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Function;
import java.util.stream.Collectors;

import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.SerializationFeature;

import org.apache.kafka.clients.admin.AdminClientConfig;
import org.apache.kafka.clients.consumer.CloseOptions;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.common.config.ConfigException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

public class ConfigGoldens {
    private static final List<String> NUMBERS = List.of(
        "0", "1", "-1", "-2", " 7 ", "+7", "007", "", " ", "7ms", "7 ms", "1e3", "0x10", "1_000", "1,000",
        "7.0", "4999", "5000", "2147483647", "2147483648", "-2147483649", "9223372036854775807",
        "9223372036854775808", "\u00a07", "\n7\t");
    private static final List<String> BOOLEANS = List.of("true", "FALSE", " True ", "yes", "1", "");
    private static final List<String> WORDS = List.of(
        "", " ", "x", "all", "ALL", " all ", "-1", "0", "1", "2", "none", "NONE", "gzip", "zstd", "brotli",
        "rebootstrap", "REBOOTSTRAP", "use_all_dns_ips", "default",
        "resolve_canonical_bootstrap_servers_only", "INFO", "info", "DEBUG", "TRACE", "PLAINTEXT", "plaintext",
        "read_committed", "READ_COMMITTED", "read_uncommitted");

    public static void main(String[] arguments) throws Exception {
        Map<String, Object> producer = new LinkedHashMap<>();
        producer.put("settings", settings(ProducerConfig.configDef()));
        producer.put("single", single(ProducerConfig.configDef(), ConfigGoldens::parse));
        producer.put("together", together());
        write(arguments[0], "java_config.json", producer);
        Map<String, Object> consumer = new LinkedHashMap<>();
        consumer.put("settings", settings(ConsumerConfig.configDef()));
        consumer.put("single", single(ConsumerConfig.configDef(), ConfigGoldens::parseConsumer));
        consumer.put("together", consumerTogether());
        write(arguments[0], "java_consumer_config.json", consumer);
        Map<String, Object> admin = new LinkedHashMap<>();
        admin.put("settings", settings(AdminClientConfig.configDef()));
        admin.put("single", single(AdminClientConfig.configDef(), ConfigGoldens::parseAdmin));
        write(arguments[0], "java_admin_config.json", admin);
    }

    private static void write(String directory, String name, Map<String, Object> golden) throws Exception {
        new ObjectMapper().enable(SerializationFeature.ORDER_MAP_ENTRIES_BY_KEYS)
            .writeValue(Path.of(directory, name).toFile(), golden);
    }

    private static boolean isSecurity(String name) {
        return name.startsWith("sasl.") || name.startsWith("ssl.");
    }

    private static Map<String, Object> settings(ConfigDef table) {
        Map<String, Object> settings = new LinkedHashMap<>();
        for (ConfigDef.ConfigKey key : table.configKeys().values()) {
            Map<String, Object> row = new LinkedHashMap<>();
            row.put("type", key.type.toString().toLowerCase());
            row.put("default", !key.hasDefault() || key.defaultValue == null
                ? null : ConfigDef.convertToString(key.defaultValue, key.type));
            row.put("importance", key.importance.toString().toLowerCase());
            settings.put(key.name, row);
        }
        return settings;
    }

    private static Map<String, Object> single(ConfigDef table, Function<Map<String, ?>, ?> parse) {
        Map<String, Object> verdicts = new LinkedHashMap<>();
        for (ConfigDef.ConfigKey key : table.configKeys().values()) {
            List<String> values = switch (key.type) {
                case INT, LONG -> NUMBERS;
                case BOOLEAN -> BOOLEANS;
                case STRING -> WORDS;
                default -> List.of();
            };
            if (values.isEmpty() || isSecurity(key.name) && key.type == ConfigDef.Type.STRING) {
                continue;
            }
            Map<Boolean, List<String>> split = values.stream().collect(
                Collectors.partitioningBy(value -> parse.apply(Map.of(key.name, value)) != null));
            verdicts.put(key.name, Map.of("accepted", split.get(true), "refused", split.get(false)));
        }
        return verdicts;
    }

    private static List<Object> together() {
        List<Object> verdicts = new ArrayList<>();
        for (String acks : new String[] {null, "all", "-1", "0", "1"}) {
            for (String retries : new String[] {null, "0", "1"}) {
                for (String inFlight : new String[] {null, "5", "6"}) {
                    for (String idempotence : new String[] {null, "true", "false"}) {
                        for (String transactionalId : new String[] {null, "t"}) {
                            Map<String, Object> given = new LinkedHashMap<>();
                            put(given, "acks", acks);
                            put(given, "retries", retries);
                            put(given, "max.in.flight.requests.per.connection", inFlight);
                            put(given, "enable.idempotence", idempotence);
                            put(given, "transactional.id", transactionalId);
                            verdicts.add(verdict(given));
                        }
                    }
                }
            }
        }
        for (String delivery : new String[] {null, "0", "1004", "1005"}) {
            for (String request : new String[] {null, "1000", "2147483647"}) {
                for (String linger : new String[] {null, "0", "1000000"}) {
                    Map<String, Object> given = new LinkedHashMap<>();
                    put(given, "delivery.timeout.ms", delivery);
                    put(given, "request.timeout.ms", request);
                    put(given, "linger.ms", linger);
                    verdicts.add(verdict(given));
                }
            }
        }
        return verdicts;
    }

    private static List<Object> consumerTogether() {
        List<Object> verdicts = new ArrayList<>();
        String range = "org.apache.kafka.clients.consumer.RangeAssignor";
        for (String protocol : new String[] {null, "Classic", "consumer"}) {
            for (String session : new String[] {null, "3000", "3001"}) {
                for (String heartbeat : new String[] {null, "3000"}) {
                    for (String strategy : new String[] {null, "", range}) {
                        for (String remote : new String[] {null, "", "uniform"}) {
                            Map<String, Object> given = new LinkedHashMap<>();
                            given.put("group.id", "group");
                            put(given, "group.protocol", protocol);
                            put(given, "session.timeout.ms", session);
                            put(given, "heartbeat.interval.ms", heartbeat);
                            put(given, "partition.assignment.strategy", strategy);
                            put(given, "group.remote.assignor", remote);
                            verdicts.add(consumerVerdict(given));
                        }
                    }
                }
            }
            for (String group : new String[] {null, "", "group"}) {
                for (String commit : new String[] {null, "true", "false"}) {
                    for (String instance : new String[] {null, "", "a", "a b", "."}) {
                        Map<String, Object> given = new LinkedHashMap<>();
                        put(given, "group.protocol", protocol);
                        put(given, "group.id", group);
                        put(given, "enable.auto.commit", commit);
                        put(given, "group.instance.id", instance);
                        verdicts.add(consumerVerdict(given));
                    }
                }
            }
        }
        return verdicts;
    }

    private static Map<String, Object> consumerVerdict(Map<String, Object> given) {
        Map<String, Object> verdict = new LinkedHashMap<>();
        verdict.put("settings", given);
        Map<String, Object> settings = completeConsumer(given);
        // Some rules are those of the consumer itself.
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(settings)) {
            verdict.put("accepted", true);
            verdict.put("enable.auto.commit", new ConsumerConfig(settings).getBoolean("enable.auto.commit"));
            consumer.close(CloseOptions.timeout(Duration.ZERO));
        } catch (KafkaException error) {
            verdict.put("accepted", false);
        }
        return verdict;
    }

    private static Map<String, Object> completeConsumer(Map<String, ?> given) {
        Map<String, Object> settings = new LinkedHashMap<>();
        settings.put("bootstrap.servers", "127.0.0.1:9");
        settings.put("key.deserializer", ByteArrayDeserializer.class);
        settings.put("value.deserializer", ByteArrayDeserializer.class);
        settings.putAll(given);
        return settings;
    }

    private static void put(Map<String, Object> settings, String name, String value) {
        if (value != null) {
            settings.put(name, value);
        }
    }

    private static Map<String, Object> verdict(Map<String, Object> given) {
        Map<String, Object> verdict = new LinkedHashMap<>();
        verdict.put("settings", given);
        ProducerConfig config = parse(given);
        boolean accepted = config != null && starts(given);
        verdict.put("accepted", accepted);
        if (accepted) {
            verdict.put("enable.idempotence", config.getBoolean("enable.idempotence"));
        }
        return verdict;
    }

    private static Map<String, Object> complete(Map<String, ?> given) {
        Map<String, Object> settings = new LinkedHashMap<>();
        settings.put("bootstrap.servers", "127.0.0.1:9");
        settings.put("key.serializer", ByteArraySerializer.class);
        settings.put("value.serializer", ByteArraySerializer.class);
        settings.putAll(given);
        return settings;
    }

    private static ProducerConfig parse(Map<String, ?> given) {
        try {
            return new ProducerConfig(complete(given));
        } catch (ConfigException error) {
            return null;
        }
    }

    private static ConsumerConfig parseConsumer(Map<String, ?> given) {
        Map<String, Object> settings = new LinkedHashMap<>(Map.of("group.id", "group"));
        settings.putAll(given);
        try {
            return new ConsumerConfig(completeConsumer(settings));
        } catch (ConfigException error) {
            return null;
        }
    }

    private static AdminClientConfig parseAdmin(Map<String, ?> given) {
        Map<String, Object> settings = new LinkedHashMap<>();
        settings.put("bootstrap.servers", "127.0.0.1:9");
        settings.putAll(given);
        try {
            return new AdminClientConfig(settings);
        } catch (ConfigException error) {
            return null;
        }
    }

    // Some rules are those of the producer itself.
    private static boolean starts(Map<String, Object> given) {
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(complete(given))) {
            return true;
        } catch (KafkaException error) {
            return false;
        }
    }
}
