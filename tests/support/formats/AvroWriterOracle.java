import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.math.BigDecimal;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericData;
import org.apache.avro.generic.GenericDatumReader;
import org.apache.avro.generic.GenericDatumWriter;
import org.apache.avro.io.BinaryEncoder;
import org.apache.avro.io.DecoderFactory;
import org.apache.avro.io.EncoderFactory;
import org.apache.spark.sql.avro.AvroSerializer;
import org.apache.spark.sql.avro.SchemaConverters;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * Asks Java's Avro what it writes, and Spark's serializer and schema converter.
 *
 * <p>"rewrite" reads two lines for each case: a schema, and payloads in hex with a blank between
 * them. It writes what GenericDatumWriter makes of the values that GenericDatumReader reads.
 *
 * <p>"derive" reads the JSON of a type of Spark in each line, and writes the schema that Spark
 * derives for a record named topLevelRecord.
 *
 * <p>"serialize" reads a type's JSON, a schema and a value in each line, separated by tabs, and
 * writes the payload of Spark's serializer in hex. What fails is "!" and a class.
 */
public class AvroWriterOracle {
  public static void main(String[] arguments) throws Exception {
    BufferedReader in =
        new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
    for (String line = in.readLine(); line != null; line = in.readLine()) {
      switch (arguments[0]) {
        case "rewrite" -> out.println(rewrite(line, in.readLine()));
        case "derive" -> out.println(derive(line));
        default -> out.println(serialize(line.split("\t", -1)));
      }
    }
    out.flush();
  }

  private static String rewrite(String text, String payloads) throws IOException {
    Schema schema = new Schema.Parser().parse(text);
    GenericData data = new GenericData();
    // The other one does not ask for a map that keeps its order.
    data.setFastReaderEnabled(false);
    GenericDatumReader<Object> reader =
        new GenericDatumReader<>(schema, schema, data) {
          @Override
          protected Object newMap(Object old, int size) {
            return new LinkedHashMap<>();
          }
        };
    List<String> written = new ArrayList<>();
    for (String payload : payloads.split(" ", -1)) {
      byte[] bytes = HexFormat.of().parseHex(payload);
      written.add(write(schema, reader.read(null, DecoderFactory.get().binaryDecoder(bytes, null))));
    }
    return String.join(" ", written);
  }

  private static String write(Schema schema, Object value) throws IOException {
    ByteArrayOutputStream bytes = new ByteArrayOutputStream();
    BinaryEncoder encoder = EncoderFactory.get().binaryEncoder(bytes, null);
    new GenericDatumWriter<>(schema).write(value, encoder);
    encoder.flush();
    return HexFormat.of().formatHex(bytes.toByteArray());
  }

  private static String derive(String json) {
    try {
      return SchemaConverters.toAvroType(DataType.fromJson(json), false, "topLevelRecord", "")
          .toString();
    } catch (Exception e) {
      return "!" + e.getClass().getSimpleName();
    }
  }

  private static String serialize(String[] parts) {
    try {
      DataType type = DataType.fromJson(parts[0]);
      Schema schema = new Schema.Parser().parse(parts[1]);
      Object value = new AvroSerializer(type, schema, false).serialize(valueOf(type, parts[2]));
      return write(schema, value);
    } catch (Exception e) {
      return "!" + e.getClass().getSimpleName();
    }
  }

  private static Object valueOf(DataType type, String text) {
    String name = type.typeName();
    if (name.startsWith("decimal")) {
      return Decimal.apply(new BigDecimal(text));
    }
    return switch (name) {
      case "boolean" -> Boolean.valueOf(text);
      case "byte" -> Byte.valueOf(text);
      case "short" -> Short.valueOf(text);
      case "integer", "date" -> Integer.valueOf(text);
      case "float" -> Float.valueOf(text);
      case "double" -> Double.valueOf(text);
      case "string" -> UTF8String.fromString(text);
      case "binary" -> text.getBytes(StandardCharsets.UTF_8);
      default -> Long.valueOf(text);
    };
  }
}
