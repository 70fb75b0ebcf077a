// Writes java_messages.json, with which the tests compare: the bytes that Kafka's own Java client
// makes of every version of the messages declared here. Run by hand, with Kafka 4.4.0:
//
//     java -cp 'DIRECTORY-OF-KAFKA-JARS/*' MessageGoldens.java OUTPUT-DIRECTORY
//
// Every field gets a value of its own (a counter), once with all optional parts there ("full"), once
// with none: null, empty, or the tag left out ("bare"). The bytes come from the Schema objects, and
// the message classes must read them and write the same again.

import java.nio.ByteBuffer;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

import com.fasterxml.jackson.databind.ObjectMapper;

import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.message.ApiMessageType;
import org.apache.kafka.common.message.RequestHeaderData;
import org.apache.kafka.common.message.ResponseHeaderData;
import org.apache.kafka.common.protocol.ApiKeys;
import org.apache.kafka.common.protocol.ApiMessage;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.ObjectSerializationCache;
import org.apache.kafka.common.protocol.types.BoundField;
import org.apache.kafka.common.protocol.types.Field;
import org.apache.kafka.common.protocol.types.Schema;
import org.apache.kafka.common.protocol.types.Struct;
import org.apache.kafka.common.protocol.types.TaggedFields;
import org.apache.kafka.common.protocol.types.Type;
import org.apache.kafka.common.record.internal.MemoryRecords;

public class MessageGoldens {
    private static int counter;
    private static boolean full;

    private record Filled(Object java, Object json) {}

    public static void main(String[] arguments) throws Exception {
        List<Map<String, Object>> goldens = new ArrayList<>();
        ApiKeys[] apis = {
            ApiKeys.PRODUCE, ApiKeys.FETCH, ApiKeys.LIST_OFFSETS, ApiKeys.METADATA,
            ApiKeys.FIND_COORDINATOR, ApiKeys.API_VERSIONS, ApiKeys.CREATE_TOPICS,
            ApiKeys.INIT_PRODUCER_ID, ApiKeys.ADD_PARTITIONS_TO_TXN, ApiKeys.ADD_OFFSETS_TO_TXN,
            ApiKeys.END_TXN, ApiKeys.TXN_OFFSET_COMMIT,
            ApiKeys.OFFSET_COMMIT, ApiKeys.OFFSET_FETCH, ApiKeys.JOIN_GROUP, ApiKeys.HEARTBEAT,
            ApiKeys.LEAVE_GROUP, ApiKeys.SYNC_GROUP, ApiKeys.DESCRIBE_GROUPS,
            ApiKeys.LIST_GROUPS, ApiKeys.DELETE_TOPICS, ApiKeys.DELETE_RECORDS,
            ApiKeys.OFFSET_FOR_LEADER_EPOCH, ApiKeys.DESCRIBE_CONFIGS,
            ApiKeys.CREATE_PARTITIONS, ApiKeys.DELETE_GROUPS, ApiKeys.INCREMENTAL_ALTER_CONFIGS,
            ApiKeys.DESCRIBE_CLUSTER, ApiKeys.DESCRIBE_PRODUCERS, ApiKeys.DESCRIBE_TRANSACTIONS,
            ApiKeys.LIST_TRANSACTIONS, ApiKeys.WRITE_TXN_MARKERS, ApiKeys.SASL_HANDSHAKE, ApiKeys.SASL_AUTHENTICATE,
            ApiKeys.DESCRIBE_ACLS, ApiKeys.CREATE_ACLS, ApiKeys.DELETE_ACLS,
            ApiKeys.OFFSET_DELETE, ApiKeys.CONSUMER_GROUP_DESCRIBE,
            ApiKeys.CONSUMER_GROUP_HEARTBEAT, ApiKeys.ALTER_PARTITION,
            ApiKeys.BROKER_REGISTRATION, ApiKeys.BROKER_HEARTBEAT, ApiKeys.ALLOCATE_PRODUCER_IDS,
            ApiKeys.ALTER_CONFIGS, ApiKeys.ALTER_REPLICA_LOG_DIRS,
            ApiKeys.DESCRIBE_LOG_DIRS, ApiKeys.ELECT_LEADERS,
            ApiKeys.ALTER_PARTITION_REASSIGNMENTS, ApiKeys.LIST_PARTITION_REASSIGNMENTS,
            ApiKeys.DESCRIBE_QUORUM, ApiKeys.LIST_CONFIG_RESOURCES,
            ApiKeys.DESCRIBE_TOPIC_PARTITIONS,
            ApiKeys.DESCRIBE_USER_SCRAM_CREDENTIALS, ApiKeys.ALTER_USER_SCRAM_CREDENTIALS,
            ApiKeys.DESCRIBE_CLIENT_QUOTAS, ApiKeys.ALTER_CLIENT_QUOTAS,
        };
        for (ApiKeys api : apis) {
            ApiMessageType type = api.messageType;
            for (short version = api.oldestVersion(); version <= api.latestVersion(true); version++) {
                add(goldens, api.name(), "request", version, type.requestSchemas()[version], type.newRequest());
                add(goldens, api.name(), "response", version, type.responseSchemas()[version], type.newResponse());
            }
        }
        for (short version = 1; version <= 2; version++) {
            add(goldens, "", "request header", version, RequestHeaderData.SCHEMAS[version], new RequestHeaderData());
        }
        for (short version = 0; version <= 1; version++) {
            add(goldens, "", "response header", version, ResponseHeaderData.SCHEMAS[version], new ResponseHeaderData());
        }
        StringBuilder lines = new StringBuilder("[");
        ObjectMapper mapper = new ObjectMapper();
        for (Map<String, Object> golden : goldens) {
            lines.append(lines.length() == 1 ? "\n" : ",\n").append(mapper.writeValueAsString(golden));
        }
        java.nio.file.Files.writeString(Path.of(arguments[0], "java_messages.json"), lines + "\n]\n");
    }

