import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonNull;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.BufferedReader;
import java.io.Closeable;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.HashMap;
import java.util.Map;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Executors;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientConfigurationBuilder;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.StaticSessionCredentialsProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.FilterExpressionType;
import org.apache.rocketmq.client.apis.consumer.LitePushConsumer;
import org.apache.rocketmq.client.apis.consumer.MessageListener;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.ProducerBuilder;
import org.apache.rocketmq.client.apis.producer.SendReceipt;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/**
 * The official Java client at the end of a pipe.
 *
 * <p>One JSON command per line on stdin, one JSON answer per line on stdout; `clients/official_client.py` speaks the
 * same. What a push consumer's listener hears comes unasked. Durations are whole seconds. The client's log is where the
 * system property rocketmq.log.root says. With arguments it is a `WorkingClient`.
 */
public final class OfficialClient {
    private static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    /** By default 3 s, which a busy machine may need for an ordinary answer. */
    private static final Duration REQUEST_TIMEOUT = Duration.ofSeconds(10);

    private static final PrintStream STDOUT = new PrintStream(System.out, true, StandardCharsets.UTF_8);
    private static final Map<String, Closeable> CLIENTS = new ConcurrentHashMap<>();
    private static final Map<String, CountDownLatch> RELEASES = new ConcurrentHashMap<>();
    private static final Map<String, MessageView> RECEIVED = new ConcurrentHashMap<>();
    private static final Map<String, Transaction> TRANSACTIONS = new ConcurrentHashMap<>();

