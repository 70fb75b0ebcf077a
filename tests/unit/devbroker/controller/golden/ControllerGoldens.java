// Writes controller_events.json, with which the tests compare: how Kafka's own managers of brokers
// and replicas answer random events, and which state follows. Run by hand, with Kafka 4.3.1 (the
// classes are not public, so this one is in their package, and must be compiled first):
//
//     javac -cp 'DIRECTORY-OF-KAFKA-JARS/*' -d CLASSES ControllerGoldens.java
//     java -cp 'CLASSES:DIRECTORY-OF-KAFKA-JARS/*' org.apache.kafka.controller.ControllerGoldens OUTPUT-DIRECTORY

package org.apache.kafka.controller;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.OptionalLong;
import java.util.Random;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.function.Supplier;

import com.fasterxml.jackson.databind.ObjectMapper;

import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.message.AlterPartitionReassignmentsRequestData;
import org.apache.kafka.common.message.AlterPartitionReassignmentsRequestData.ReassignablePartition;
import org.apache.kafka.common.message.AlterPartitionReassignmentsRequestData.ReassignableTopic;
import org.apache.kafka.common.message.AlterPartitionRequestData;
import org.apache.kafka.common.message.BrokerHeartbeatRequestData;
import org.apache.kafka.common.message.BrokerRegistrationRequestData;
import org.apache.kafka.common.message.CreateTopicsRequestData;
import org.apache.kafka.common.message.ElectLeadersRequestData;
import org.apache.kafka.common.message.RequestHeaderData;
import org.apache.kafka.common.metadata.BrokerRegistrationChangeRecord;
import org.apache.kafka.common.metadata.ClearElrRecord;
import org.apache.kafka.common.metadata.ConfigRecord;
import org.apache.kafka.common.metadata.FeatureLevelRecord;
import org.apache.kafka.common.metadata.PartitionChangeRecord;
import org.apache.kafka.common.metadata.PartitionRecord;
import org.apache.kafka.common.metadata.RegisterBrokerRecord;
import org.apache.kafka.common.metadata.TopicRecord;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.security.auth.KafkaPrincipal;
import org.apache.kafka.common.utils.LogContext;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.controller.metrics.QuorumControllerMetrics;
import org.apache.kafka.metadata.BrokerHeartbeatReply;
import org.apache.kafka.metadata.BrokerRegistration;
import org.apache.kafka.metadata.BrokerRegistrationReply;
import org.apache.kafka.metadata.PartitionRegistration;
import org.apache.kafka.metadata.VersionRange;
import org.apache.kafka.metadata.placement.StripedReplicaPlacer;
import org.apache.kafka.server.common.ApiMessageAndVersion;
import org.apache.kafka.server.common.EligibleLeaderReplicasVersion;
import org.apache.kafka.server.common.MetadataVersion;
import org.apache.kafka.timeline.SnapshotRegistry;

public class ControllerGoldens {
    private static final int SCHEDULES = 12;
    private static final int EVENTS = 60;
    private static final int BROKERS = 4;
    private static final int PARTITIONS = 2;
    private static final long SECOND = 1_000_000_000L;

    private final Random random;
    private final Clock clock = new Clock();
    private final FeatureControlManager features;
    private final ConfigurationControlManager configs;
    private final ClusterControlManager cluster;
    private final ReplicationControlManager replication;
    private final Set<Integer> stopping = new TreeSet<>();
    private long end = 0;
    private long incarnation = 0;
    private Uuid topicId;

    private static class Clock implements Time {
        long nanos = 0;

        @Override
        public long milliseconds() {
            return nanos / 1_000_000;
        }

        @Override
        public long nanoseconds() {
            return nanos;
        }

        @Override
        public void sleep(long ms) {
            nanos += ms * 1_000_000;
        }

        @Override
        public void waitObject(Object object, Supplier<Boolean> condition, long deadlineMs) {
            throw new UnsupportedOperationException();
        }
    }

    public static void main(String[] arguments) throws Exception {
        ObjectMapper mapper = new ObjectMapper();
        StringBuilder lines = new StringBuilder("[");
        for (int seed = 0; seed < SCHEDULES; seed++) {
            ControllerGoldens goldens = new ControllerGoldens(seed);
            for (int i = 0; i < EVENTS + BROKERS * 2 + 1; i++) {
                Map<String, Object> golden = new TreeMap<>();
                golden.put("schedule", seed);
                try {
                    goldens.event(i, golden);
                } catch (RuntimeException error) {
                    if (Errors.forException(error) == Errors.UNKNOWN_SERVER_ERROR) {
                        throw error;
                    }
                    golden.put("error", Errors.forException(error).code());
                }
                if (Short.valueOf((short) -1).equals(golden.get("reply"))) {
                    // Kafka has failed by itself: a replica that is eligible, but not assigned any
                    // more, makes LeaderAcceptor throw. Nothing has changed.
                    continue;
                }
                golden.put("after", goldens.state());
                lines.append(lines.length() == 1 ? "\n" : ",\n").append(mapper.writeValueAsString(golden));
            }
        }
        Files.writeString(Path.of(arguments[0], "controller_events.json"), lines + "\n]\n");
    }

