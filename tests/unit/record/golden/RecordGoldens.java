// Writes java_batches.json and java_partitions.json, with which the tests compare: what the classes
// of Kafka's own Java client make of given records and keys. Run by hand, with Kafka 4.3.1:
//
//     java -cp 'DIRECTORY-OF-KAFKA-JARS/*' RecordGoldens.java OUTPUT-DIRECTORY

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.SerializationFeature;

import org.apache.kafka.clients.producer.internals.BuiltInPartitioner;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.record.internal.ControlRecordType;
import org.apache.kafka.common.record.internal.EndTransactionMarker;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.MemoryRecordsBuilder;
import org.apache.kafka.common.record.internal.RecordBatch;
import org.apache.kafka.common.utils.Utils;

public class RecordGoldens {
    record Row(long timestamp, byte[] key, byte[] value, Header... headers) {}

    static final List<Map<String, Object>> BATCHES = new ArrayList<>();

    public static void main(String[] arguments) throws Exception {
        Path output = Path.of(arguments[0]);
        Map<String, Compression> codecs = new LinkedHashMap<>();
        codecs.put("none", Compression.NONE);
        codecs.put("gzip", Compression.gzip().build());
        codecs.put("snappy", Compression.snappy().build());
        codecs.put("lz4", Compression.lz4().build());
        codecs.put("zstd", Compression.zstd().build());
        Map<String, List<Row>> cases = cases();
        codecs.forEach((name, codec) -> cases.forEach((kind, rows) -> batch(kind, name, codec, rows)));
        codecs.remove("none");
        codecs.forEach((name, codec) -> batch("several blocks", name, codec, severalBlocks()));
        batch("best level", "gzip", Compression.gzip().level(9).build(), cases.get("headers"));
        batch("best level", "lz4", Compression.lz4().level(17).build(), cases.get("headers"));
        batch("best level", "zstd", Compression.zstd().level(22).build(), cases.get("headers"));
        logAppendTime();
        control("commit", ControlRecordType.COMMIT);
        control("abort", ControlRecordType.ABORT);
        write(output.resolve("java_batches.json"), BATCHES);
        write(output.resolve("java_partitions.json"), partitions());
    }

    static Map<String, List<Row>> cases() {
        Map<String, List<Row>> cases = new LinkedHashMap<>();
        cases.put("plain", List.of(
            new Row(1_700_000_000_000L, utf8("key-1"), utf8("the first value")),
            new Row(1_700_000_000_000L, utf8("key-2"), utf8("the second value")),
            new Row(1_700_000_000_063L, utf8("key-3"), utf8("v".repeat(63))),
            new Row(1_700_000_000_064L, utf8("key-4"), utf8("v".repeat(64))),
            new Row(1_700_000_008_192L, utf8("k".repeat(64)), utf8("v".repeat(8192)))));
        cases.put("nulls", List.of(
            new Row(0, null, null),
            new Row(0, utf8(""), null),
            new Row(0, null, utf8("")),
            new Row(0, utf8(""), utf8(""))));
        cases.put("headers", List.of(
            new Row(5, utf8("k"), utf8("v"), header("name", "value")),
            new Row(6, utf8("k"), utf8("v"), header("same", "1"), header("same", "2"), header("same", null)),
            new Row(7, utf8("k"), utf8("v")),
            new Row(8, null, null, header("", ""), header("größe \uD83D\uDCCF", "x".repeat(100)))));
        cases.put("timestamps", List.of(
            new Row(1_700_000_000_000L, null, utf8("base")),
            new Row(1_699_999_999_999L, null, utf8("one earlier")),
            new Row(0, null, utf8("1970")),
            new Row(1_700_000_000_001L, null, utf8("latest but one")),
            new Row(253_402_300_799_999L, null, utf8("the year 9999")),
            new Row(1_700_000_000_000L, null, utf8("base again"))));
        List<Row> many = new ArrayList<>();
        for (int i = 0; i < 70; i++)
            many.add(new Row(1000 + i, utf8("k" + i), utf8("v" + i)));
        cases.put("offset deltas of two bytes", many);
        return cases;
    }

    static List<Row> severalBlocks() {
        List<Row> rows = new ArrayList<>();
        for (int i = 0; i < 8; i++)
            rows.add(new Row(i, utf8("k" + i), utf8("abcdefgh".repeat(5000))));
        return rows;
    }

