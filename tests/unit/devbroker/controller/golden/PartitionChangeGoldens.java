// Writes partition_changes.json, with which the tests compare: what Kafka's own
// PartitionChangeBuilder makes of random partitions and wishes. Run by hand, with Kafka 4.3.1:
//
//     java -cp 'DIRECTORY-OF-KAFKA-JARS/*' PartitionChangeGoldens.java OUTPUT-DIRECTORY
//
// Each case goes on with the partition that the one before it has left, so that the states are such
// as really follow each other. Now and then a new partition begins.

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Random;
import java.util.TreeSet;

import com.fasterxml.jackson.databind.ObjectMapper;

import org.apache.kafka.common.DirectoryId;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.metadata.PartitionChangeRecord;
import org.apache.kafka.controller.PartitionChangeBuilder;
import org.apache.kafka.controller.PartitionChangeBuilder.Election;
import org.apache.kafka.metadata.LeaderRecoveryState;
import org.apache.kafka.metadata.PartitionRegistration;
import org.apache.kafka.metadata.Replicas;
import org.apache.kafka.server.common.ApiMessageAndVersion;
import org.apache.kafka.server.common.MetadataVersion;

public class PartitionChangeGoldens {
    private static final int CASES = 300;
    private static final Random RANDOM = new Random(11);

    public static void main(String[] arguments) throws Exception {
        ObjectMapper mapper = new ObjectMapper();
        StringBuilder lines = new StringBuilder("[");
        PartitionRegistration partition = null;
        for (int i = 0; i < CASES; i++) {
            if (i % 30 == 0) {
                partition = begin();
            }
            Map<String, Object> golden = new LinkedHashMap<>();
            golden.put("partition", state(partition));
            Optional<ApiMessageAndVersion> change = change(partition, golden);
            Map<String, Object> changes = new LinkedHashMap<>();
            if (change.isPresent()) {
                PartitionChangeRecord record = (PartitionChangeRecord) change.get().message();
                if (record.leader() != -2) changes.put("leader", record.leader());
                put(changes, "isr", record.isr());
                put(changes, "replicas", record.replicas());
                put(changes, "adding", record.addingReplicas());
                put(changes, "removing", record.removingReplicas());
                put(changes, "elr", record.eligibleLeaderReplicas());
                put(changes, "last_known_elr", record.lastKnownElr());
                if (record.leaderRecoveryState() != -1) {
                    changes.put("leader_recovery_state", record.leaderRecoveryState());
                }
                partition = partition.merge(record);
            }
            golden.put("changes", changes);
            golden.put("epochs", List.of(partition.leaderEpoch, partition.partitionEpoch));
            lines.append(i == 0 ? "\n" : ",\n").append(mapper.writeValueAsString(golden));
        }
        Files.writeString(Path.of(arguments[0], "partition_changes.json"), lines + "\n]\n");
    }

    private static void put(Map<String, Object> changes, String name, List<Integer> value) {
        if (value != null) changes.put(name, value);
    }

    private static PartitionRegistration begin() {
        int[] replicas = Replicas.toArray(some(1 + RANDOM.nextInt(3)));
        return new PartitionRegistration.Builder().
            setReplicas(replicas).
            setDirectories(DirectoryId.migratingArray(replicas.length)).
            setIsr(replicas).
            setLeader(replicas[0]).
            setLeaderRecoveryState(LeaderRecoveryState.RECOVERED).
            setLeaderEpoch(0).
            setPartitionEpoch(0).
            build();
    }

    private static Map<String, Object> state(PartitionRegistration partition) {
        Map<String, Object> state = new LinkedHashMap<>();
        state.put("replicas", partition.replicas);
        state.put("isr", partition.isr);
        state.put("leader", partition.leader);
        state.put("adding", partition.addingReplicas);
        state.put("removing", partition.removingReplicas);
        state.put("elr", partition.elr);
        state.put("last_known_elr", partition.lastKnownElr);
        state.put("leader_recovery_state", partition.leaderRecoveryState.value());
        state.put("leader_epoch", partition.leaderEpoch);
        state.put("partition_epoch", partition.partitionEpoch);
        return state;
    }

    private static Optional<ApiMessageAndVersion> change(
        PartitionRegistration partition, Map<String, Object> golden
    ) {
        TreeSet<Integer> alive = new TreeSet<>(some(RANDOM.nextInt(6)));
        int minIsr = 1 + RANDOM.nextInt(3);
        Election election = Election.values()[RANDOM.nextInt(3)];
        golden.put("alive", alive);
        golden.put("min_isr", minIsr);
        golden.put("election", election.name());
        PartitionChangeBuilder builder = new PartitionChangeBuilder(
            partition, Uuid.ONE_UUID, 0, alive::contains, MetadataVersion.latestProduction(), minIsr, true
        ).setElection(election).setDefaultDirProvider(broker -> DirectoryId.MIGRATING);
        Map<String, Object> target = new LinkedHashMap<>();
        golden.put("target", target);
        switch (RANDOM.nextInt(6)) {
            case 0, 1 -> {
                // Brokers are gone, as those that are not alive.
                List<Integer> isr = new ArrayList<>(Replicas.toList(partition.isr));
                isr.retainAll(alive);
                target.put("isr", isr);
                builder.setTargetIsr(isr);
            }
            case 2 -> {
                // Replicas have caught up, or lag.
                List<Integer> isr = new ArrayList<>(Replicas.toList(partition.replicas));
                isr.removeIf(each -> each != partition.leader && RANDOM.nextInt(3) == 0);
                target.put("isr", isr);
                builder.setTargetIsr(isr);
                if (RANDOM.nextBoolean()) {
                    target.put("leader_recovery_state", LeaderRecoveryState.RECOVERED.value());
                    builder.setTargetLeaderRecoveryState(LeaderRecoveryState.RECOVERED);
                }
            }
            case 3 -> {
                // A broker has lost its last records.
                int broker = 1 + RANDOM.nextInt(5);
                List<Integer> isr = new ArrayList<>(Replicas.toList(partition.isr));
                isr.remove((Integer) broker);
                target.put("isr", isr);
                target.put("unclean_shutdowns", List.of(broker));
                builder.setTargetIsr(isr);
                builder.setUncleanShutdownReplicas(List.of(broker));
            }
            case 4 -> {
                List<Integer> wanted = some(1 + RANDOM.nextInt(3));
                TreeSet<Integer> removing = new TreeSet<>(Replicas.toList(partition.replicas));
                removing.removeAll(wanted);
                TreeSet<Integer> adding = new TreeSet<>(wanted);
                adding.removeAll(Replicas.toList(partition.replicas));
                List<Integer> replicas = new ArrayList<>(wanted);
                replicas.addAll(removing);
                target.put("replicas", replicas);
                target.put("adding", adding);
                target.put("removing", removing);
                builder.setTargetReplicas(replicas);
                builder.setTargetAdding(new ArrayList<>(adding));
                builder.setTargetRemoving(new ArrayList<>(removing));
            }
            default -> { }
        }
        return builder.build();
    }

    private static List<Integer> some(int count) {
        List<Integer> brokers = new ArrayList<>(Arrays.asList(1, 2, 3, 4, 5));
        Collections.shuffle(brokers, RANDOM);
        return new ArrayList<>(brokers.subList(0, Math.min(count, brokers.size())));
    }
}