    public static void main(String[] arguments) throws Exception {
        if (arguments.length > 0) {
            new WorkingClient(arguments).run();
        }
        var workers = Executors.newCachedThreadPool();
        var stdin = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = stdin.readLine(); line != null; line = stdin.readLine()) {
            JsonObject command = JsonParser.parseString(line).getAsJsonObject();
            workers.submit(() -> answer(command));
        }
        System.exit(0);
    }

    private static void answer(JsonObject command) {
        JsonObject said;
        try {
            said = carryOut(command);
        } catch (Throwable refusal) {
            said = refused(refusal);
        }
        said.add("answer", command.get("number"));
        say(said);
    }

    private static JsonObject carryOut(JsonObject command) throws Exception {
        Closeable client = CLIENTS.get(text(command, "client"));
        JsonObject said = new JsonObject();
        switch (text(command, "do")) {
            case "open":
                CLIENTS.put(text(command, "client"), open(command));
                said.addProperty("client_id", ""); // the client keeps it to itself
                break;
            case "send":
                return send((Producer) client, command);
            case "end":
                Transaction transaction = TRANSACTIONS.get(text(command, "message_id"));
                if (text(command, "resolution").equals("COMMIT")) {
                    transaction.commit();
                } else {
                    transaction.rollback();
                }
                break;
            case "recall":
                var receipt = ((Producer) client).recallMessage(text(command, "topic"), text(command, "handle"));
                said.addProperty("message_id", receipt.getMessageId().toString());
                break;
            case "receive":
                JsonArray messages = new JsonArray();
                Duration held = Duration.ofSeconds(command.get("invisible_s").getAsLong());
                for (MessageView each : ((SimpleConsumer) client).receive(command.get("count").getAsInt(), held)) {
                    messages.add(described(each, each.getDeliveryAttempt()));
                }
                said.add("messages", messages);
                break;
            case "ack":
                ((SimpleConsumer) client).ack(RECEIVED.get(text(command, "token")));
                break;
            case "change_invisible":
                ((SimpleConsumer) client).changeInvisibleDuration(
                    RECEIVED.get(text(command, "token")), Duration.ofSeconds(command.get("invisible_s").getAsLong()));
                said.addProperty("handle", ""); // the message keeps it to itself
                break;
            case "subscribe_lite":
                for (JsonElement name : command.getAsJsonArray("lite_topics")) {
                    ((LitePushConsumer) client).subscribeLite(name.getAsString());
                }
                break;
            case "unsubscribe_lite":
                ((LitePushConsumer) client).unsubscribeLite(text(command, "lite_topic"));
                break;
            case "lite_topics":
                JsonArray names = new JsonArray();
                new TreeSet<>(((LitePushConsumer) client).getLiteTopicSet()).forEach(names::add);
                said.add("lite_topics", names);
                break;
            case "release":
                RELEASES.get(text(command, "client")).countDown();
                break;
            default: // close
                CLIENTS.remove(text(command, "client")).close();
        }
        return said;
    }

    private static Closeable open(JsonObject command) throws Exception {
        ClientConfiguration configuration = configuration(command);
        Map<String, FilterExpression> filters = filters(command);
        switch (text(command, "kind")) {
            case "push":
                return PROVIDER.newPushConsumerBuilder().setClientConfiguration(configuration)
                    .setConsumerGroup(text(command, "group")).setSubscriptionExpressions(filters)
                    .setMessageListener(listener(command)).build();
            case "lite":
                if (command.get("suspend_s").getAsInt() > 0) {
                    throw new NoSuchCall("suspend");
                }
                return PROVIDER.newLitePushConsumerBuilder().setClientConfiguration(configuration)
                    .setConsumerGroup(text(command, "group")).bindTopic(filters.keySet().iterator().next())
                    .setMessageListener(listener(command)).build();
            case "simple":
                return PROVIDER.newSimpleConsumerBuilder().setClientConfiguration(configuration)
                    .setConsumerGroup(text(command, "group")).setSubscriptionExpressions(filters)
                    .setAwaitDuration(Duration.ofSeconds(command.get("await_s").getAsLong())).build();
            case "lite_simple":
                throw new NoSuchCall("lite_simple");
            default:
                ProducerBuilder producer = PROVIDER.newProducerBuilder().setClientConfiguration(configuration)
                    .setTopics(filters.keySet().toArray(new String[0]));
                if (has(command, "decides")) {
                    producer.setTransactionChecker(half -> {
                        hear(command, half, half.getDeliveryAttempt());
                        return TransactionResolution.valueOf(text(command, "decides"));
                    });
                }
                return producer.build();
        }
    }

    private static ClientConfiguration configuration(JsonObject command) {
        ClientConfigurationBuilder builder = ClientConfiguration.newBuilder()
            .setEndpoints(text(command, "endpoint")).setRequestTimeout(REQUEST_TIMEOUT)
            .setNamespace(text(command, "namespace")).enableSsl(System.getenv("OFFICIAL_TLS") != null);
        String key = System.getenv("OFFICIAL_ACCESS_KEY");
        if (key != null) {
            String secret = System.getenv("OFFICIAL_ACCESS_SECRET");
            builder.setCredentialProvider(new StaticSessionCredentialsProvider(key, secret));
        }
        return builder.build();
    }

    private static Map<String, FilterExpression> filters(JsonObject command) {
        boolean isSql = has(command, "sql") && command.get("sql").getAsBoolean();
        FilterExpressionType type = isSql ? FilterExpressionType.SQL92 : FilterExpressionType.TAG;
        Map<String, FilterExpression> filters = new HashMap<>();
        command.getAsJsonObject("topics").entrySet().forEach(
            each -> filters.put(each.getKey(), new FilterExpression(each.getValue().getAsString(), type)));
        return filters;
    }

    /** Fails the first `fail` attempts of a message (`how`: by a result, or by throwing); may wait to be released. */
    private static MessageListener listener(JsonObject command) {
        CountDownLatch release = new CountDownLatch(command.get("waits").getAsBoolean() ? 1 : 0);
        RELEASES.put(text(command, "client"), release);
        Map<String, Integer> calls = new ConcurrentHashMap<>(); // a client that retries in place may not count them
        return message -> {
            int called = calls.merge(message.getMessageId().toString(), 1, Integer::sum);
            int attempt = Math.max(called, message.getDeliveryAttempt());
            hear(command, message, attempt);
            try {
                release.await();
            } catch (InterruptedException end) {
                return ConsumeResult.FAILURE;
            }
            String poison = text(command, "poison");
            boolean isGood = !poison.isEmpty() && !body(message).equals(poison);
            if (isGood || attempt > command.get("fail").getAsInt()) {
                return ConsumeResult.SUCCESS;
            }
            if (text(command, "how").equals("raise")) {
                throw new IllegalStateException("the listener throws on purpose");
            }
            return ConsumeResult.FAILURE;
        };
    }

    private static JsonObject send(Producer producer, JsonObject command) throws Exception {
        MessageBuilder message = PROVIDER.newMessageBuilder().setTopic(text(command, "topic"))
            .setBody(text(command, "body").getBytes(StandardCharsets.UTF_8));
        if (has(command, "tag")) {
            message.setTag(text(command, "tag"));
        }
        if (has(command, "message_group")) {
            message.setMessageGroup(text(command, "message_group"));
        }
        if (has(command, "deliver_at_s")) {
            message.setDeliveryTimestamp(command.get("deliver_at_s").getAsLong() * 1_000);
        }
        if (has(command, "priority")) {
            message.setPriority(command.get("priority").getAsInt());
        }
        if (has(command, "lite_topic")) {
            message.setLiteTopic(text(command, "lite_topic"));
        }
        JsonArray keys = command.getAsJsonArray("keys");
        if (!keys.isEmpty()) {
            message.setKeys(keys.asList().stream().map(JsonElement::getAsString).toArray(String[]::new));
        }
        command.getAsJsonObject("properties").entrySet().forEach(
            each -> message.addProperty(each.getKey(), each.getValue().getAsString()));
        boolean isHalf = command.get("half").getAsBoolean();
        Transaction transaction = isHalf ? producer.beginTransaction() : null;
        SendReceipt receipt = isHalf ? producer.send(message.build(), transaction) : producer.send(message.build());
        if (isHalf) {
            TRANSACTIONS.put(receipt.getMessageId().toString(), transaction);
        }
        JsonObject said = new JsonObject();
        said.addProperty("message_id", receipt.getMessageId().toString());
        said.addProperty("offset", -1); // the receipt keeps it to itself
        said.addProperty("recall_handle", has(command, "deliver_at_s") ? receipt.getRecallHandle() : "");
        return said;
    }

    private static void hear(JsonObject command, MessageView message, int attempt) {
        JsonObject event = new JsonObject();
        event.add("heard", command.get("client"));
        event.add("message", described(message, attempt));
        say(event);
    }

    private static JsonObject described(MessageView message, int attempt) {
        String token = message.getMessageId() + "/" + attempt + "/" + System.identityHashCode(message);
        RECEIVED.put(token, message);
        JsonObject said = new JsonObject();
        said.addProperty("token", token);
        said.addProperty("message_id", message.getMessageId().toString());
        said.addProperty("topic", message.getTopic());
        said.addProperty("body", body(message));
        said.addProperty("tag", message.getTag().orElse(null));
        JsonArray keys = new JsonArray();
        new TreeSet<>(message.getKeys()).forEach(keys::add);
        said.add("keys", keys);
        JsonObject properties = new JsonObject();
        message.getProperties().forEach(properties::addProperty);
        said.add("properties", properties);
        said.addProperty("attempt", attempt);
        said.addProperty("message_group", message.getMessageGroup().orElse(null));
        said.add("priority", JsonNull.INSTANCE);
        message.getPriority().ifPresent(priority -> said.addProperty("priority", priority));
        said.addProperty("lite_topic", message.getLiteTopic().orElse(null));
        said.addProperty("handle", "");
        said.addProperty("corrupted", false); // the client gives no corrupted message to anybody
        return said;
    }

    private static String body(MessageView message) {
        ByteBuffer body = message.getBody();
        byte[] bytes = new byte[body.remaining()];
        body.get(bytes);
        return new String(bytes, StandardCharsets.UTF_8);
    }

    private static JsonObject refused(Throwable refusal) {
        StringBuilder words = new StringBuilder();
        JsonObject said = new JsonObject();
        said.addProperty("refused", refusal.getClass().getSimpleName());
        said.add("code", JsonNull.INSTANCE);
        if (refusal instanceof NoSuchCall) {
            said.addProperty("words", refusal.getMessage());
            return said;
        }
        for (Throwable cause = refusal; cause != null; cause = cause.getCause()) {
            words.append(cause).append('\n');
        }
        said.addProperty("words", words.toString());
        return said;
    }

    /** The client has no such call; the text names it. */
    private static final class NoSuchCall extends Exception {
        NoSuchCall(String call) {
            super(call);
        }
    }

    private static boolean has(JsonObject command, String name) {
        return command.has(name) && !command.get(name).isJsonNull();
    }

    private static String text(JsonObject command, String name) {
        return has(command, name) ? command.get(name).getAsString() : "";
    }

    private static synchronized void say(JsonObject event) {
        STDOUT.println(event);
    }
}