    private ControllerGoldens(int seed) {
        random = new Random(seed);
        SnapshotRegistry snapshots = new SnapshotRegistry(new LogContext());
        features = new FeatureControlManager.Builder().
            setSnapshotRegistry(snapshots).
            setQuorumFeatures(new QuorumFeatures(0, QuorumFeatures.defaultSupportedFeatureMap(true), List.of(0))).
            build();
        features.replay(level(MetadataVersion.FEATURE_NAME, MetadataVersion.latestProduction().featureLevel()));
        features.replay(level(EligibleLeaderReplicasVersion.FEATURE_NAME, (short) 1));
        configs = new ConfigurationControlManager.Builder().
            setSnapshotRegistry(snapshots).
            setFeatureControl(features).
            setKafkaConfigSchema(kafka.server.KafkaRaftServer.configSchema()).
            build();
        cluster = new ClusterControlManager.Builder().
            setClusterId("a-cluster").
            setTime(clock).
            setSnapshotRegistry(snapshots).
            setSessionTimeoutNs(9 * SECOND).
            setReplicaPlacer(new StripedReplicaPlacer(random)).
            setFeatureControlManager(features).
            setBrokerShutdownHandler(this::shutDown).
            setMetrics(new QuorumControllerMetrics(Optional.empty(), clock, 9000)).
            build();
        replication = new ReplicationControlManager.Builder().
            setSnapshotRegistry(snapshots).
            setConfigurationControl(configs).
            setClusterControl(cluster).
            setFeatureControl(features).
            build();
        cluster.activate();
    }

    private static FeatureLevelRecord level(String name, short level) {
        return new FeatureLevelRecord().setName(name).setFeatureLevel(level);
    }

    private void shutDown(int broker, boolean cleanly, List<ApiMessageAndVersion> records) {
        replication.handleBrokerShutdown(broker, cleanly, records);
    }

    private <T> T commit(ControllerResult<T> result) {
        for (ApiMessageAndVersion record : result.records()) {
            Object message = record.message();
            if (message instanceof RegisterBrokerRecord registration) {
                cluster.replay(registration, end);
            } else if (message instanceof BrokerRegistrationChangeRecord change) {
                cluster.replay(change);
            } else if (message instanceof TopicRecord topic) {
                replication.replay(topic);
            } else if (message instanceof PartitionRecord partition) {
                replication.replay(partition);
            } else if (message instanceof PartitionChangeRecord change) {
                replication.replay(change);
            } else if (message instanceof ConfigRecord config) {
                configs.replay(config);
            } else if (message instanceof ClearElrRecord clear) {
                // Of a new topic with a setting of its own: not counted, as it changes nothing.
                replication.replay(clear);
                continue;
            } else {
                throw new IllegalStateException(record.toString());
            }
            end++;
        }
        return result.response();
    }

    private static ControllerRequestContext context() {
        RequestHeaderData header = new RequestHeaderData().setRequestApiVersion((short) 3);
        return new ControllerRequestContext(header, KafkaPrincipal.ANONYMOUS, OptionalLong.empty());
    }

    private void event(int number, Map<String, Object> golden) {
        int broker = random.nextInt(BROKERS);
        if (number < BROKERS * 2) {
            broker = number / 2;
            if (number % 2 == 0) {
                register(broker, golden);
            } else {
                heartbeat(broker, false, end - 1, golden);
            }
        } else if (number == BROKERS * 2) {
            create(golden);
        } else {
            switch (random.nextInt(12)) {
                case 0 -> register(broker, golden);
                case 1, 2 -> heartbeat(broker, false, end - 1 - random.nextInt(3), golden);
                case 3, 4, 5 -> heartbeat(broker, random.nextInt(3) == 0, end - 1, golden);
                case 6 -> {
                    if (random.nextInt(2) == 0) {
                        stopping.add(broker);
                    }
                    heartbeat(broker, false, end - 1, golden);
                }
                case 7 -> pass(golden);
                case 8, 9 -> alter(golden);
                case 10 -> elect(golden);
                default -> reassign(golden);
            }
        }
    }