    static void batch(String kind, String codecName, Compression codec, List<Row> rows) {
        MemoryRecordsBuilder builder = MemoryRecords.builder(ByteBuffer.allocate(1 << 20),
            RecordBatch.CURRENT_MAGIC_VALUE, codec, TimestampType.CREATE_TIME, 0L, RecordBatch.NO_TIMESTAMP,
            4711L, (short) 7, 2_147_483_600, true, false, RecordBatch.NO_PARTITION_LEADER_EPOCH);
        rows.forEach(row -> builder.append(row.timestamp, row.key, row.value, row.headers));
        add(kind, codecName, builder.build(), rows);
    }

    static void logAppendTime() {
        List<Row> rows = cases().get("plain");
        MemoryRecordsBuilder builder = MemoryRecords.builder(ByteBuffer.allocate(1 << 20),
            RecordBatch.CURRENT_MAGIC_VALUE, Compression.NONE, TimestampType.LOG_APPEND_TIME, 1000L,
            1_800_000_000_000L, RecordBatch.NO_PRODUCER_ID, RecordBatch.NO_PRODUCER_EPOCH,
            RecordBatch.NO_SEQUENCE, false, false, 3);
        rows.forEach(row -> builder.append(row.timestamp, row.key, row.value, row.headers));
        add("log append time", "none", builder.build(), rows);
    }

    static void control(String kind, ControlRecordType type) {
        add(kind, "none", MemoryRecords.withEndTransactionMarker(77L, 1_700_000_000_000L, 5, 4711L, (short) 7,
            new EndTransactionMarker(type, 12)), List.of());
    }

    static void add(String kind, String codecName, MemoryRecords records, List<Row> rows) {
        byte[] bytes = new byte[records.buffer().remaining()];
        records.buffer().duplicate().get(bytes);
        List<Map<String, Object>> described = new ArrayList<>();
        for (Row row : rows) {
            List<List<String>> headers = new ArrayList<>();
            for (Header header : row.headers) {
                List<String> pair = new ArrayList<>();
                pair.add(hex(utf8(header.key())));
                pair.add(hex(header.value()));
                headers.add(pair);
            }
            Map<String, Object> fields = new LinkedHashMap<>();
            fields.put("timestamp", row.timestamp);
            fields.put("key", described(row.key));
            fields.put("value", described(row.value));
            fields.put("headers", headers);
            described.add(fields);
        }
        Map<String, Object> batch = new LinkedHashMap<>();
        batch.put("kind", kind);
        batch.put("compression", codecName);
        batch.put("records", described);
        batch.put("batch", hex(bytes));
        BATCHES.add(batch);
    }

    static Map<String, Object> partitions() {
        List<byte[]> keys = new ArrayList<>();
        StringBuilder letters = new StringBuilder();
        for (int length = 0; length <= 40; length++) {
            keys.add(utf8(letters.toString()));
            letters.append((char) ('a' + length % 26));
        }
        for (String key : List.of("21", "foobar", "größe", "ключ", "鍵", "\uD83D\uDD11", "a-little-bit-long-string"))
            keys.add(utf8(key));
        for (int i = 0; i < 20; i++) {
            byte[] key = new byte[i];
            java.util.Arrays.fill(key, (byte) (0x80 + 5 * i));
            keys.add(key);
        }
        List<Map<String, Object>> table = new ArrayList<>();
        int[] counts = {1, 2, 3, 7, 12, 100, 1000};
        for (byte[] key : keys) {
            List<Integer> chosen = new ArrayList<>();
            for (int count : counts)
                chosen.add(BuiltInPartitioner.partitionForKey(key, count));
            Map<String, Object> row = new LinkedHashMap<>();
            row.put("key", hex(key));
            row.put("murmur2", Utils.murmur2(key));
            row.put("partitions", chosen);
            table.add(row);
        }
        Map<String, Object> result = new LinkedHashMap<>();
        result.put("partition_counts", counts);
        result.put("keys", table);
        return result;
    }

    static Header header(String key, String value) {
        return new RecordHeader(key, value == null ? null : utf8(value));
    }

    static byte[] utf8(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    static String hex(byte[] bytes) {
        return bytes == null ? null : HexFormat.of().formatHex(bytes);
    }

    /** Long repetitions are told as [hex of 8 bytes, how often], to keep the file small. */
    static Object described(byte[] bytes) {
        if (bytes == null || bytes.length < 1000)
            return hex(bytes);
        return List.of(hex(java.util.Arrays.copyOf(bytes, 8)), bytes.length / 8);
    }

    static void write(Path file, Object content) throws Exception {
        ObjectMapper mapper = new ObjectMapper().enable(SerializationFeature.INDENT_OUTPUT);
        Files.writeString(file, mapper.writeValueAsString(content) + "\n");
    }
}
