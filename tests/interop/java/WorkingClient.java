import com.google.gson.JsonArray;
import com.google.gson.JsonObject;
import com.google.gson.JsonPrimitive;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.TreeMap;
import java.util.concurrent.Callable;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.zip.CRC32;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.LitePushConsumer;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.ProducerBuilder;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;
import org.apache.rocketmq.client.java.message.MessageViewImpl;

/**
 * The official Java client under torture: KIND SCENE ENDPOINT TOPIC GROUP NAME [LITE_TOPIC ...].
 *
 * <p>It sends and consumes without end, until it is killed: by a simple consumer, or where the kind ends in `push` or
 * `lite` by a push consumer, of the whole topic or of lite topics. What it says of each call, before and after it, is
 * what `proof/torture/client_program.py` says; so are its numbers. A push consumer shows neither receives nor acks, so
 * each call of the listener is told as a receive, with another one that nobody has seen.
 */
final class WorkingClient {
    private static final Duration HOLD = Duration.ofSeconds(2);
    private static final Duration WAIT = Duration.ofSeconds(2);
    private static final Duration TIMEOUT = Duration.ofSeconds(5);
    private static final long PAUSE_MS = 20;
    private static final int RECEIVE_MAX = 8;
    private static final int MESSAGE_GROUPS = 2;
    private static final int DUE_WITHIN_S = 3;
    private static final int LITE_TOPICS = 3;
    private static final long WORK_MS = 5;
    private static final double COMMITS = 0.7;

    private final ClientServiceProvider provider = ClientServiceProvider.loadService();
    private final PrintStream stdout =
        new PrintStream(new FileOutputStream(FileDescriptor.out), true, StandardCharsets.UTF_8);
    private final AtomicInteger numbers = new AtomicInteger();
    private final String scene;
    private final String topic;
    private final String name;
    private final Random chance;
    private final Producer producer;
    private final SimpleConsumer consumer; // null beside a push consumer

    WorkingClient(String... words) throws Exception {
        String kind = words[0];
        String endpoint = words[2];
        String group = words[4];
        this.scene = words[1];
        this.topic = words[3];
        this.name = words[5];
        this.chance = new Random(name.hashCode());
        ClientConfiguration configuration = ClientConfiguration.newBuilder()
            .setEndpoints(endpoint).setRequestTimeout(TIMEOUT).enableSsl(false).build();
        ProducerBuilder builder = provider.newProducerBuilder().setClientConfiguration(configuration).setTopics(topic);
        if (scene.equals("transactions")) {
            builder.setTransactionChecker(half -> decide(half.getMessageId().toString()));
        }
        this.producer = untilThere(builder::build);
        Map<String, FilterExpression> all = Map.of(topic, new FilterExpression());
        if (kind.endsWith("push")) {
            untilThere(() -> provider.newPushConsumerBuilder().setClientConfiguration(configuration)
                .setConsumerGroup(group).setSubscriptionExpressions(all).setMessageListener(this::listen).build());
            this.consumer = null;
        } else if (kind.endsWith("lite")) {
            LitePushConsumer lite = untilThere(() -> provider.newLitePushConsumerBuilder()
                .setClientConfiguration(configuration).setConsumerGroup(group).bindTopic(topic)
                .setMessageListener(this::listen).build());
            for (int at = 6; at < words.length; at++) {
                subscribe(lite, words[at]);
            }
            this.consumer = null;
        } else {
            this.consumer = untilThere(() -> provider.newSimpleConsumerBuilder().setClientConfiguration(configuration)
                .setConsumerGroup(group).setSubscriptionExpressions(all).setAwaitDuration(WAIT).build());
        }
    }

    private void subscribe(LitePushConsumer lite, String liteTopic) throws InterruptedException {
        JsonArray names = new JsonArray();
        names.add(liteTopic);
        List<String> done = new ArrayList<>();
        while (done.isEmpty()) {
            JsonObject said = new JsonObject();
            said.add("names", names);
            said.addProperty("client", name);
            said.addProperty("adds", true);
            call("LiteSync", said, end -> {
                lite.subscribeLite(liteTopic);
                done.add(liteTopic);
            });
        }
    }

    private ConsumeResult listen(MessageView message) {
        try {
            unconfirmed("Receive", received());
            call("Receive", received(), end -> {
                JsonArray deliveries = new JsonArray();
                deliveries.add(delivery(message));
                end.add("deliveries", deliveries);
            });
            Thread.sleep(WORK_MS);
            unconfirmed("Ack", acked(message));
        } catch (InterruptedException end) {
            return ConsumeResult.FAILURE;
        }
        return ConsumeResult.SUCCESS;
    }

    /** What a listener gets may be held by nobody any more. */
    private JsonObject received() {
        JsonObject said = new JsonObject();
        said.addProperty("held_ms", consumer == null ? 0 : HOLD.toMillis());
        said.addProperty("may_hide", false);
        if (scene.equals("lite")) {
            said.addProperty("client", name);
        }
        return said;
    }

    private static JsonObject acked(MessageView message) {
        JsonObject said = new JsonObject();
        said.addProperty("message_id", message.getMessageId().toString());
        said.addProperty("handle", handle(message));
        return said;
    }

    /** No server may be there yet. */
    private static <T> T untilThere(Callable<T> make) throws InterruptedException {
        while (true) {
            try {
                return make.call();
            } catch (Exception notYet) {
                Thread.sleep(PAUSE_MS);
            }
        }
    }

    void run() throws Exception {
        for (int number = 1; ; number++) {
            for (int part = 0; part < 4; part++) {
                send(name + " " + number + " " + part);
            }
            if (consumer == null) {
                Thread.sleep(4 * PAUSE_MS);
            } else {
                receive();
            }
        }
    }