    private void register(int broker, Map<String, Object> golden) {
        BrokerRegistration before = cluster.brokerRegistrations().get(broker);
        long previous = before != null && random.nextBoolean() ? before.epoch() : -1;
        incarnation++;
        golden.put("event", "register");
        golden.put("broker", broker);
        golden.put("previous", previous);
        BrokerRegistrationRequestData request = new BrokerRegistrationRequestData().
            setBrokerId(broker).
            setClusterId("a-cluster").
            setIncarnationId(new Uuid(1, incarnation)).
            setPreviousBrokerEpoch(previous).
            setLogDirs(List.of(new Uuid(2, broker + 1)));
        request.features().add(new BrokerRegistrationRequestData.Feature().
            setName(MetadataVersion.FEATURE_NAME).
            setMinSupportedVersion(MetadataVersion.MINIMUM_VERSION.featureLevel()).
            setMaxSupportedVersion(MetadataVersion.latestProduction().featureLevel()));
        request.features().add(new BrokerRegistrationRequestData.Feature().
            setName(EligibleLeaderReplicasVersion.FEATURE_NAME).
            setMinSupportedVersion((short) 0).
            setMaxSupportedVersion((short) 1));
        BrokerRegistrationReply reply = commit(
            cluster.registerBroker(request, end, features.finalizedFeatures(Long.MAX_VALUE), true));
        stopping.remove(broker);
        golden.put("epoch", reply.epoch());
    }

    private void heartbeat(int broker, boolean fence, long offset, Map<String, Object> golden) {
        long epoch = cluster.brokerRegistrations().get(broker).epoch();
        golden.put("event", "heartbeat");
        golden.put("broker", broker);
        golden.put("fence", fence);
        golden.put("stop", stopping.contains(broker));
        golden.put("offset", offset);
        BrokerHeartbeatRequestData request = new BrokerHeartbeatRequestData().
            setBrokerId(broker).
            setBrokerEpoch(epoch).
            setCurrentMetadataOffset(offset).
            setWantFence(fence).
            setWantShutDown(stopping.contains(broker));
        cluster.trackBrokerHeartbeat(broker, epoch);
        BrokerHeartbeatReply reply = commit(replication.processBrokerHeartbeat(
            request, cluster.registerBrokerRecordOffset(broker).getAsLong()));
        if (reply.inControlledShutdown()) {
            cluster.heartbeatManager().maybeUpdateControlledShutdownOffset(broker, end - 1);
        }
        golden.put("reply", List.of(reply.isCaughtUp(), reply.isFenced(), reply.shouldShutDown()));
    }

    private void create(Map<String, Object> golden) {
        String minIsr = String.valueOf(1 + random.nextInt(3));
        String unclean = String.valueOf(random.nextInt(3) == 0);
        golden.put("event", "create");
        golden.put("min_isr", minIsr);
        golden.put("unclean", unclean);
        CreateTopicsRequestData.CreatableTopic topic = new CreateTopicsRequestData.CreatableTopic().
            setName("t").setNumPartitions(-1).setReplicationFactor((short) -1);
        List<List<Integer>> assignments = new ArrayList<>();
        for (int i = 0; i < PARTITIONS; i++) {
            assignments.add(some(3));
            topic.assignments().add(new CreateTopicsRequestData.CreatableReplicaAssignment().
                setPartitionIndex(i).setBrokerIds(assignments.get(i)));
        }
        golden.put("assignments", assignments);
        topic.configs().add(new CreateTopicsRequestData.CreatableTopicConfig().
            setName("min.insync.replicas").setValue(minIsr));
        topic.configs().add(new CreateTopicsRequestData.CreatableTopicConfig().
            setName("unclean.leader.election.enable").setValue(unclean));
        CreateTopicsRequestData request = new CreateTopicsRequestData();
        request.topics().add(topic);
        topicId = commit(replication.createTopics(context(), request, Set.of(), false)).topics().find("t").topicId();
    }

    private void pass(Map<String, Object> golden) {
        long tenths = 13L * (1 + random.nextInt(5));
        clock.nanos += tenths * SECOND / 10;
        golden.put("event", "pass");
        golden.put("tenths", tenths);
        while (commit(replication.maybeFenceOneStaleBroker())) {
            // The next one.
        }
    }

