// Writes java_utf8.json, with which the tests compare: what `new String(bytes, UTF_8)` makes of
// bytes that are mostly not UTF-8, encoded again. Run by hand, with Java 17:
//
//     java Utf8Goldens.java OUTPUT-DIRECTORY

import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.Random;

public class Utf8Goldens {
    // The bytes at which the rules of UTF-8 change.
    static final byte[] BYTES = HexFormat.of().parseHex(
        "00417f808f909fa0bfc0c1c2dfe0e1ecedeeeff0f1f3f4f5f7f8ff");

    public static void main(String[] arguments) throws Exception {
        List<String> cases = new ArrayList<>();
        for (byte first : BYTES) {
            add(cases, first);
            for (byte second : BYTES) {
                add(cases, first, second);
            }
        }
        Random random = new Random(1);
        for (int number = 0; number < 3000; number++) {
            byte[] bytes = new byte[3 + random.nextInt(6)];
            for (int index = 0; index < bytes.length; index++) {
                bytes[index] = BYTES[random.nextInt(BYTES.length)];
            }
            add(cases, bytes);
        }
        for (String valid : List.of("größe", "\uD83D\uDCCF", "漢字", "a\u0000b", "\uFFFD\uFFFF")) {
            byte[] bytes = valid.getBytes(StandardCharsets.UTF_8);
            for (int length = 1; length <= bytes.length; length++) {
                add(cases, java.util.Arrays.copyOf(bytes, length));
            }
        }
        String json = "[\n" + String.join(",\n", cases) + "\n]\n";
        Files.writeString(Path.of(arguments[0]).resolve("java_utf8.json"), json);
    }

    static void add(List<String> cases, byte... bytes) {
        String decoded = new String(bytes, StandardCharsets.UTF_8);
        HexFormat hex = HexFormat.of();
        cases.add("[\"" + hex.formatHex(bytes) + "\", \""
            + hex.formatHex(decoded.getBytes(StandardCharsets.UTF_8)) + "\"]");
    }
}
