import java.nio.file.Files;
import java.nio.file.Paths;
import java.time.Duration;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;

/**
 * The official Java client on many threads, and what its calls cost the server. Args are the endpoint, whether to use
 * TLS, the number of threads, seconds of each rate, and the id of the server's process.
 */
public class Load {
    private static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    private static final int BATCH = 32;
    private static final double TICKS_PER_S = 100.0;

    private final ClientConfiguration configuration;
    private final int threads;
    private final double seconds;
    private final String server;
    private final AtomicLong done = new AtomicLong();
    private final AtomicBoolean running = new AtomicBoolean();

    private Load(String[] args) {
        configuration = ClientConfiguration.newBuilder().setEndpoints(args[0])
            .enableSsl(Boolean.parseBoolean(args[1])).setRequestTimeout(Duration.ofSeconds(20)).build();
        threads = Integer.parseInt(args[2]);
        seconds = Double.parseDouble(args[3]);
        server = args[4];
    }

    public static void main(String[] args) throws Exception {
        Load load = new Load(args);
        double[] sends = load.sends("bench-java-load");
        double[] receives = load.receives("bench-java-load");
        System.out.printf(java.util.Locale.ROOT,
            "{\"sends\": %.1f, \"send_us\": %.1f, \"receives\": %.1f, \"receive_us\": %.1f}%n",
            sends[0], sends[1], receives[0], receives[1]);
        // The client's threads outlive its close.
        System.exit(0);
    }

    /** Sends of 1 KiB, one by one in each thread: their rate, and the server's CPU time for each in microseconds. */
    private double[] sends(String topic) throws Exception {
        byte[] body = new byte[1_024];
        try (Producer producer = PROVIDER.newProducerBuilder().setClientConfiguration(configuration)
                .setTopics(topic).build()) {
            return measured(() -> {
                producer.send(PROVIDER.newMessageBuilder().setTopic(topic).setTag("bench").setBody(body).build());
                done.incrementAndGet();
            });
        }
    }

    /** The same messages, received 32 at a time and acked one by one. */
    private double[] receives(String topic) throws Exception {
        try (SimpleConsumer consumer = PROVIDER.newSimpleConsumerBuilder().setClientConfiguration(configuration)
                .setConsumerGroup(topic).setAwaitDuration(Duration.ofSeconds(10))
                .setSubscriptionExpressions(Collections.singletonMap(topic, FilterExpression.SUB_ALL)).build()) {
            return measured(() -> {
                List<MessageView> received = consumer.receive(BATCH, Duration.ofSeconds(60));
                CompletableFuture<?>[] acks =
                    received.stream().map(consumer::ackAsync).toArray(CompletableFuture[]::new);
                CompletableFuture.allOf(acks).join();
                done.addAndGet(received.size());
            });
        }
    }

    private interface Step {
        void run() throws Exception;
    }

    private double[] measured(Step step) throws Exception {
        running.set(true);
        Thread[] all = new Thread[threads];
        for (int number = 0; number < threads; number++) {
            all[number] = new Thread(() -> {
                while (running.get()) {
                    try {
                        step.run();
                    } catch (Exception error) {
                        error.printStackTrace();
                        return;
                    }
                }
            });
            all[number].start();
        }
        Thread.sleep((long) (seconds * 500));
        long before = done.get();
        double cpu = cpuSeconds();
        long begun = System.nanoTime();
        Thread.sleep((long) (seconds * 1_000));
        long counted = done.get() - before;
        double taken = (System.nanoTime() - begun) / 1e9;
        double used = cpuSeconds() - cpu;
        running.set(false);
        for (Thread each : all) {
            each.join();
        }
        return new double[] {counted / taken, used * 1e6 / Math.max(counted, 1)};
    }

    private double cpuSeconds() throws Exception {
        String stat = new String(Files.readAllBytes(Paths.get("/proc", server, "stat")));
        String[] fields = stat.substring(stat.lastIndexOf(')') + 2).split(" ");
        return (Long.parseLong(fields[11]) + Long.parseLong(fields[12])) / TICKS_PER_S;
    }
}
