// Writes java_metrics.json, with which the tests compare: which metrics Kafka's own Java producer
// has, and what its statistics say of given series of values. Run by hand, with Kafka 4.3.1:
//
//     java -cp 'DIRECTORY-OF-KAFKA-JARS/*' MetricsGoldens.java OUTPUT-DIRECTORY
//
// "names" are those of a producer that has opened a connection (to a port here that never answers),
// with those of the topic templates. A series is a list of steps in order, each either a value
// recorded at a time or a reading of all statistics at a time. Times are whole multiples of 125 ms,
// which binary floating point holds exactly.

import java.net.ServerSocket;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.TimeUnit;

import com.fasterxml.jackson.databind.ObjectMapper;

import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.internals.SenderMetricsRegistry;
import org.apache.kafka.common.MetricName;
import org.apache.kafka.common.MetricNameTemplate;
import org.apache.kafka.common.metrics.KafkaMetric;
import org.apache.kafka.common.metrics.MetricConfig;
import org.apache.kafka.common.metrics.Metrics;
import org.apache.kafka.common.metrics.Sensor;
import org.apache.kafka.common.metrics.stats.Avg;
import org.apache.kafka.common.metrics.stats.Max;
import org.apache.kafka.common.metrics.stats.Meter;
import org.apache.kafka.common.metrics.stats.WindowedCount;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.common.utils.Timer;

public class MetricsGoldens {
    private static final long QUANTUM_MS = 125;

    public static void main(String[] args) throws Exception {
        Map<String, Object> goldens = new LinkedHashMap<>();
        goldens.put("names", names());
        List<Object> series = new ArrayList<>();
        Random random = new Random(20260101);
        for (int number = 0; number < 24; number++)
            series.add(series(random, 1 + number % 4, 1000L << (number % 3)));
        goldens.put("series", series);
        new ObjectMapper().writeValue(Path.of(args[0], "java_metrics.json").toFile(), goldens);
        System.exit(0);
    }

    private static List<Object> names() throws Exception {
        TreeSet<String> found = new TreeSet<>();
        try (ServerSocket silent = new ServerSocket(0)) {
            Map<String, Object> settings = Map.of(
                "bootstrap.servers", "127.0.0.1:" + silent.getLocalPort(), "client.id", "golden");
            KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(
                settings, new ByteArraySerializer(), new ByteArraySerializer());
            silent.accept();
            Thread.sleep(1000);
            for (MetricName name : producer.metrics().keySet())
                found.add(row(name.group(), name.name(), new TreeSet<>(name.tags().keySet())));
        }
        Metrics metrics = new Metrics(new MetricConfig().tags(Map.of("client-id", "golden")));
        for (MetricNameTemplate name : new SenderMetricsRegistry(metrics).allTemplates())
            found.add(row(name.group(), name.name(), new TreeSet<>(name.tags())));
        return new ArrayList<>(found);
    }

    private static String row(String group, String name, TreeSet<String> tags) {
        return group + " " + name + " " + String.join(",", tags);
    }

    private static Map<String, Object> series(Random random, int samples, long windowMs) {
        SettableTime time = new SettableTime();
        Metrics metrics = new Metrics(
            new MetricConfig().samples(samples).timeWindow(windowMs, TimeUnit.MILLISECONDS), time);
        Sensor sensor = metrics.sensor("values");
        Map<String, MetricName> names = new TreeMap<>();
        for (String name : List.of("avg", "max", "rate", "total", "ns-rate", "ns-total"))
            names.put(name, metrics.metricName(name, "values"));
        sensor.add(names.get("avg"), new Avg());
        sensor.add(names.get("max"), new Max());
        sensor.add(new Meter(names.get("rate"), names.get("total")));
        sensor.add(new Meter(TimeUnit.NANOSECONDS, names.get("ns-rate"), names.get("ns-total")));
        Sensor counted = metrics.sensor("events");
        for (String name : List.of("count-rate", "count-total"))
            names.put(name, metrics.metricName(name, "values"));
        counted.add(new Meter(new WindowedCount(), names.get("count-rate"), names.get("count-total")));
        List<Object> steps = new ArrayList<>();
        for (int step = 0; step < 40; step++) {
            // Mostly within a window, now and then past all of them.
            long quanta = random.nextInt(10) == 0
                ? random.nextInt((int) ((samples + 2) * windowMs / QUANTUM_MS))
                : random.nextInt((int) (windowMs / QUANTUM_MS / 2));
            time.nowMs += quanta * QUANTUM_MS;
            Map<String, Object> row = new LinkedHashMap<>();
            row.put("ms", time.nowMs);
            // The first is a value: what a reading before it does is told in metrics/sensor.py.
            if (step == 0 || random.nextInt(3) > 0) {
                double value = random.nextInt(2001) - 1000;
                sensor.record(value);
                counted.record(value);
                row.put("record", value);
            } else {
                Map<String, Object> read = new TreeMap<>();
                for (Map.Entry<String, MetricName> name : names.entrySet()) {
                    KafkaMetric metric = metrics.metric(name.getValue());
                    double value = (double) metric.metricValue();
                    read.put(name.getKey(), Double.isNaN(value) ? null : value);
                }
                row.put("read", read);
            }
            steps.add(row);
        }
        Map<String, Object> made = new LinkedHashMap<>();
        made.put("samples", samples);
        made.put("window_ms", windowMs);
        made.put("steps", steps);
        return made;
    }

    private static final class SettableTime implements Time {
        long nowMs = 1_000_000;

        @Override
        public long milliseconds() {
            return nowMs;
        }

        @Override
        public long nanoseconds() {
            return TimeUnit.MILLISECONDS.toNanos(nowMs);
        }

        @Override
        public void sleep(long ms) {
            nowMs += ms;
        }

        @Override
        public void waitObject(
                Object object, java.util.function.Supplier<Boolean> condition, long deadlineMs) {
            throw new UnsupportedOperationException("nothing waits here");
        }

        @Override
        public Timer timer(long timeoutMs) {
            return Time.super.timer(timeoutMs);
        }
    }
}
