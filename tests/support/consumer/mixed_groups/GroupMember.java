import java.time.Duration;
import java.util.Collection;
import java.util.List;
import java.util.Properties;
import java.util.TreeMap;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.UnknownMemberIdException;
import org.apache.kafka.common.errors.WakeupException;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * A member of a mixed group, which SIGTERM ends. It writes the lines that `member_log.py` describes.
 *
 * Arguments: the topic, the seconds after which to stall once, the seconds of that, and settings of
 * the form name=value.
 */
public class GroupMember implements ConsumerRebalanceListener {
    private final KafkaConsumer<String, String> consumer;
    private volatile boolean isEnded = false;

    GroupMember(Properties settings) {
        consumer = new KafkaConsumer<>(settings);
    }

    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.put("key.deserializer", StringDeserializer.class.getName());
        settings.put("value.deserializer", StringDeserializer.class.getName());
        settings.put("enable.auto.commit", "false");
        for (int i = 3; i < arguments.length; i++) {
            String[] setting = arguments[i].split("=", 2);
            settings.put(setting[0], setting[1]);
        }
        GroupMember member = new GroupMember(settings);
        Thread main = Thread.currentThread();
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            member.isEnded = true;
            member.consumer.wakeup();
            try {
                main.join();
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
            }
        }));
        double stallAfter = Double.parseDouble(arguments[1]);
        member.run(arguments[0], stallAfter, Double.parseDouble(arguments[2]));
    }

    private void run(String topic, double stallAfter, double stallSeconds) throws Exception {
        long started = System.nanoTime();
        boolean stalls = true;
        consumer.subscribe(List.of(topic), this);
        try {
            while (!isEnded) {
                var numbers = new TreeMap<Integer, StringBuilder>();
                for (ConsumerRecord<String, String> record : poll()) {
                    var list = numbers.computeIfAbsent(record.partition(), it -> new StringBuilder());
                    list.append(list.length() == 0 ? "" : ",").append(record.value());
                }
                int generation = consumer.groupMetadata().generationId();
                numbers.forEach((partition, list) -> write("records", "\"partition\": " + partition
                    + ", \"generation\": " + generation + ", \"numbers\": [" + list + "]"));
                if (stalls && System.nanoTime() - started > stallAfter * 1e9) {
                    stalls = false;
                    write("stalled", "\"seconds\": " + stallSeconds);
                    Thread.sleep((long) (stallSeconds * 1000));
                }
                commit();
            }
        } catch (WakeupException e) {
            // It ends.
        } finally {
            consumer.close();
        }
        write("closed", "\"error\": null");
    }

    private ConsumerRecords<String, String> poll() {
        try {
            return consumer.poll(Duration.ofMillis(200));
        } catch (UnknownMemberIdException e) {
            // With the new protocol, a member that has stalled may look up its offsets before it
            // hears that it is out. Then it has joined again by the next poll.
            write("poll_failed", "\"error\": \"" + e.getClass().getSimpleName() + "\"");
            return ConsumerRecords.empty();
        }
    }

    private void commit() {
        try {
            consumer.commitSync();
        } catch (WakeupException e) {
            throw e;
        } catch (KafkaException e) {
            write("commit_failed", "\"error\": \"" + e.getClass().getSimpleName() + "\"");
        }
    }

    private void write(String what, String details) {
        double at = System.nanoTime() / 1e9;
        System.out.println("{\"event\": \"" + what + "\", \"at\": " + at + ", " + details + "}");
        System.out.flush();
    }

    private void writePartitions(String what, Collection<TopicPartition> partitions) {
        String list = partitions.stream().map(it -> Integer.toString(it.partition()))
            .collect(Collectors.joining(", "));
        write(what, "\"partitions\": [" + list + "], \"generation\": "
            + consumer.groupMetadata().generationId());
    }

    @Override
    public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
        writePartitions("assigned", consumer.assignment());
    }

    @Override
    public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
        writePartitions("revoked", partitions);
    }

    @Override
    public void onPartitionsLost(Collection<TopicPartition> partitions) {
        writePartitions("lost", partitions);
    }
}