    private void send(String body) throws Exception {
        MessageBuilder message = provider.newMessageBuilder().setTopic(topic)
            .setBody(body.getBytes(StandardCharsets.UTF_8));
        JsonObject said = new JsonObject();
        said.addProperty("digest", digest(body.getBytes(StandardCharsets.UTF_8), Map.of()));
        switch (scene) {
            case "fifo":
                String messageGroup = name + "-group-" + chance.nextInt(MESSAGE_GROUPS);
                message.setMessageGroup(messageGroup);
                said.addProperty("message_group", messageGroup);
                break;
            case "lite":
                String liteTopic = "program-lite-" + chance.nextInt(LITE_TOPICS);
                message.setLiteTopic(liteTopic);
                said.addProperty("message_group", liteTopic);
                break;
            case "delay":
                long dueMs = (System.currentTimeMillis() / 1_000 + chance.nextInt(DUE_WITHIN_S)) * 1_000;
                message.setDeliveryTimestamp(dueMs);
                said.addProperty("due_ms", dueMs - System.currentTimeMillis() + nowMs());
                break;
            case "transactions":
                sendHalf(message, said);
                return;
            default:
        }
        call("Send", said, end -> end.addProperty(
            "message_id", producer.send(message.build()).getMessageId().toString()));
    }

    private void sendHalf(MessageBuilder message, JsonObject said) throws Exception {
        Transaction transaction = producer.beginTransaction();
        List<String> sent = new ArrayList<>();
        call("HalfSend", said, end -> {
            sent.add(producer.send(message.build(), transaction).getMessageId().toString());
            end.addProperty("message_id", sent.get(0));
        });
        for (String messageId : sent) {
            boolean commits = chance.nextDouble() < COMMITS;
            call("EndTransaction", decision(messageId, commits), end -> {
                if (commits) {
                    transaction.commit();
                } else {
                    transaction.rollback();
                }
            });
        }
    }

    private TransactionResolution decide(String messageId) {
        CRC32 sum = new CRC32();
        sum.update(messageId.getBytes(StandardCharsets.UTF_8));
        boolean commits = sum.getValue() % 2 == 0;
        unconfirmed("EndTransaction", decision(messageId, commits));
        return commits ? TransactionResolution.COMMIT : TransactionResolution.ROLLBACK;
    }

    private static JsonObject decision(String messageId, boolean commits) {
        JsonObject said = new JsonObject();
        said.addProperty("message_id", messageId);
        said.addProperty("commits", commits);
        return said;
    }

    private void receive() throws Exception {
        List<MessageView> held = new ArrayList<>();
        call("Receive", received(), end -> {
            held.addAll(consumer.receive(RECEIVE_MAX, HOLD));
            JsonArray deliveries = new JsonArray();
            for (MessageView each : held) {
                deliveries.add(delivery(each));
            }
            end.add("deliveries", deliveries);
        });
        for (MessageView each : held) {
            call("Ack", acked(each), end -> consumer.ack(each));
        }
    }

    private static JsonObject delivery(MessageView message) throws Exception {
        ByteBuffer body = message.getBody();
        byte[] bytes = new byte[body.remaining()];
        body.get(bytes);
        JsonObject said = new JsonObject();
        said.addProperty("message_id", message.getMessageId().toString());
        said.addProperty("digest", digest(bytes, message.getProperties()));
        said.addProperty("attempt", message.getDeliveryAttempt());
        said.addProperty("handle", handle(message));
        return said;
    }

    /** The client shows it to nobody. */
    private static String handle(MessageView message) {
        return ((MessageViewImpl) message).getReceiptHandle();
    }

    /** As `tests.support.workload.digest`. */
    private static String digest(byte[] body, Map<String, String> properties) throws Exception {
        List<String> parts = new ArrayList<>();
        new TreeMap<>(properties).forEach(
            (key, value) -> parts.add(new JsonPrimitive(key) + ": " + new JsonPrimitive(value)));
        MessageDigest digest = MessageDigest.getInstance("SHA-256");
        digest.update(body);
        digest.update(("{" + String.join(", ", parts) + "}").getBytes(StandardCharsets.UTF_8));
        return HexFormat.of().formatHex(digest.digest()).substring(0, 16);
    }

    /** What is called; it may add to what is said at its end. */
    private interface Work {
        void carryOut(JsonObject end) throws Exception;
    }

    private void call(String what, JsonObject said, Work work) throws InterruptedException {
        int number = begin(what, said);
        JsonObject end = new JsonObject();
        try {
            work.carryOut(end);
        } catch (Exception mayHaveHappened) {
            end.addProperty("error", mayHaveHappened.toString());
        }
        end.addProperty("number", number);
        end.addProperty("completed_ms", nowMs());
        say(end);
        if (end.has("error")) {
            Thread.sleep(PAUSE_MS);
        }
    }

    /** A call whose outcome nobody learns. */
    private void unconfirmed(String what, JsonObject said) {
        JsonObject end = new JsonObject();
        end.addProperty("number", begin(what, said));
        end.addProperty("error", "nobody confirms it");
        end.addProperty("completed_ms", nowMs());
        say(end);
    }

    private int begin(String what, JsonObject said) {
        int number = numbers.incrementAndGet();
        said.addProperty("number", number);
        said.addProperty("call", what);
        said.addProperty("invoked_ms", nowMs());
        say(said);
        return number;
    }

    /** Of the clock that Python calls monotonic. */
    private static double nowMs() {
        return System.nanoTime() / 1e6;
    }

    private synchronized void say(JsonObject line) {
        stdout.println(line);
    }
}
