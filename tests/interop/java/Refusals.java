import java.time.Duration;
import java.util.Collections;
import java.util.Map;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientConfigurationBuilder;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.StaticSessionCredentialsProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.FilterExpressionType;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.producer.Producer;

/**
 * Starts the official Java client once and says how that ended, as one line of JSON on stdout.
 *
 * <p>Arguments: endpoint, kind (push, simple, producer or lite), group, topic, filter type (tag or sql), and filter.
 * The client's log is where the system property rocketmq.log.root says. OFFICIAL_ACCESS_KEY and
 * OFFICIAL_ACCESS_SECRET sign.
 */
public final class Refusals {
    private static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();

    public static void main(String[] given) throws Exception {
        long since = System.nanoTime();
        try {
            Object client = open(given);
            say("started", since, "");
            since = System.nanoTime();
            if (client instanceof SimpleConsumer) {
                ((SimpleConsumer) client).receive(1, Duration.ofSeconds(15));
            } else if (client instanceof Producer) {
                ((Producer) client).send(
                    PROVIDER.newMessageBuilder().setTopic(given[3]).setBody("body".getBytes()).build());
            } else {
                Thread.sleep(Long.MAX_VALUE); // until the test has seen what it waits for in the log
            }
            say("served", since, "");
        } catch (Throwable refusal) {
            StringBuilder words = new StringBuilder();
            for (Throwable cause = refusal; cause != null; cause = cause.getCause()) {
                words.append(cause).append('\n');
            }
            say("refused", since, words.toString());
        }
        System.exit(0);
    }

    private static Object open(String[] given) throws Exception {
        String kind = given[1], group = given[2], topic = given[3];
        ClientConfigurationBuilder configuration =
            ClientConfiguration.newBuilder().setEndpoints(given[0]).enableSsl(false);
        String key = System.getenv("OFFICIAL_ACCESS_KEY");
        if (key != null) {
            String secret = System.getenv("OFFICIAL_ACCESS_SECRET");
            configuration.setCredentialProvider(new StaticSessionCredentialsProvider(key, secret));
        }
        FilterExpressionType type = given[4].equals("sql") ? FilterExpressionType.SQL92 : FilterExpressionType.TAG;
        Map<String, FilterExpression> filters = Collections.singletonMap(topic, new FilterExpression(given[5], type));
        switch (kind) {
            case "push":
                return PROVIDER.newPushConsumerBuilder().setClientConfiguration(configuration.build())
                    .setConsumerGroup(group).setSubscriptionExpressions(filters)
                    .setMessageListener(message -> ConsumeResult.SUCCESS).build();
            case "lite":
                return PROVIDER.newLitePushConsumerBuilder().setClientConfiguration(configuration.build())
                    .setConsumerGroup(group).bindTopic(topic)
                    .setMessageListener(message -> ConsumeResult.SUCCESS).build();
            case "simple":
                return PROVIDER.newSimpleConsumerBuilder().setClientConfiguration(configuration.build())
                    .setConsumerGroup(group).setSubscriptionExpressions(filters)
                    .setAwaitDuration(Duration.ofSeconds(5)).build();
            default:
                return PROVIDER.newProducerBuilder().setClientConfiguration(configuration.build())
                    .setTopics(topic).build();
        }
    }

    private static void say(String outcome, long since, String words) {
        String quoted = words.replace("\\", "\\\\").replace("\"", "\\\"").replace("\n", "\\n").replace("\t", " ");
        long elapsedMs = (System.nanoTime() - since) / 1_000_000;
        System.out.println(
            "{\"outcome\": \"" + outcome + "\", \"elapsed_ms\": " + elapsedMs + ", \"words\": \"" + quoted + "\"}");
    }
}
