import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.math.BigInteger;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.avro.LogicalTypes;
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericData;
import org.apache.avro.generic.GenericDatumReader;
import org.apache.avro.generic.GenericFixed;
import org.apache.avro.generic.GenericRecord;
import org.apache.avro.io.BinaryDecoder;
import org.apache.avro.io.DecoderFactory;
import org.apache.spark.sql.avro.SchemaConverters;

/**
 * Asks Java's Avro, and Spark's schema converter.
 *
 * <p>"rows" reads cases, three lines each: the writer's schema, the reader's, payloads in hex with a
 * blank between them. It writes a line for each case: what GenericDatumReader makes of each payload,
 * separated by tabs, or "!" and a class where it fails; only "!" and a class if a schema is invalid.
 *
 * <p>"types" reads a schema in each line, and writes the JSON of its type in Spark, or "!" and a
 * class.
 */
public class AvroOracle {
  public static void main(String[] arguments) throws Exception {
    BufferedReader in =
        new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
    boolean isRows = arguments[0].equals("rows");
    for (String line = in.readLine(); line != null; line = in.readLine()) {
      out.println(isRows ? answer(line, in.readLine(), in.readLine()) : type(line));
    }
    out.flush();
  }

  private static String type(String text) {
    try {
      SchemaConverters.SchemaType type =
          SchemaConverters.toSqlType(new Schema.Parser().parse(text));
      return type.dataType().json() + " " + type.nullable();
    } catch (Exception e) {
      return "!" + e.getClass().getSimpleName();
    }
  }

  private static String answer(String writerText, String readerText, String payloads) {
    Schema writer;
    Schema reader;
    try {
      writer = new Schema.Parser().parse(writerText);
      reader = new Schema.Parser().parse(readerText);
    } catch (Exception e) {
      return "!" + e.getClass().getSimpleName();
    }
    List<String> rows = new ArrayList<>();
    for (String payload : payloads.split(" ", -1)) {
      rows.add(row(writer, reader, HexFormat.of().parseHex(payload)));
    }
    return String.join("\t", rows);
  }

  private static String row(Schema writer, Schema reader, byte[] payload) {
    try {
      BinaryDecoder decoder = DecoderFactory.get().binaryDecoder(payload, null);
      Object value = new GenericDatumReader<>(writer, reader).read(null, decoder);
      return decoder.isEnd() ? show(reader, value) : "!left over";
    } catch (Exception e) {
      return "!" + e.getClass().getSimpleName();
    }
  }

  private static String show(Schema schema, Object value) {
    switch (schema.getType()) {
      case NULL:
        return "null";
      case INT:
        return value.toString();
      case LONG:
        BigInteger number = BigInteger.valueOf((Long) value);
        boolean inMillis =
            schema.getLogicalType() instanceof LogicalTypes.TimestampMillis
                || schema.getLogicalType() instanceof LogicalTypes.LocalTimestampMillis;
        return (inMillis ? number.multiply(BigInteger.valueOf(1000)) : number).toString();
      case BOOLEAN:
        return value.toString();
      case FLOAT:
        return "f" + Integer.toHexString(Float.floatToIntBits((Float) value));
      case DOUBLE:
        return "d" + Long.toHexString(Double.doubleToLongBits(((Number) value).doubleValue()));
      case STRING:
      case ENUM:
        return "'" + hex(value.toString().getBytes(StandardCharsets.UTF_8)) + "'";
      case BYTES:
        ByteBuffer buffer = ((ByteBuffer) value).duplicate();
        byte[] bytes = new byte[buffer.remaining()];
        buffer.get(bytes);
        return bytes(schema, bytes);
      case FIXED:
        return bytes(schema, ((GenericFixed) value).bytes());
      case ARRAY:
        List<String> items = new ArrayList<>();
        for (Object item : (List<?>) value) {
          items.add(show(schema.getElementType(), item));
        }
        return items.toString();
      case MAP:
        Map<String, String> values = new TreeMap<>();
        for (Map.Entry<?, ?> entry : ((Map<?, ?>) value).entrySet()) {
          String key = hex(entry.getKey().toString().getBytes(StandardCharsets.UTF_8));
          values.put(key, show(schema.getValueType(), entry.getValue()));
        }
        return values.toString();
      case RECORD:
        List<String> fields = new ArrayList<>();
        for (Schema.Field field : schema.getFields()) {
          fields.add(show(field.schema(), ((GenericRecord) value).get(field.pos())));
        }
        return "(" + String.join(", ", fields) + ")";
      case UNION:
        return branch(schema, value);
      default:
        throw new IllegalArgumentException(schema.toString());
    }
  }

  private static String bytes(Schema schema, byte[] bytes) {
    boolean isDecimal = schema.getLogicalType() instanceof LogicalTypes.Decimal;
    return isDecimal
        ? (bytes.length == 0 ? "0" : new BigInteger(bytes).toString())
        : "x" + hex(bytes);
  }

  private static String branch(Schema union, Object value) {
    int branch = GenericData.get().resolveUnion(union, value);
    Schema schema = union.getTypes().get(branch);
    if (schema.getType() == Schema.Type.NULL) {
      return "null";
    }
    List<Schema> others = new ArrayList<>();
    for (Schema other : union.getTypes()) {
      if (other.getType() != Schema.Type.NULL) {
        others.add(other);
      }
    }
    if (are(others, Schema.Type.INT, Schema.Type.LONG)) {
      return value.toString();
    }
    if (others.size() == 1) {
      return show(schema, value);
    }
    if (are(others, Schema.Type.FLOAT, Schema.Type.DOUBLE)) {
      return "d" + Long.toHexString(Double.doubleToLongBits(((Number) value).doubleValue()));
    }
    return others.indexOf(schema) + ":" + show(schema, value);
  }

  private static boolean are(List<Schema> schemas, Schema.Type one, Schema.Type other) {
    if (schemas.size() != 2) {
      return false;
    }
    Schema.Type first = schemas.get(0).getType();
    Schema.Type second = schemas.get(1).getType();
    return (first == one && second == other) || (first == other && second == one);
  }

  private static String hex(byte[] bytes) {
    return HexFormat.of().formatHex(bytes);
  }
}
