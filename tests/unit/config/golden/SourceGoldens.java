// Writes spark_source_options.json, with which the tests compare: what Spark's own Kafka source makes of
// its options. Run by hand, with the jars of PySpark, the source of Spark 4.2.0 and its dependencies:
//
//     java -cp 'JARS-OF-PYSPARK/*:JARS-OF-THE-SOURCE/*' SourceGoldens.java OUTPUT-DIRECTORY
//
// Each case has options for a batch and for a stream, whether they are taken, and then where the read
// starts and ends.

import java.lang.reflect.Field;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

import com.fasterxml.jackson.databind.ObjectMapper;

import org.apache.spark.SparkEnv;
import org.apache.spark.network.util.JavaUtils;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.kafka010.KafkaSourceProvider;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

import scala.jdk.javaapi.CollectionConverters;

public class SourceGoldens {
    private static final List<String> OFFSETS = List.of(
        "earliest", "latest", " Earliest ", "LATEST", "", "first", "-1", "{}", "[]", "null", "\"earliest\"",
        "{\"t\":{\"0\":23}}", "{\"t\":{\"0\":23,\"1\":-1}}", "{\"t\":{\"0\":-2},\"u\":{\"7\":0}}",
        "{\"t\":{\"0\":-3}}", "{\"t\":{\"0\":\"23\"}}", "{\"t\":{\"0\":1.5}}", "{\"t\":{\"0\":1.0}}",
        "{\"t\":{\"0\":null}}", "{\"t\":{\"0\":true}}", "{\"t\":{\"x\":1}}", "{\"t\":{\"-1\":1}}",
        "{\"t\":{\" 0\":1}}", "{\"t\":{\"00\":1}}", "{\"t\":{\"+1\":1}}", "{\"t\":{\"2147483648\":1}}",
        "{\"t\":{\"0\":9223372036854775807}}", "{\"t\":{\"0\":9223372036854775808}}", "{\"t\":[0]}", "{\"t\":5}",
        "{\"t\":{\"0\":1},\"t\":{\"0\":2}}", "{\"t\":{\"0\":1,\"0\":2}}", "{\"t\":{}}", "{\"a b\":{\"0\":1}}",
        "{\"t\":{\"0\":1}", "{\"t\":{\"0\":1}} x", "{'t':{'0':1}}", "{\"t\":{\"0\":1,}}");
    private static final List<String> PARTITIONS = List.of(
        "{\"t\":[0,1],\"u\":[4,6]}", " {\"t\":[0]} ", "{}", "{\"t\":[]}", "[0]", "t", "", "{\"t\":0}",
        "{\"t\":[\"0\"]}", "{\"t\":[1.5]}", "{\"t\":[-1]}", "{\"t\":[0,0]}", "{\"t\":[0],\"t\":[1]}",
        "{\"t\":[2147483648]}", "{\"t\":{\"0\":1}}", "{\"t\":[null]}", "{\"t\":[true]}");
    private static final List<String> NUMBERS = List.of(
        "0", "1", "-1", "5", " 5 ", "+5", "007", "", "5ms", "1.0", "1e3", "2147483647", "2147483648",
        "9223372036854775807", "9223372036854775808");
    private static final List<String> BOOLEANS = List.of("true", "FALSE", " true", "yes", "1", "");
    private static final List<String> TIMES = List.of(
        "15m", "500ms", "10", "1.5m", "-5s", "5 s", " 15M ", "1d", "3us", "1999us", "2min", "3h", "4s", "", "m",
        "9223372036854775807d", "1h 5m", "+5s", "-1", "5w", "5sec");

    public static void main(String[] arguments) throws Exception {
        SparkSession spark = SparkSession.builder().master("local[1]").config("spark.ui.enabled", false).getOrCreate();
        List<Object> cases = new ArrayList<>();
        for (Map<String, String> options : all()) {
            cases.add(verdict(options, false));
            cases.add(verdict(options, true));
        }
        Map<String, Object> times = new LinkedHashMap<>();
        for (String text : TIMES) {
            try {
                times.put(text, JavaUtils.timeStringAsMs(text));
            } catch (NumberFormatException error) {
                times.put(text, null);
            }
        }
        Map<String, Object> golden = new LinkedHashMap<>();
        golden.put("cases", cases);
        golden.put("times", times);
        new ObjectMapper().writeValue(Path.of(arguments[0], "spark_source_options.json").toFile(), golden);
        spark.stop();
    }