    private static void add(
        List<Map<String, Object>> goldens, String api, String kind, short version, Schema schema, ApiMessage message
    ) {
        for (boolean variant : new boolean[] {true, false}) {
            full = variant;
            counter = 0;
            Filled filled = fill(schema, "");
            ByteBuffer bytes = ByteBuffer.allocate(schema.sizeOf(filled.java()));
            schema.write(bytes, filled.java());
            bytes.flip();
            String hex = HexFormat.of().formatHex(bytes.array());
            message.read(new ByteBufferAccessor(bytes), version);
            ObjectSerializationCache cache = new ObjectSerializationCache();
            ByteBuffer again = ByteBuffer.allocate(message.size(cache, version));
            message.write(new ByteBufferAccessor(again), cache, version);
            if (!hex.equals(HexFormat.of().formatHex(again.array()))) {
                throw new IllegalStateException(api + " " + kind + " " + version + ": schema and class differ");
            }
            Map<String, Object> golden = new LinkedHashMap<>();
            golden.put("api", api);
            golden.put("kind", kind);
            golden.put("version", version);
            golden.put("variant", full ? "full" : "bare");
            golden.put("hex", hex);
            golden.put("values", filled.json());
            goldens.add(golden);
        }
    }

    private static Filled fill(Type type, String name) {
        if (type instanceof Schema schema) {
            return fillStruct(schema);
        }
        if (type.isNullable() && !full) {
            return new Filled(null, null);
        }
        if (type.isArray()) {
            List<Object> elements = new ArrayList<>();
            List<Object> json = new ArrayList<>();
            for (int i = 0; full && i < 2; i++) {
                Filled element = fill(type.arrayElementType().get(), name);
                elements.add(element.java());
                json.add(element.json());
            }
            return new Filled(elements.toArray(), json);
        }
        counter++;
        String typeName = type.toString();
        switch (typeName) {
            case "BOOLEAN": return same(full);
            case "INT8": return same((byte) counter);
            case "INT16": return same((short) (counter * 0x0101));
            case "UINT16": return same(counter * 0x0101);
            case "INT32": return same(counter * 0x01010101);
            case "INT64": return same(counter * 0x0101010101010101L);
            case "FLOAT64": return same(counter + 0.5);
            case "UUID":
                Uuid uuid = new Uuid(counter * 0x0101010101010101L, counter);
                return new Filled(uuid, new java.util.UUID(uuid.getMostSignificantBits(), uuid.getLeastSignificantBits()).toString());
        }
        if (typeName.endsWith("BYTES")) {
            byte[] bytes = {(byte) 0xba, (byte) counter};
            return new Filled(ByteBuffer.wrap(bytes), HexFormat.of().formatHex(bytes));
        }
        if (typeName.endsWith("STRING")) {
            return same(name + "-\u00e9-" + counter);
        }
        if (typeName.endsWith("RECORDS")) {
            byte[] bytes = {(byte) 0xca, (byte) 0xfe, (byte) counter};
            return new Filled(MemoryRecords.readableRecords(ByteBuffer.wrap(bytes)), HexFormat.of().formatHex(bytes));
        }
        throw new IllegalStateException(typeName);
    }

    private static Filled same(Object value) {
        return new Filled(value, value);
    }

    private static Filled fillStruct(Schema schema) {
        Struct struct = new Struct(schema);
        Map<String, Object> json = new LinkedHashMap<>();
        for (BoundField bound : schema.fields()) {
            if (bound.def.type instanceof TaggedFields tagged) {
                Map<Integer, Object> values = new TreeMap<>();
                for (Map.Entry<Integer, Field> entry : full ? tagged.fields().entrySet() : Map.<Integer, Field>of().entrySet()) {
                    Filled filled = fill(entry.getValue().type, entry.getValue().name);
                    values.put(entry.getKey(), filled.java());
                    json.put(entry.getValue().name, filled.json());
                }
                struct.set(bound, values);
            } else {
                Filled filled = fill(bound.def.type, bound.def.name);
                struct.set(bound, filled.java());
                json.put(bound.def.name, filled.json());
            }
        }
        return new Filled(struct, json);
    }
}
