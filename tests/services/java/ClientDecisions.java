// What Kafka's own clients decide, for tests.services.client_decisions: assignments of partitions to members of groups,
// and the hashes of keys. Reads JSON from stdin, prints JSON, in the order of the input.
//
// {"cases": [{"assignor": "range", "topics": {"name": [[rack or null of each replica], ... of each partition]},
//             "members": [{"id", "instance", "rack", "topics", "user_data" in hex, "owned": [[topic, number]],
//                          "generation"}]}],
//  "keys": [hex]}
// -> {"assignments": [{member: [[topic, number]]}, or null where the assignor threw],
//     "user_data": [of the first member, in generation 7, in hex], "hashes": [number]}

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Assignment;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.GroupSubscription;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Subscription;
import org.apache.kafka.clients.consumer.CooperativeStickyAssignor;
import org.apache.kafka.clients.consumer.RangeAssignor;
import org.apache.kafka.clients.consumer.RoundRobinAssignor;
import org.apache.kafka.clients.consumer.StickyAssignor;
import org.apache.kafka.common.Cluster;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.PartitionInfo;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.utils.Utils;

public class ClientDecisions {
    static final ObjectMapper JSON = new ObjectMapper();
    static final HexFormat HEX = HexFormat.of();
    static final int GENERATION = 7;

    static ConsumerPartitionAssignor assignor(String name) {
        return switch (name) {
            case "range" -> new RangeAssignor();
            case "roundrobin" -> new RoundRobinAssignor();
            case "sticky" -> new StickyAssignor();
            case "cooperative-sticky" -> new CooperativeStickyAssignor();
            default -> throw new IllegalArgumentException(name);
        };
    }

    static Optional<String> text(JsonNode node) {
        return node.isNull() ? Optional.empty() : Optional.of(node.asText());
    }

    static Cluster cluster(JsonNode topics) {
        List<PartitionInfo> partitions = new ArrayList<>();
        List<Node> nodes = new ArrayList<>();
        topics.fields().forEachRemaining(topic -> {
            int number = 0;
            for (JsonNode racks : topic.getValue()) {
                List<Node> replicas = new ArrayList<>();
                for (JsonNode rack : racks)
                    replicas.add(new Node(nodes.size() + replicas.size(), "host", 9092, text(rack).orElse(null)));
                nodes.addAll(replicas);
                Node[] all = replicas.toArray(new Node[0]);
                Node leader = all.length == 0 ? null : all[0];
                partitions.add(new PartitionInfo(topic.getKey(), number++, leader, all, all));
            }
        });
        return new Cluster("cluster", nodes, partitions, Set.of(), Set.of());
    }

    static Subscription subscription(JsonNode member) {
        List<String> topics = new ArrayList<>();
        member.get("topics").forEach(topic -> topics.add(topic.asText()));
        List<TopicPartition> owned = new ArrayList<>();
        member.get("owned").forEach(one -> owned.add(new TopicPartition(one.get(0).asText(), one.get(1).asInt())));
        ByteBuffer data = text(member.get("user_data")).map(hex -> ByteBuffer.wrap(HEX.parseHex(hex))).orElse(null);
        int generation = member.get("generation").asInt();
        Subscription subscription = new Subscription(topics, data, owned, generation, text(member.get("rack")));
        subscription.setGroupInstanceId(text(member.get("instance")));
        return subscription;
    }

    // As ConsumerCoordinator.onLeaderElected: members go into a HashMap in the order of the answer to JoinGroup.
    static Map<String, Assignment> assignments(JsonNode given) {
        Map<String, Subscription> subscriptions = new HashMap<>();
        for (JsonNode member : given.get("members"))
            subscriptions.put(member.get("id").asText(), subscription(member));
        ConsumerPartitionAssignor assignor = assignor(given.get("assignor").asText());
        return assignor.assign(cluster(given.get("topics")), new GroupSubscription(subscriptions)).groupAssignment();
    }

    static ObjectNode written(Map<String, Assignment> assignments) {
        ObjectNode all = JSON.createObjectNode();
        assignments.forEach((member, assignment) -> {
            ArrayNode partitions = all.putArray(member);
            assignment.partitions().forEach(one -> partitions.addArray().add(one.topic()).add(one.partition()));
        });
        return all;
    }

    static String userData(JsonNode given, Map<String, Assignment> assignments) {
        ConsumerPartitionAssignor assignor = assignor(given.get("assignor").asText());
        String member = given.get("members").get(0).get("id").asText();
        assignor.onAssignment(assignments.get(member), new ConsumerGroupMetadata("group", GENERATION, member, Optional.empty()));
        ByteBuffer data = assignor.subscriptionUserData(Set.of());
        return data == null ? null : HEX.formatHex(Utils.toArray(data));
    }

    public static void main(String[] arguments) throws Exception {
        JsonNode given = JSON.readTree(System.in);
        ObjectNode answer = JSON.createObjectNode();
        ArrayNode allAssignments = answer.putArray("assignments");
        ArrayNode allUserData = answer.putArray("user_data");
        for (JsonNode one : given.get("cases")) {
            try {
                Map<String, Assignment> assignments = assignments(one);
                allAssignments.add(written(assignments));
                allUserData.add(userData(one, assignments));
            } catch (RuntimeException error) {
                allAssignments.addNull();
                allUserData.addNull();
            }
        }
        ArrayNode hashes = answer.putArray("hashes");
        for (JsonNode key : given.get("keys"))
            hashes.add(Utils.murmur2(HEX.parseHex(key.asText())));
        System.out.println(JSON.writeValueAsString(answer));
    }
}