    private static List<Map<String, String>> all() {
        List<Map<String, String>> all = new ArrayList<>();
        for (String offsets : OFFSETS) {
            for (String name : List.of("startingOffsets", "endingOffsets", "startingOffsetsByTimestamp",
                    "endingOffsetsByTimestamp")) {
                all.add(of("subscribe", "t", name, offsets));
            }
        }
        for (String partitions : PARTITIONS) {
            all.add(of("assign", partitions));
        }
        for (String topics : List.of("", " ", ",", "t", " t , u ,", "t,t", "a b")) {
            all.add(of("subscribe", topics));
            all.add(of("subscribePattern", topics));
        }
        all.add(of());
        all.add(of("subscribe", "t", "subscribePattern", "t"));
        all.add(of("subscribe", "t", "assign", "{\"t\":[0]}"));
        all.add(of("assign", "{\"t\":[0]}", "subscribePattern", "t"));
        for (String name : List.of("minPartitions", "maxRecordsPerPartition", "maxOffsetsPerTrigger",
                "minOffsetsPerTrigger", "startingTimestamp", "endingTimestamp", "kafkaConsumer.pollTimeoutMs",
                "fetchOffset.numRetries", "fetchOffset.retryIntervalMs")) {
            for (String number : NUMBERS) {
                all.add(of("subscribe", "t", name, number));
            }
        }
        for (String name : List.of("failOnDataLoss", "includeHeaders")) {
            for (String bool : BOOLEANS) {
                all.add(of("subscribe", "t", name, bool));
            }
        }
        for (String strategy : List.of("error", "LATEST", "Latest", " latest", "earliest", "")) {
            all.add(of("subscribe", "t", "startingTimestamp", "5", "startingOffsetsByTimestampStrategy", strategy));
        }
        for (String time : TIMES) {
            all.add(of("subscribe", "t", "maxTriggerDelay", time));
        }
        for (String least : List.of("1", "5", "6")) {
            all.add(of("subscribe", "t", "minOffsetsPerTrigger", least, "maxOffsetsPerTrigger", "5"));
        }
        for (String name : List.of("kafka.group.id", "groupIdPrefix", "kafka.max.poll.records",
                "kafka.session.timeout.ms", "kafka.isolation.level", "kafka.auto.offset.reset",
                "kafka.enable.auto.commit", "kafka.interceptor.classes", "kafka.key.deserializer",
                "kafka.value.deserializer", "kafka.acks")) {
            for (String value : List.of("x", "false")) {
                all.add(of("subscribe", "t", name, value));
            }
        }
        precedence(all, "starting");
        precedence(all, "ending");
        ranges(all, "startingOffsets", "endingOffsets");
        ranges(all, "startingOffsetsByTimestamp", "endingOffsetsByTimestamp");
        return all;
    }

    // An option that gives way may be malformed.
    private static void precedence(List<Map<String, String>> all, String end) {
        String byTimestamp = end + "OffsetsByTimestamp";
        all.add(of("subscribe", "t", end + "Timestamp", "5", byTimestamp, "x", end + "Offsets", "x"));
        all.add(of("subscribe", "t", byTimestamp, "{\"t\":{\"0\":7}}", end + "Offsets", "x"));
        all.add(of("subscribe", "t", end + "Timestamp", "5", end + "Offsets", "earliest"));
        all.add(of("subscribe", "t", end + "Timestamp", "5", end + "Offsets", "latest"));
    }

    private static void ranges(List<Map<String, String>> all, String start, String end) {
        List<String> values = List.of("{\"t\":{\"0\":5}}", "{\"t\":{\"0\":6}}", "{\"t\":{\"0\":5,\"1\":5}}",
            "{\"u\":{\"0\":5}}", "{\"t\":{\"0\":-1}}", "{\"t\":{\"0\":-2}}");
        for (String first : values) {
            for (String last : values) {
                all.add(of("subscribe", "t", start, first, end, last));
            }
        }
    }

    private static Map<String, String> of(String... pairs) {
        Map<String, String> options = new LinkedHashMap<>();
        for (int i = 0; i < pairs.length; i += 2) {
            options.put(pairs[i], pairs[i + 1]);
        }
        return options;
    }

    private static Map<String, Object> verdict(Map<String, String> given, boolean isStream) throws Exception {
        Map<String, String> complete = new HashMap<>(given);
        complete.put("kafka.bootstrap.servers", "127.0.0.1:9");
        Map<String, Object> verdict = new LinkedHashMap<>();
        verdict.put("options", given);
        verdict.put("is_stream", isStream);
        CaseInsensitiveStringMap options = new CaseInsensitiveStringMap(complete);
        try {
            Scan scan = new KafkaSourceProvider().getTable(options).newScanBuilder(options).build();
            Object read = isStream ? scan.toMicroBatchStream("checkpoint") : scan.toBatch();
            verdict.put("accepted", true);
            verdict.put("start", limit(field(read, "startingOffsets")));
            verdict.put("end", isStream ? null : limit(field(read, "endingOffsets")));
        } catch (IllegalArgumentException | IllegalStateException | java.util.NoSuchElementException error) {
            verdict.put("accepted", false);
        }
        return verdict;
    }

    private static Object field(Object owner, String name) throws Exception {
        for (Field field : owner.getClass().getDeclaredFields()) {
            if (field.getName().equals(name) || field.getName().endsWith("$$" + name)) {
                field.setAccessible(true);
                return field.get(owner);
            }
        }
        throw new NoSuchFieldException(name);
    }

    private static Object limit(Object limit) throws Exception {
        String name = limit.getClass().getSimpleName().replace("$", "").replace("RangeLimit", "");
        return switch (name) {
            case "EarliestOffset", "LatestOffset" -> name;
            case "GlobalTimestamp" -> Map.of(name, field(limit, "timestamp"));
            case "SpecificOffset" -> Map.of(name, numbers(field(limit, "partitionOffsets")));
            default -> Map.of(name, numbers(field(limit, "topicTimestamps")));
        };
    }

    private static Map<String, Object> numbers(Object map) {
        Map<String, Object> numbers = new TreeMap<>();
        CollectionConverters.asJava((scala.collection.Map<?, ?>) map)
            .forEach((partition, number) -> numbers.put(partition.toString(), number));
        return numbers;
    }
}
