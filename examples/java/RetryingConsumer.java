import static java.nio.charset.StandardCharsets.UTF_8;

import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.header.internals.RecordHeaders;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * A consumer with retries: what it fails on it forwards to `orders-retry`, and tickover brings it back.
 * Run: java -cp 'kafka-clients and its jars/*' RetryingConsumer.java
 */
public class RetryingConsumer {
    static final String BROKERS =
            Optional.ofNullable(System.getenv("TICKOVER_KAFKA__BOOTSTRAP_SERVERS")).orElse("localhost:9092");

    static void handle(String order, int attempt) {
        if (attempt < 3) throw new IllegalStateException("the warehouse does not answer");
    }

    static ProducerRecord<String, String> retryOf(ConsumerRecord<String, String> record, Exception error) {
        var headers = new RecordHeaders(record.headers().toArray()); // keep all: they count the attempts
        headers.remove("tickover-error-class").add("tickover-error-class", error.getClass().getName().getBytes(UTF_8));
        return new ProducerRecord<>("orders-retry", null, record.key(), record.value(), headers);
    }

    public static void main(String[] args) throws Exception {
        Map<String, Object> settings = Map.of("bootstrap.servers", BROKERS, "group.id", "java-shop",
                "auto.offset.reset", "earliest", "enable.auto.commit", false, "isolation.level", "read_committed");
        Map<String, Object> brokers = Map.of("bootstrap.servers", BROKERS);
        try (var producer = new KafkaProducer<>(brokers, new StringSerializer(), new StringSerializer());
                var consumer = new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            producer.send(new ProducerRecord<>("orders", "customer-7", "order 1")).get();
            consumer.subscribe(List.of("orders"));
            for (boolean isDone = false; !isDone; consumer.commitSync()) // yours goes on: while (true)
                for (var record : consumer.poll(Duration.ofSeconds(1))) {
                    var header = record.headers().lastHeader("tickover-attempt");
                    var attempt = header == null ? 1 : Integer.parseInt(new String(header.value(), UTF_8));
                    try {
                        handle(record.value(), attempt);
                        System.out.println(record.value() + ", attempt " + attempt + ": done");
                        isDone = true;
                    } catch (Exception error) {
                        System.out.println(record.value() + ", attempt " + attempt + ": " + error.getMessage());
                        producer.send(retryOf(record, error)).get(); // fails: nothing is committed, it is read again
                    }
                }
        }
    }
}
