import java.nio.ByteBuffer;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;

/** The official Java client: args are the endpoint, whether to use TLS, seconds of each rate, and how many wake-ups. */
public class Bench {
    private static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();

    private final ClientConfiguration configuration;

    private Bench(String endpoint, boolean tls) {
        configuration = ClientConfiguration.newBuilder()
            .setEndpoints(endpoint).enableSsl(tls).setRequestTimeout(Duration.ofSeconds(10)).build();
    }

    public static void main(String[] args) throws Exception {
        Bench bench = new Bench(args[0], Boolean.parseBoolean(args[1]));
        double seconds = Double.parseDouble(args[2]);
        double[] wake = bench.wake("bench-java-wake", Integer.parseInt(args[3]), 0);
        double[] due = bench.wake("bench-java-due", Integer.parseInt(args[3]), 300);
        double sends = bench.sends("bench-java", seconds);
        double receives = bench.receives("bench-java-stock", 4_096, seconds);
        System.out.printf(java.util.Locale.ROOT,
            "{\"wake_p50\": %.3f, \"wake_p99\": %.3f, \"due_p50\": %.3f, \"due_p99\": %.3f, \"sends\": %.1f,"
                + " \"receives\": %.1f}%n",
            wake[0], wake[1], due[0], due[1], sends, receives);
        // The client's threads outlive its close.
        System.exit(0);
    }

    /**
     * From before the send until a waiting receive has the message, in milliseconds: median and 99th percentile. With a
     * delay (ms) the time counts from when the messages are due.
     */
    private double[] wake(String topic, int count, long delay) throws Exception {
        List<Double> taken = Collections.synchronizedList(new ArrayList<>());
        AtomicBoolean running = new AtomicBoolean(true);
        try (Producer producer = producer(topic); SimpleConsumer consumer = consumer(topic, topic)) {
            Thread receiving = new Thread(() -> {
                while (running.get()) {
                    try {
                        for (MessageView each : consumer.receive(32, Duration.ofSeconds(60))) {
                            ByteBuffer body = each.getBody();
                            taken.add(now() - body.getDouble());
                            consumer.ack(each);
                        }
                    } catch (Exception error) {
                        if (running.get()) {
                            error.printStackTrace();
                        }
                    }
                }
            });
            receiving.start();
            Thread.sleep(2_000);
            for (int number = 0; number < count; number++) {
                producer.send(timed(topic, delay));
                Thread.sleep(200);
            }
            Thread.sleep(1_000);
            running.set(false);
            producer.send(timed(topic, 0));
            receiving.join();
        }
        // The first ones warm the machine up.
        List<Double> counted = new ArrayList<>(taken.subList(Math.min(5, taken.size() / 2), taken.size() - 1));
        Collections.sort(counted);
        return new double[] {at(counted, 0.5), at(counted, 0.99)};
    }

    /** Sends of 1 KiB per second, one after the other. */
    private double sends(String topic, double seconds) throws Exception {
        byte[] body = new byte[1_024];
        try (Producer producer = producer(topic)) {
            long warm = System.nanoTime() + (long) (seconds * 0.5e9);
            while (System.nanoTime() < warm) {
                producer.send(message(topic, body));
            }
            long begun = System.nanoTime();
            int sent = 0;
            while (System.nanoTime() - begun < seconds * 1e9) {
                producer.send(message(topic, body));
                sent++;
            }
            return sent / ((System.nanoTime() - begun) / 1e9);
        }
    }

    /** Messages per second that one consumer receives, 32 at a time, and acks, each by itself and all at once. */
    private double receives(String topic, int stored, double seconds) throws Exception {
        try (Producer producer = producer(topic)) {
            for (int sent = 0; sent < stored; sent += 128) {
                CompletableFuture<?>[] sends = new CompletableFuture[128];
                Arrays.setAll(sends, number -> producer.sendAsync(message(topic, new byte[1_024])));
                CompletableFuture.allOf(sends).join();
            }
        }
        // Groups of their own meet all messages anew, so that there is always something to receive.
        long taken = 0;
        int count = 0;
        for (int number = 0; taken < seconds * 1e9; number++) {
            try (SimpleConsumer consumer = consumer(topic, topic + "-" + number)) {
                // Makes the group, outside the time that counts.
                int left = stored - consumer.receive(1, Duration.ofSeconds(60)).size();
                while (left >= 32 && taken < seconds * 1e9) {
                    long begun = System.nanoTime();
                    List<MessageView> received = consumer.receive(32, Duration.ofSeconds(60));
                    CompletableFuture<?>[] acks =
                        received.stream().map(consumer::ackAsync).toArray(CompletableFuture[]::new);
                    CompletableFuture.allOf(acks).join();
                    taken += System.nanoTime() - begun;
                    left -= received.size();
                    count += received.size();
                }
            }
        }
        return count / (taken / 1e9);
    }

    private Producer producer(String topic) throws Exception {
        return PROVIDER.newProducerBuilder().setClientConfiguration(configuration).setTopics(topic).build();
    }

    private SimpleConsumer consumer(String topic, String group) throws Exception {
        return PROVIDER.newSimpleConsumerBuilder().setClientConfiguration(configuration).setConsumerGroup(group)
            .setAwaitDuration(Duration.ofSeconds(10))
            .setSubscriptionExpressions(Collections.singletonMap(topic, FilterExpression.SUB_ALL)).build();
    }

    private static Message message(String topic, byte[] body) {
        return PROVIDER.newMessageBuilder().setTopic(topic).setTag("bench").setBody(body).build();
    }

    /** A message whose body has the moment from which its time counts. */
    private static Message timed(String topic, long delay) {
        double from = delay == 0 ? now() : System.currentTimeMillis() + delay;
        MessageBuilder builder =
            PROVIDER.newMessageBuilder().setTopic(topic).setBody(ByteBuffer.allocate(64).putDouble(from).array());
        return (delay == 0 ? builder : builder.setDeliveryTimestamp((long) from)).build();
    }

    /** Milliseconds since 1970, with fractions. */
    private static double now() {
        Instant now = Instant.now();
        return now.getEpochSecond() * 1e3 + now.getNano() / 1e6;
    }

    private static double at(List<Double> sorted, double part) {
        return sorted.get(Math.min((int) (sorted.size() * part), sorted.size() - 1));
    }
}
