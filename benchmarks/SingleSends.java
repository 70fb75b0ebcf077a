// Sends records one at a time with Java's producer and prints how many nanoseconds each took until
// it was acknowledged: SingleSends BOOTSTRAP_SERVERS TOPIC WARM_UP COUNT BYTES

import java.util.Map;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

public class SingleSends {
    public static void main(String[] arguments) throws Exception {
        String topic = arguments[1];
        int warmUp = Integer.parseInt(arguments[2]);
        long[] nanoseconds = new long[Integer.parseInt(arguments[3])];
        byte[] value = new byte[Integer.parseInt(arguments[4])];
        Map<String, Object> config =
                Map.of("bootstrap.servers", arguments[0], "linger.ms", 0, "acks", "all");
        ByteArraySerializer bytes = new ByteArraySerializer();
        try (var producer = new KafkaProducer<>(config, bytes, bytes)) {
            for (int i = -warmUp; i < nanoseconds.length; i++) {
                long started = System.nanoTime();
                producer.send(new ProducerRecord<>(topic, value)).get();
                if (i >= 0) {
                    nanoseconds[i] = System.nanoTime() - started;
                }
            }
        }
        for (long each : nanoseconds) {
            System.out.println(each);
        }
    }
}
