import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import org.apache.avro.NameValidator;
import org.apache.avro.Schema;
import org.apache.avro.SchemaCompatibility;
import org.apache.avro.SchemaCompatibility.Incompatibility;

/**
 * Asks Java's Avro about schemas.
 *
 * <p>"compatibility" reads cases, two lines each: the reader's schema and the writer's. It writes a
 * line for each: the incompatibilities, separated by tabs, each with type, location and message,
 * separated by blanks.
 *
 * <p>"texts" reads a schema in each line, and writes its text as Java prints it, or "!" if it is
 * invalid. The names and the defaults are checked, as a registry checks those of new schemas.
 */
public class SchemaOracle {
  public static void main(String[] arguments) throws Exception {
    BufferedReader in =
        new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
    boolean isTexts = arguments[0].equals("texts");
    for (String line = in.readLine(); line != null; line = in.readLine()) {
      out.println(isTexts ? text(line) : incompatibilities(line, in.readLine()));
    }
    out.flush();
  }

  private static String text(String schema) {
    try {
      return new Schema.Parser(NameValidator.STRICT_VALIDATOR).parse(schema).toString();
    } catch (Exception e) {
      return "!" + e.getClass().getSimpleName();
    }
  }

  private static String incompatibilities(String readerText, String writerText) {
    try {
      Schema reader = new Schema.Parser().parse(readerText);
      Schema writer = new Schema.Parser().parse(writerText);
      List<String> found = new ArrayList<>();
      for (Incompatibility reason :
          SchemaCompatibility.checkReaderWriterCompatibility(reader, writer)
              .getResult()
              .getIncompatibilities()) {
        found.add(reason.getType() + " " + reason.getLocation() + " " + reason.getMessage());
      }
      return String.join("\t", found);
    } catch (Exception e) {
      return "!" + e.getClass().getSimpleName();
    }
  }
}