    private void alter(Map<String, Object> golden) {
        int index = random.nextInt(PARTITIONS);
        PartitionRegistration partition = replication.getPartition(topicId, index);
        int sender = random.nextInt(10) == 0 || partition.leader < 0 ? random.nextInt(BROKERS) : partition.leader;
        TreeMap<Integer, Long> isr = new TreeMap<>();
        for (int replica : partition.replicas) {
            if (replica == partition.leader || random.nextInt(4) > 0) {
                long epoch = cluster.brokerRegistrations().get(replica).epoch();
                isr.put(replica, random.nextInt(12) == 0 ? epoch - 1 : random.nextInt(6) == 0 ? -1 : epoch);
            }
        }
        int leaderEpoch = partition.leaderEpoch + (random.nextInt(10) == 0 ? random.nextInt(3) - 1 : 0);
        int partitionEpoch = partition.partitionEpoch + (random.nextInt(10) == 0 ? random.nextInt(3) - 1 : 0);
        byte recovery = (byte) (random.nextInt(5) == 0 ? 1 : 0);
        golden.put("event", "alter");
        golden.put("partition", index);
        golden.put("sender", sender);
        golden.put("isr", new ArrayList<>(isr.keySet()));
        golden.put("isr_epochs", new ArrayList<>(isr.values()));
        golden.put("leader_epoch", leaderEpoch);
        golden.put("partition_epoch", partitionEpoch);
        golden.put("recovery", recovery);
        List<AlterPartitionRequestData.BrokerState> states = new ArrayList<>();
        isr.forEach((id, epoch) -> states.add(
            new AlterPartitionRequestData.BrokerState().setBrokerId(id).setBrokerEpoch(epoch)));
        AlterPartitionRequestData request = new AlterPartitionRequestData().
            setBrokerId(sender).
            setBrokerEpoch(cluster.brokerRegistrations().get(sender).epoch()).
            setTopics(List.of(new AlterPartitionRequestData.TopicData().
                setTopicId(topicId).
                setPartitions(List.of(new AlterPartitionRequestData.PartitionData().
                    setPartitionIndex(index).
                    setLeaderEpoch(leaderEpoch).
                    setPartitionEpoch(partitionEpoch).
                    setLeaderRecoveryState(recovery).
                    setNewIsrWithEpochs(states)))));
        golden.put("reply", commit(replication.alterPartition(context(), request)).
            topics().get(0).partitions().get(0).errorCode());
    }

    private void elect(Map<String, Object> golden) {
        int index = random.nextInt(PARTITIONS);
        byte type = (byte) random.nextInt(2);
        golden.put("event", "elect");
        golden.put("partition", index);
        golden.put("type", type);
        ElectLeadersRequestData request = new ElectLeadersRequestData().setElectionType(type);
        request.setTopicPartitions(new ElectLeadersRequestData.TopicPartitionsCollection());
        request.topicPartitions().add(new ElectLeadersRequestData.TopicPartitions().
            setTopic("t").setPartitions(List.of(index)));
        golden.put("reply", commit(replication.electLeaders(request)).
            replicaElectionResults().get(0).partitionResult().get(0).errorCode());
    }

    private void reassign(Map<String, Object> golden) {
        int index = random.nextInt(PARTITIONS);
        List<Integer> replicas = random.nextInt(3) == 0 ? null : some(1 + random.nextInt(3));
        golden.put("event", "reassign");
        golden.put("partition", index);
        golden.put("replicas", replicas);
        AlterPartitionReassignmentsRequestData request = new AlterPartitionReassignmentsRequestData().
            setTopics(List.of(new ReassignableTopic().setName("t").setPartitions(List.of(
                new ReassignablePartition().setPartitionIndex(index).setReplicas(replicas)))));
        golden.put("reply", commit(replication.alterPartitionReassignments(request)).
            responses().get(0).partitions().get(0).errorCode());
    }

    private List<Object> state() {
        List<Object> brokers = new ArrayList<>();
        for (BrokerRegistration broker : new TreeMap<>(cluster.brokerRegistrations()).values()) {
            brokers.add(List.of(broker.epoch(), broker.fenced(), broker.inControlledShutdown()));
        }
        List<Object> partitions = new ArrayList<>();
        for (int i = 0; topicId != null && i < PARTITIONS; i++) {
            PartitionRegistration partition = replication.getPartition(topicId, i);
            partitions.add(List.of(
                partition.leader, partition.leaderEpoch, partition.partitionEpoch,
                (int) partition.leaderRecoveryState.value(), partition.replicas, partition.isr,
                partition.elr, partition.lastKnownElr, partition.addingReplicas,
                partition.removingReplicas));
        }
        return List.of(end, brokers, partitions);
    }

    private List<Integer> some(int count) {
        List<Integer> brokers = new ArrayList<>();
        for (int i = 0; i < BROKERS; i++) {
            brokers.add(i);
        }
        Collections.shuffle(brokers, random);
        return new ArrayList<>(brokers.subList(0, count));
    }
}
