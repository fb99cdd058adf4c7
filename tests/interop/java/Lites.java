import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.TreeSet;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.LitePushConsumer;
import org.apache.rocketmq.client.apis.producer.Producer;

/**
 * Works an official producer and an official push consumer of lite topics by the words on stdin, one line each.
 *
 * <p>Arguments: endpoint, group, topic. Words: send LITE BODY; subscribe LITE; unsubscribe LITE; topics; end. Each has
 * one line on stdout, as has each message that the listener gets: "got LITE ATTEMPT BODY". A message fails at its first
 * attempt if its body begins with "fail".
 */
public final class Lites {
    private static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();

    public static void main(String[] given) throws Exception {
        ClientConfiguration configuration =
            ClientConfiguration.newBuilder().setEndpoints(given[0]).enableSsl(false).build();
        LitePushConsumer consumer = PROVIDER.newLitePushConsumerBuilder().setClientConfiguration(configuration)
            .setConsumerGroup(given[1]).bindTopic(given[2])
            .setMessageListener(message -> {
                String body = StandardCharsets.UTF_8.decode(message.getBody()).toString();
                say("got " + message.getLiteTopic().orElse("?") + " " + message.getDeliveryAttempt() + " " + body);
                boolean fails = body.startsWith("fail") && message.getDeliveryAttempt() == 1;
                return fails ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
            }).build();
        Producer producer =
            PROVIDER.newProducerBuilder().setClientConfiguration(configuration).setTopics(given[2]).build();
        say("started");
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null && !line.equals("end"); line = lines.readLine()) {
            String[] words = line.split(" ", 3);
            try {
                say(done(consumer, producer, given[2], words));
            } catch (Throwable refusal) {
                say("refused " + refusal.toString().replace('\n', ' '));
            }
        }
        consumer.close();
        producer.close();
        say("ended");
        System.exit(0);
    }

    private static String done(LitePushConsumer consumer, Producer producer, String topic, String[] words)
        throws Exception {
        switch (words[0]) {
            case "send":
                return "sent " + producer.send(PROVIDER.newMessageBuilder().setTopic(topic).setLiteTopic(words[1])
                    .setBody(words[2].getBytes(StandardCharsets.UTF_8)).build()).getMessageId();
            case "subscribe":
                consumer.subscribeLite(words[1]);
                return "subscribed";
            case "unsubscribe":
                consumer.unsubscribeLite(words[1]);
                return "unsubscribed";
            default:
                return "topics " + String.join(",", new TreeSet<>(consumer.getLiteTopicSet()));
        }
    }

    private static synchronized void say(String line) {
        System.out.println(line);
        System.out.flush();
    }
}
