import static java.nio.charset.StandardCharsets.UTF_8;

import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.UUID;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** Sends a message that arrives on `push` 2 s later. Run: java -cp 'kafka-clients and its jars/*' SendDelayed.java */
public class SendDelayed {
    static final String BROKERS =
            Optional.ofNullable(System.getenv("TICKOVER_KAFKA__BOOTSTRAP_SERVERS")).orElse("localhost:9092");

    public static void main(String[] args) throws Exception {
        var text = "your table is ready (" + UUID.randomUUID() + ")";
        var record = new ProducerRecord<>("reminders", "guest-7", text); // a delay topic: a policy matches it
        record.headers().add("tickover-delay", "2s".getBytes(UTF_8)).add("tickover-target", "push".getBytes(UTF_8));
        try (var producer = new KafkaProducer<>(
                Map.<String, Object>of("bootstrap.servers", BROKERS), new StringSerializer(), new StringSerializer())) {
            producer.send(record).get();
        }
        System.out.println("sent to reminders, for push in 2 s");
        Map<String, Object> settings = Map.of("bootstrap.servers", BROKERS, "group.id", "example-" + UUID.randomUUID(),
                "auto.offset.reset", "earliest", "isolation.level", "read_committed"); // else aborted ones are seen
        try (var consumer = new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of("push"));
            while (true)
                for (var message : consumer.poll(Duration.ofSeconds(1)))
                    if (message.value().equals(text)) {
                        System.out.println("arrived on " + message.topic());
                        return;
                    }
        }
    }
}
