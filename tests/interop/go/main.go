// Starts the official Go client once and says how that ended, as one line of JSON on stdout.
//
// Arguments: endpoint, kind (push, simple, producer or lite), group, topic, filter type (tag or sql), filter, and a
// folder for the client's log. OFFICIAL_ACCESS_KEY and OFFICIAL_ACCESS_SECRET sign.
package main

import (
	"context"
	"encoding/json"
	"os"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
)

func say(outcome string, since time.Time, words string) {
	line, _ := json.Marshal(map[string]any{
		"outcome": outcome, "elapsed_ms": time.Since(since).Milliseconds(), "words": words,
	})
	os.Stdout.Write(append(line, '\n'))
}

type startable interface{ Start() error }

func open(config *rmq.Config, kind, topic string, filter *rmq.FilterExpression) (startable, error) {
	filters := map[string]*rmq.FilterExpression{topic: filter}
	listener := &rmq.FuncMessageListener{Consume: func(*rmq.MessageView) rmq.ConsumerResult { return rmq.SUCCESS }}
	switch kind {
	case "push":
		return rmq.NewPushConsumer(config, rmq.WithPushAwaitDuration(5*time.Second),
			rmq.WithPushSubscriptionExpressions(filters), rmq.WithPushMessageListener(listener))
	case "lite":
		return rmq.NewLitePushConsumer(config, rmq.NewLitePushConsumerConfig(topic, 30*time.Second),
			rmq.WithPushAwaitDuration(5*time.Second), rmq.WithPushMessageListener(listener))
	case "simple":
		return rmq.NewSimpleConsumer(config, rmq.WithSimpleAwaitDuration(5*time.Second),
			rmq.WithSimpleSubscriptionExpressions(filters))
	default:
		return rmq.NewProducer(config, rmq.WithTopics(topic))
	}
}

func main() {
	endpoint, kind, group, topic, sql, expression := os.Args[1], os.Args[2], os.Args[3], os.Args[4], os.Args[5], os.Args[6]
	os.Setenv("rocketmq.client.logRoot", os.Args[7])
	rmq.ResetLogger()
	rmq.EnableSsl = false
	filter := rmq.NewFilterExpression(expression)
	if sql == "sql" {
		filter = rmq.NewFilterExpressionWithType(expression, rmq.SQL92)
	}
	config := &rmq.Config{Endpoint: endpoint, ConsumerGroup: group, Credentials: &credentials.SessionCredentials{
		AccessKey: os.Getenv("OFFICIAL_ACCESS_KEY"), AccessSecret: os.Getenv("OFFICIAL_ACCESS_SECRET"),
	}}
	since := time.Now()
	client, err := open(config, kind, topic, filter)
	if err == nil {
		err = client.Start()
	}
	if err != nil {
		say("refused", since, err.Error())
		return
	}
	say("started", since, "")
	since = time.Now()
	switch consumer := client.(type) {
	case rmq.SimpleConsumer:
		_, err = consumer.Receive(context.Background(), 1, 15*time.Second)
	case rmq.Producer:
		_, err = consumer.Send(context.Background(), &rmq.Message{Topic: topic, Body: []byte("body")})
	default:
		select {} // until the test has seen what it waits for in the log
	}
	if err != nil {
		say("refused", since, err.Error())
		return
	}
	say("served", since, "")
}
